"""What a method is: the hooks of a client's round and of the server's.

A method is a frozen dataclass of its hyperparameters. It overrides the hooks that it
needs and leaves the others. In the order of a round:

    server   broadcast          the weights that are sent in place of the model's
    client   start              the weights that the client begins with
             begin              the state that the method keeps during training
    a step   change_batch, change_pass, change_logits
             term               a term of the loss
             gradient           how the gradient is taken
             correct            changes the gradient before it is clipped
             (clipping)
             keep               the state after this step, from the clipped gradient
             correct_clipped    changes the clipped gradient
             (weight decay, momentum and the client optimiser's step)
    client   finish             new memories, uploads, the scale of the update
    server   (aggregation, the server optimiser's step)
             update_memory      the server's new memories
             next_model         the new model's weights

`states` has what the hooks receive, and explains the symbols. Nothing that a hook reads
has to be declared: a trial round finds it when a process is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from tff_reg import models, settings
from tff_reg.lazy import tf, tff
from tff_reg.methods import contract, memories
from tff_reg.methods.states import (
    Batch,
    Change,
    Finished,
    Local,
    Memory,
    Server,
    Step,
    Tensors,
    Term as Term,
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

# What only one method of a sum can have. The first three follow from its hooks.
EXAMPLES = "replace the batch by mixed examples"
LOGITS = "change the logits that the task loss sees"
GRADIENT = "say how the gradient is taken"
START = "say where a client begins"
DRIFT = "correct the drift of clients"
SERVER = "say how the server takes its step"
FEATURES = "spread the features and vary the predictions"
CLASSIFIER = "say what the classifier is"
EXCLUSIVE = (EXAMPLES, LOGITS, GRADIENT, START, DRIFT, SERVER, FEATURES, CLASSIFIER)
_BY_HOOK = {
    "change_batch": EXAMPLES,
    "change_logits": LOGITS,
    "gradient": GRADIENT,
    "start": START,
    "next_model": SERVER,
}

# What a method may need that no hook shows.
ONE_LABEL = "examples with one label each"
UNIFORM_WEIGHTING = "the plain mean of the clients' models"
EXACT_UPLOADS = "sums of uploads without clipping and noise"

_CONSTANTS = {
    "exclusive": {
        "DRIFT": DRIFT,
        "SERVER": SERVER,
        "FEATURES": FEATURES,
        "CLASSIFIER": CLASSIFIER,
    },
    "needs": {
        "ONE_LABEL": ONE_LABEL,
        "UNIFORM_WEIGHTING": UNIFORM_WEIGHTING,
        "EXACT_UPLOADS": EXACT_UPLOADS,
    },
}
_IN_NETWORK = ("adapt_network", "change_batch", "change_pass", "change_logits")
# By name, a memory's first value.
Declarations = Mapping[str, memories.Declaration]
# Takes the gradient of the whole loss, or of another one, here or elsewhere.
GradientAt = Callable[..., Tensors]


class Method:
    """Base class of all methods; by itself it does nothing and is FedAvg.

    A sub-class is a frozen dataclass whose fields are `tff_reg.settings.setting`s. With
    a field `strength` of 0, its term is measured and reported but takes no part in
    training, which is then FedAvg's to the bit.

    Attributes:
      name: Its name on the command line and in metrics.
      title: A description in a few words.
      paper: Authors, venue and year.
      paper_settings: The paper's settings, by name; others have their defaults.
      required_settings: Settings that every sum with this method has, unless the user
        gives others.
      exclusive: Constants for what at most one method of a sum can do and this one
        does: DRIFT, SERVER, FEATURES, CLASSIFIER. What follows from overridden hooks
        need not be there.
      needs: Constants for what it needs and no hook shows: ONE_LABEL,
        UNIFORM_WEIGHTING, EXACT_UPLOADS (where clipped or noisy sums would make wrong
        numbers, as where `update_memory` divides by one).
      client_memory: What a client remembers from round to round: by name, a function
        from the initial trainable weights to the first value; see
        `tff_reg.methods.memories`.
      server_memory: What the server remembers, likewise; what is `sent` reaches the
        clients.
      uploads: Names of the uploads that `finish` returns, all of them.
      averaged_rounds: How many global models `step.outputs_of("averaged")` is the mean
        of, this round's among them.
      if_adaptive: How a warning ends that says what becomes of the method with an
        adaptive client optimiser.
      server_step: How `next_model` makes the new model, in a few words; the server
        optimiser must then be plain averaging.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    paper_settings: ClassVar[Mapping[str, Any]] = {}
    required_settings: ClassVar[Mapping[str, Any]] = {}
    exclusive: ClassVar[Sequence[str]] = ()
    needs: ClassVar[Sequence[str]] = ()
    client_memory: Mapping[str, memories.Declaration] = {}
    server_memory: Mapping[str, memories.Declaration] = {}
    uploads: Sequence[str] = ()
    averaged_rounds: int = 0
    if_adaptive: ClassVar[str] = ""
    server_step: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuses names that no method has; see `contract.check_class`."""
        super().__init_subclass__(**arguments)
        contract.check_class(cls, Method, _CONSTANTS)

    def __new__(cls, *args: Any, **given: Any) -> Method:
        """Refuses arguments that are no settings; see `settings.check_names`."""
        contract.check_made(cls)
        if dataclasses.is_dataclass(cls):
            settings.check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self):
        """Checks the hyperparameters.

        Raises:
          SettingError: If one has a value that it cannot have.
        """
        settings.check(self, f"{self.name}_")

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
          key: int64 [2], for what is random.

        Returns:
          The new `Batch` and measurements.
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
          key: int64 [2], for what is random.

        Returns:
          The new `ForwardPass` and measurements.
        """
        return Change(forward, {})

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        """Changes the logits that the task loss sees, of FedMLB's paths too.

        Terms and metrics see the logits unchanged.

        Args:
          logits: float [batch, classes].
          class_counts: As in `Local`.

        Returns:
          float [batch, classes].
        """
        return logits

    def term(self, step: Step) -> Any:
        """Computes the term that is added to the loss.

        Args:
          step: The step; all tensors of it are in the model's data type.

        Returns:
          A scalar, or a `Term`; differentiable with respect to the local weights.
        """
        raise NotImplementedError

    def gradient(self, local: Local, gradient_at: GradientAt) -> Tensors:
        """Takes the gradient of a step.

        Metrics, measurements and the statistics of norms are those of the first call of
        `gradient_at`. What is random in the step is drawn once, whatever the number of
        calls.

        Args:
          local: The client.
          gradient_at: Function of (perturbation=None, loss=None) giving the gradient,
            one tensor a weight, at the weights plus the perturbation. The loss is the
            whole one, all terms included, or that of a function from a `Step` to a
            scalar.

        Returns:
          The gradient, one tensor a weight.
        """
        return gradient_at()

    def correct(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the gradient of the loss, one tensor a weight, before clipping."""
        return gradient

    def correct_clipped(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the clipped gradient, one tensor a weight."""
        return gradient

    # A client's round -----------------------------------------------------------------

    def start(self, local: Local) -> Tensors:
        """Says which trainable weights a client begins with.

        The differences of all methods of the sum, and the client's update, are taken
        from them: `local.start`, `local.delta`, `step.start`.

        Args:
          local: The client, whose `weights`, `start` and `global_weights` are the
            received ones; without `state`.

        Returns:
          One tensor a weight.
        """
        return list(local.global_weights)

    def begin(self, local: Local) -> Any:
        """Makes the state that the method keeps during a client's training.

        Args:
          local: The client at its start; without `state`, and as if it were of mean
            size: its examples have not been seen.

        Returns:
          A structure of tensors.
        """
        return ()

    def keep(self, local: Local, gradient: Tensors) -> Any:
        """Makes the state for the next step.

        Args:
          local: The client.
          gradient: The clipped gradient, before `correct_clipped`.

        Returns:
          The next step's `local.state`, a structure like that of `begin`.
        """
        return local.state

    def finish(self, local: Local) -> Finished:
        """Ends a client's training.

        Args:
          local: The client at the end of its training.

        Returns:
          New memories, uploads and the scale of the update.
        """
        return Finished()

    # The server -----------------------------------------------------------------------

    def broadcast(self, weights: Tensors, memory: Memory) -> Tensors:
        """Makes the weights that clients receive in place of the model's.

        Args:
          weights: The trainable weights.
          memory: The server's memories of this method, by name.

        Returns:
          One tensor a weight.
        """
        return weights

    def update_memory(self, server: Server) -> Memory:
        """Ends a round in which clients trained and the mean update is finite.

        Args:
          server: The server, whose `memory` is the old one.

        Returns:
          The method's new memories by name; those that are left out stay as they were.
        """
        return {}

    def next_model(self, server: Server) -> Tensors:
        """Makes the new model, after `update_memory`.

        Args:
          server: The server, whose `memory` is the new one.

        Returns:
          The new model's trainable weights, one tensor a weight.
        """
        return list(server.weights)


def does(method: Any, what: str) -> bool:
    """Whether a method, or a class of them, overrides a hook of `Method`."""
    owner = method if isinstance(method, type) else type(method)
    return getattr(owner, what) is not getattr(Method, what)


def exclusive_of(method: Any) -> set[str]:
    """What a method, or a class of them, does that only one of a sum can do."""
    derived = {what for hook, what in _BY_HOOK.items() if does(method, hook)}
    return {*method.exclusive, *derived}


class IncompatibleMethodsError(ValueError):
    """A sum of methods that makes no sense."""


def check_sum(methods: Sequence[Any]) -> None:
    """Checks that methods, or their classes, can be added up.

    Args:
      methods: Those of the sum.

    Raises:
      IncompatibleMethodsError: If one stands there twice, two do what only one can, or
        one needs what another takes away.
    """
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleMethodsError(
                f"A method may stand in a sum once, but {name} stands there "
                f"{names.count(name)} times."
            )
    for what in EXCLUSIVE:
        having = [m.name for m in methods if what in exclusive_of(m)]
        if len(having) > 1:
            raise IncompatibleMethodsError(
                f"{' and '.join(having)} both {what}: leave one of them out."
            )
    mixing = [m.name for m in methods if EXAMPLES in exclusive_of(m)]
    for method in methods:
        if mixing and ONE_LABEL in method.needs:
            raise IncompatibleMethodsError(
                f"{method.name} needs the one true class of every example, and "
                f"{mixing[0]} gives each example two: leave one of them out."
            )


def check_memories(methods: Sequence[Method]) -> None:
    """Checks what methods that were made declare that clients and the server remember.

    Raises:
      HookError: If a client's memory has the name of a model that terms read.
      IncompatibleMethodsError: If a memory is shared by two that declare it unlike.
    """
    seen: dict[Any, Any] = {}
    for method in methods:
        for name in (GLOBAL, EVALUATED, AVERAGED, LOCAL):
            if name in method.client_memory:
                raise contract.HookError(
                    f"{method.name}.client_memory: {name!r} is the name of a model"
                    " that terms read: rename the memory."
                )
        for where in ("client_memory", "server_memory"):
            for name, given in getattr(method, where).items():
                memory = memories.declared(given)
                first, other = seen.setdefault((where, name), (memory, method.name))
                if memory.is_shared and first.is_shared and memory != first:
                    raise IncompatibleMethodsError(
                        f"{other} and {method.name} share the memory {name!r} with"
                        " other first values, or only one's is sent: declare it by the"
                        " same function."
                    )


def check_model(method: Method, model: tff.learning.models.VariableModel) -> None:
    """Checks that a model has what a method's hooks need.

    Args:
      method: The method.
      model: The model.

    Raises:
      TypeError: If the method needs the network and the model shows none.
      ValueError: If the network lacks what the method needs.
    """
    if any(does(method, what) for what in _IN_NETWORK):
        require_network(method, model)
    if any(does(method, what) for what in ("change_batch", "change_logits")):
        require_classifier(method, model)
    if ONE_LABEL in method.needs:
        require_classifier(method, model)
    if has_network(model):
        method.check_network(model.network)


def require_network(method: Method, model: tff.learning.models.VariableModel) -> None:
    """Refuses a model that does not show its network.

    A model that does not takes its own batch, gives its loss alone, and counts the
    batch at every pass.

    Raises:
      NetworkNeededError: If the model is no `LearningModel`, or has its own forward
        pass.
    """
    if not has_network(model):
        is_own = isinstance(model, models.LearningModel)
        raise contract.NetworkNeededError(
            f"{method.name} looks inside the network: model_fn must return a "
            f"tff_reg.models.LearningModel, but returned {type(model).__name__}"
            f"{' with its own forward_pass' * is_own}. See tff_reg.models.from_keras."
        )


def require_classifier(
    method: Method, model: tff.learning.models.VariableModel
) -> None:
    """Refuses a network that is no classifier.

    Raises:
      ClassifierNeededError: If it has no classes.
    """
    if has_network(model) and model.network.num_classes is None:
        raise contract.ClassifierNeededError(
            f"{method.name} needs a classifier, one logit a class and integer"
            " labels, and this model's loss is another: without one it can train"
            " by the methods that look at weights and gradients alone."
        )


def has_network(model: tff.learning.models.VariableModel) -> bool:
    """Whether a model shows its network, which is to be a `LearningModel`.

    What wraps one, or has its own `forward_pass`, shows none, else that would be passed
    over.
    """
    if not isinstance(model, models.LearningModel):
        return False
    return model.has_plain_forward_pass
