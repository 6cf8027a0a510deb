"""What a method is: what it may do in a client's round, and at the server's.

A method is a frozen dataclass of its strengths. It overrides what it does and leaves
the rest; whatever it remembers is in the arguments and the results. In the order of a
round:

    server   broadcast          what is sent in place of the model
    client   begin              what it keeps during the client's training
    a step   change_batch, change_pass, change_logits
             term               what is added to the loss
             displacement       where the gradient is taken
             correct            what becomes of the gradient before it is clipped
             keep               what the next step has of the clipped gradient
             correct_clipped    what becomes of the gradient after that
    client   finish, scale      what it remembers and uploads; the scale of its update
    server   update_server      what the server remembers, and the new model

`states` has what the methods see, and explains the symbols.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from tff_reg import models, settings
from tff_reg.lazy import tf, tff
from tff_reg.methods.states import (
    Batch,
    Change,
    Local,
    Memory,
    Server,
    Step,
    Tensors,
    Term,
)
from tff_reg.models import forward as forward_lib

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

LOCAL = "local"
# The models beside the local one that a term may read: the one that was received, the
# mean of the last rounds' global models, or any memory in the weights' shapes.
GLOBAL = "global"
EVALUATED = "evaluated"  # The one that was received, in evaluation mode.
AVERAGED = "averaged"
PREVIOUS = "previous"  # The client's own at the end of the last round it was in.

# What only one method of a sum can have.
EXAMPLES = "replace the batch by mixed examples"
LOGITS = "change the logits that the task loss sees"
GRADIENT = "say how the gradient is taken"
DRIFT = "correct the drift of clients"
SERVER = "say how the server takes its step"
FEATURES = "spread the features and vary the predictions"
CLASSIFIER = "say what the classifier is"
CLAIMS = (EXAMPLES, LOGITS, GRADIENT, DRIFT, SERVER, FEATURES, CLASSIFIER)

_IN_NETWORK = ("adapt_network", "change_batch", "change_pass", "change_logits")


class Method:
    """Base class of all methods; by itself it does nothing and is FedAvg.

    A sub-class is a frozen dataclass whose fields are `tff_reg.settings.setting`s. A
    `strength` is what a term is multiplied with: at 0 the term is measured and
    reported but takes no part in training, which is then FedAvg's to the bit.

    Attributes:
      name: What the method is called on the command line and in metrics.
      title: What it is, in a few words.
      paper: Authors, venue and year.
      paper_settings: The settings of its paper, by name; what is not there is as it is
        by default. Those of `papers` say whose they are.
      brings: The settings that it cannot be without: it brings them into every sum, and
        has them in comparisons whose other settings are the same for all.
      claims: What only one method of a sum can do and this one does: EXAMPLES, LOGITS,
        GRADIENT, DRIFT, SERVER, FEATURES, CLASSIFIER.
      measurement_names: Names of the further scalars that its term, `change_batch` and
        `change_pass` measure.
      needs_network: Whether it looks inside the model, which must then be a
        `tff_reg.models.LearningModel` and not any TFF model. What cannot be had of
        others needs it too: `looks_inside` says all.
      records_activations: Whether its term reads `outputs.activations`.
      reference_models: Which models its term reads beside the local one: GLOBAL,
        EVALUATED, AVERAGED or names of memories.
      averaged_rounds: How many global models AVERAGED is the mean of, this round's
        among them.
      is_random: Whether it draws random numbers.
      needs_one_label: Whether it needs examples to have one label.
      needs_class_counts: Whether it needs to know how many examples of each class a
        client has.
      sent: The server's memories that are sent with the model.
      uploads: Names of what clients may upload beside their update, all of them.
      needs_exact_uploads: Whether sums of uploads that are clipped or noisy make wrong
        numbers of its `update_server`, as where it divides by one.
      displaces_by_gradient: Whether `displacement` needs a gradient at the weights. If
        not, a step is one pass.
      needs_gradients: Whether its `finish` reads `local.taken`, the gradients of a
        client's steps.
      if_adaptive: What a warning says becomes of it with an adaptive client optimiser.
      needs_population: Whether its `update_server` has to know how many clients there
        are in all.
      needs_uniform_weighting: Whether it takes the plain mean of the clients' models.
      server_step: How `update_server` makes the new model, in a few words; the server
        optimiser must then be plain averaging. Empty if it leaves the model alone.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    paper_settings: ClassVar[Mapping[str, Any]] = {}
    brings: ClassVar[Mapping[str, Any]] = {}
    claims: ClassVar[tuple[str, ...]] = ()
    measurement_names: ClassVar[tuple[str, ...]] = ()
    needs_network: ClassVar[bool] = True
    records_activations: ClassVar[bool] = False
    reference_models: ClassVar[tuple[str, ...]] = ()
    averaged_rounds: int = 0
    is_random: ClassVar[bool] = False
    needs_one_label: ClassVar[bool] = False
    needs_class_counts: ClassVar[bool] = False
    sent: ClassVar[tuple[str, ...]] = ()
    uploads: ClassVar[tuple[str, ...]] = ()
    needs_exact_uploads: ClassVar[bool] = False
    displaces_by_gradient: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = False
    if_adaptive: ClassVar[str] = ""
    needs_population: ClassVar[bool] = True
    needs_uniform_weighting: ClassVar[bool] = False
    server_step: ClassVar[str] = ""

    def __new__(cls, *args: Any, **given: Any) -> Method:
        """Refuses arguments that are no settings; see `settings.check_names`."""
        if dataclasses.is_dataclass(cls):
            settings.check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self):
        """Checks the strengths.

        Raises:
          SettingError: If one has a value that it cannot have.
        """
        settings.check(self, f"{self.name}_")

    @property
    def displaces(self) -> bool:
        """Whether a step's gradient is taken at displaced weights."""
        return False

    @property
    def needs_learning_rate(self) -> bool:
        """Whether the client optimiser must have a `learning_rate`."""
        return self.needs_gradients

    @property
    def is_measured_only(self) -> bool:
        """Whether its term takes no part in training."""
        return does(self, "term") and not getattr(self, "strength", 1.0)

    # The model ------------------------------------------------------------------------

    def adapt_network(self, network: BlockModel) -> None:
        """Changes a network that was just made, before it is used.

        Raises:
          ValueError: If it cannot be changed so.
        """

    def check_network(self, network: BlockModel) -> None:
        """Checks, before anything is traced, that a network has what is needed.

        Raises:
          ValueError: If it has not.
        """

    # A step ---------------------------------------------------------------------------

    def change_batch(self, batch: Batch, key: Optional[tf.Tensor]) -> Change:
        """Changes the batch before the forward pass.

        Args:
          batch: The batch.
          key: int64 [2] if it `is_random`, else None.

        Returns:
          The new `Batch` and what was measured.
        """
        return Change(batch, {})

    def change_pass(
        self,
        forward: forward_lib.ForwardPass,
        network: BlockModel,
        key: Optional[tf.Tensor],
    ) -> Change:
        """Changes the settings of the local forward pass.

        Args:
          forward: The pass.
          network: The local network.
          key: int64 [2] if it `is_random`, else None.

        Returns:
          The new `ForwardPass` and what was measured.
        """
        return Change(forward, {})

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        """Changes the logits that the task loss sees, of FedMLB's paths too.

        Terms and metrics see them as they are.

        Args:
          logits: float [batch, classes].
          class_counts: As in `Local`.

        Returns:
          float [batch, classes].
        """
        return logits

    def term(self, step: Step) -> Term:
        """Computes the term that is added to the loss.

        Args:
          step: The step; all tensors of it are in the model's data type.

        Returns:
          The `Term`, differentiable with respect to the local weights.
        """
        raise NotImplementedError

    def displacement_loss(self, step: Step) -> tf.Tensor:
        """The loss whose gradient `displacement` takes; by default the whole loss.

        Args:
          step: As for `term`.

        Returns:
          A scalar.
        """
        raise NotImplementedError

    def displacement(self, local: Local, gradient: Any) -> Tensors:
        """Says where the gradient of a step is taken, if the method `displaces`.

        Args:
          local: Where the client stands.
          gradient: That of `displacement_loss` at the weights, one tensor a weight;
            None unless `displaces_by_gradient`.

        Returns:
          What is added to the weights for the step's gradient, one tensor a weight.
        """
        raise NotImplementedError

    def correct(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the gradient of the loss, one tensor a weight, before clipping."""
        return gradient

    def correct_clipped(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the clipped gradient, one tensor a weight."""
        return gradient

    # A client's round -----------------------------------------------------------------

    def initial_client_memory(self, weights: Tensors) -> Memory:
        """What a client that never took part remembers.

        Args:
          weights: The trainable weights that training begins with; none, where only
            the names are asked for.

        Returns:
          Lists of tensors by name. Of two methods of a sum with a memory of the same
          name each has the other's.
        """
        return {}

    def begin(self, local: Local) -> Any:
        """What the method keeps during a client's training, at its beginning.

        Args:
          local: Where the client stands; without `state`, and as if it were of mean
            size: its examples have not been seen.

        Returns:
          A structure of tensors.
        """
        return ()

    def keep(self, local: Local, gradient: Tensors) -> Any:
        """What the method keeps of a step.

        Args:
          local: Where the client stands.
          gradient: The clipped gradient, before `correct_clipped`.

        Returns:
          The next step's `local.state`, a structure like that of `begin`.
        """
        return local.state

    def finish(self, local: Local) -> tuple[Memory, Memory]:
        """Ends a client's training.

        Args:
          local: Where the client ended.

        Returns:
          Its new memories by name, those that are left out staying as they were, and
          its uploads: structures of tensors by name, which are summed over the clients
          that trained.
        """
        return {}, {}

    def scale(self, local: Local) -> Any:
        """The factor of the client's update, a scalar in the weights' data type.

        What it is for a client that took no step does not matter.
        """
        return 1.0

    # The server -----------------------------------------------------------------------

    def initial_server_memory(self, weights: Tensors) -> Memory:
        """What the server remembers before the first round.

        Args:
          weights: As for `initial_client_memory`.

        Returns:
          Structures of tensors by name.
        """
        return {}

    def broadcast(self, weights: Tensors, memory: Memory) -> Tensors:
        """What clients receive in place of the model's trainable weights.

        Args:
          weights: The trainable weights.
          memory: What the server remembers.

        Returns:
          As many tensors of the same shapes.
        """
        return weights

    def update_server(self, server: Server) -> tuple[Memory, Tensors]:
        """Ends a round in which clients trained and the mean update is finite.

        Args:
          server: Where the server stands.

        Returns:
          The method's new memories by name, those that are left out staying as they
          were, and the trainable weights of the new model.
        """
        return {}, list(server.weights)


def does(method: Method, what: str) -> bool:
    """Whether a method, or a class of them, overrides what `Method` has."""
    owner = method if isinstance(method, type) else type(method)
    return getattr(owner, what) is not getattr(Method, what)


def counts_clients(method: Method) -> bool:
    """Whether a method has to know how many clients there are in all."""
    return does(method, "update_server") and method.needs_population


class IncompatibleMethodsError(ValueError):
    """A sum of methods that makes no sense."""


def check_sum(methods: Sequence[Any]) -> None:
    """Checks that methods, or their classes, can be added up.

    Args:
      methods: Those of the sum.

    Raises:
      IncompatibleMethodsError: If one stands there twice, two claim the same, or one
        needs what another takes away.
    """
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleMethodsError(
                f"A method may stand in a sum once, but {name} stands there "
                f"{names.count(name)} times."
            )
    for claim in CLAIMS:
        claiming = [m.name for m in methods if claim in m.claims]
        if len(claiming) > 1:
            raise IncompatibleMethodsError(
                f"{' and '.join(claiming)} both {claim}: leave one of them out."
            )
    mixing = [m.name for m in methods if EXAMPLES in m.claims]
    for method in methods:
        if mixing and method.needs_one_label:
            raise IncompatibleMethodsError(
                f"{method.name} needs the one true class of every example, and "
                f"{mixing[0]} gives each example two: leave one of them out."
            )


def check_model(method: Method, model: tff.learning.models.VariableModel) -> None:
    """Checks that a model has what a method needs.

    Args:
      method: The method.
      model: The model.

    Raises:
      TypeError: If the method needs the network and the model shows none.
      ValueError: If the network lacks what the method needs.
    """
    if looks_inside(method) and not has_network(model):
        is_own = isinstance(model, models.LearningModel)
        raise TypeError(
            f"{method.name} looks inside the network: model_fn must return a "
            f"tff_reg.models.LearningModel, but returned {type(model).__name__}"
            f"{' with its own forward_pass' * is_own}. See tff_reg.models.from_keras."
        )
    if has_network(model):
        if model.network.num_classes is None and reads_logits(method):
            raise ValueError(
                f"{method.name} needs a classifier, one logit a class and integer"
                " labels, and this model's loss is another: without one it can train"
                " by the methods that look at weights and gradients alone."
            )
        method.check_network(model.network)


def reads_logits(method: Method) -> bool:
    """Whether a method makes sense for a classifier only."""
    return (
        (method.needs_network and does(method, "term"))
        or method.needs_class_counts
        or method.needs_one_label
        or any(does(method, what) for what in ("change_batch", "change_logits"))
    )


def looks_inside(method: Method) -> bool:
    """Whether a method needs a model that shows its network.

    A model that does not takes its own batch, gives its loss alone, and counts the
    batch at every pass.
    """
    return (
        method.needs_network
        or method.needs_class_counts
        or (method.displaces and method.displaces_by_gradient)
        or any(does(method, what) for what in _IN_NETWORK)
    )


def has_network(model: tff.learning.models.VariableModel) -> bool:
    """Whether a model shows its network, which is to be a `LearningModel`.

    What wraps one, or has its own `forward_pass`, shows none, else that would be passed
    over.
    """
    if not isinstance(model, models.LearningModel):
        return False
    return model.has_plain_forward_pass
