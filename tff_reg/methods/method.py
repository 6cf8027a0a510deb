"""The base class of methods: hooks of a client's round and of the server.

A method is a frozen dataclass of its hyperparameters. It overrides the hooks that it
needs and leaves the others. In the order of a round:

    server   broadcast          the weights that are sent in place of the model's
    client   personal           the weights that stay at the client
             start              the weights that the client begins with
             begin              the state that the method keeps during training
    a step   change_batch, change_pass, change_logits
             term               a term of the loss
             gradient           how the gradient is taken
             correct            changes the gradient before it is clipped
             (clipping)
             keep               the state after this step, from the clipped gradient
             correct_clipped    changes the clipped gradient
             scale_rate         a factor on the step's learning rate
             (weight decay, momentum and the client optimiser's step)
    client   finish             new memories, uploads, the scale of the update
             weigh              the client's weight, once the cohort's sums are known
    server   (aggregation, the server optimiser's step)
             update_memory      the server's new memories
             next_model         the new model's weights
             evaluated          the weights that are evaluated in place of the model's
             own_model          the weights that a client is evaluated with

`states` defines the hooks' arguments and the symbols. A hook need not declare the
attributes that it reads: a trial round finds them when a process is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, contract, memories, words
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
from tff_reg.methods.words import (
    CLASSIFIER as CLASSIFIER,
    DRIFT as DRIFT,
    EVALUATED as EVALUATED,
    EXACT_UPLOADS as EXACT_UPLOADS,
    FEATURES as FEATURES,
    FIRST_STATE as FIRST_STATE,
    GLOBAL as GLOBAL,
    LOCAL as LOCAL,
    ONE_LABEL as ONE_LABEL,
    PREVIOUS as PREVIOUS,
    RATE as RATE,
    SERVER as SERVER,
    UNIFORM_WEIGHTING as UNIFORM_WEIGHTING,
)
from tff_reg.models import forward as forward_lib

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

# Memories' declarations by name.
Declarations = Mapping[str, memories.Declaration]
# Function of (perturbation=None, loss=None); see `Method.gradient`.
GradientAt = Callable[..., Tensors]


class Method:
    """Base class of all methods; without overridden hooks it is FedAvg.

    A sub-class is a frozen dataclass whose fields are `tff_reg.settings.setting`s.

    Attributes:
      name: The method's name on the command line and in metrics.
      title: The change to FedAvg in one line.
      paper: Authors, venue and year.
      paper_settings: The paper's settings, by name; others have their defaults.
      required_settings: Settings of every combination with this method, unless the
        user gives others.
      exclusive: Roles of this method that only one method of a combination can have:
        DRIFT, SERVER, FEATURES, CLASSIFIER, RATE, FIRST_STATE. Roles that follow from
        overridden hooks need not be listed.
      needs: Needs that no hook shows: ONE_LABEL, UNIFORM_WEIGHTING (which requires the
        setting), EXACT_UPLOADS (for a method that clipped or noisy uploads would break;
        a trial finds those whose server divides by an upload).
      client_memory: The client's memories: by name, a function from the initial
        trainable weights to the first value; see `tff_reg.methods.memories`.
      server_memory: The server's memories, in the same form; clients get `sent` ones.
      uploads: Names of all uploads that `finish` returns.
      if_adaptive: End of a warning: the effect of an adaptive client optimiser on the
        method.
      card: The method's card in the documentation; None if it has no page there.
      when_finetuned: Hyperparameters of the method, by field, while copies for each
        client's accuracy are finetuned; they train without the method if it is empty.
      adds_to_model: Whether `next_model` only adds to `server.weights`, whatever they
        are; such a method can stand beside another `next_model`, and acts after it.
      server_step: How `next_model` makes the new model, in a few words; the server
        optimiser must then be SGD with learning rate 1.
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
    if_adaptive: ClassVar[str] = ""
    card: ClassVar[Optional[cards.Card]] = None
    when_finetuned: ClassVar[Mapping[str, Any]] = {}
    adds_to_model: ClassVar[bool] = False
    server_step: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Checks the names of hooks and attributes; see `contract.check_class`."""
        super().__init_subclass__(**arguments)
        if UNIFORM_WEIGHTING in cls.needs:
            uniform = {"client_weighting": "uniform"}
            cls.required_settings = {**uniform, **cls.required_settings}
        contract.check_class(cls, Method, words.ALLOWED)

    def __new__(cls, *args: Any, **given: Any) -> Method:
        """Checks the settings' declarations and names; see `settings.check_names`."""
        contract.check_made(cls)
        if dataclasses.is_dataclass(cls):
            settings.check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self):
        """Checks the hyperparameters."""
        settings.check(self, f"{self.name}_")

    # The model ------------------------------------------------------------------------

    def adapt_network(self, network: BlockModel) -> None:
        """Changes a new network before it is used.

        Raises:
          ValueError: If the network does not support the change.
        """

    def check_network(self, network: BlockModel) -> None:
        """Checks, before anything is traced, that a network supports the method.

        Raises:
          ValueError: If the network does not support the method.
        """

    # A step ---------------------------------------------------------------------------

    def change_batch(self, batch: Batch, key: Optional[tf.Tensor]) -> Change:
        """Changes the batch before the forward pass.

        Args:
          batch: The batch.
          key: int64 [2], for random numbers.

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
          key: int64 [2], for random numbers.

        Returns:
          The new `ForwardPass` and measurements.
        """
        return Change(forward, {})

    def change_logits(self, logits: tf.Tensor, class_counts: tf.Tensor) -> tf.Tensor:
        """Changes the logits in the task loss, also in the losses of FedMLB's paths.

        Terms and metrics get the original logits.

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
          step: The step, with its tensors in the model's data type.

        Returns:
          A scalar, or a `Term`; differentiable with respect to the local weights.
        """
        raise NotImplementedError

    def gradient(self, local: Local, gradient_at: GradientAt) -> Any:
        """Takes the gradient of a step.

        Metrics, measurements and the statistics of norms come from the first call of
        `gradient_at`. All calls of a step use the same random numbers.

        Args:
          local: The client.
          gradient_at: Function of (perturbation=None, loss=None) giving the gradient,
            one tensor per weight, at the weights plus the perturbation. The loss is the
            whole loss with all terms, or a function from a `Step` to a scalar.

        Returns:
          The gradient, one tensor per weight, or a `Change` of it.
        """
        return gradient_at()

    def correct(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the gradient of the loss, one tensor per weight, before clipping."""
        return gradient

    def correct_clipped(self, local: Local, gradient: Tensors) -> Tensors:
        """Changes the clipped gradient, one tensor per weight."""
        return gradient

    def scale_rate(self, local: Local) -> Any:
        """Returns the factor on the learning rate of this step, a scalar."""
        return 1.0

    # A client's round -----------------------------------------------------------------

    def personal(self, network: BlockModel) -> Sequence[Any]:
        """Returns the weights that stay at each client, and out of the mean.

        A client begins a round with its own values in their places, at first the
        initial ones; so do `local.global_weights` and the reference models. The model
        that clients share lacks them, so each client is evaluated with its own.

        Args:
          network: The network.

        Returns:
          Some of its variables: trainable ones, and statistics of norms.
        """
        return ()

    def start(self, local: Local) -> Tensors:
        """Returns the trainable weights that a client begins with.

        All methods of the combination, and the client's update, measure differences
        from them: `local.start`, `local.delta`, `step.start`.

        Args:
          local: The client. Its `weights`, `start` and `global_weights` are the
            received ones; it has no `state` yet.

        Returns:
          One tensor per weight.
        """
        return list(local.global_weights)

    def begin(self, local: Local) -> Any:
        """Makes the state that the method keeps during a client's training.

        Args:
          local: The client at its start, without `state`. Its size is not known yet:
            relative sizes are 1.

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
          The next step's `local.state`, with the structure that `begin` returned.
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

    def weigh(self, own: Memory, total: Memory) -> Any:
        """Returns a client's weight in the cohort's mean, in place of its examples.

        Where all weights are 0, clients weigh alike.

        Args:
          own: The client's `Finished.share`, by name.
          total: The sums of these scalars over the clients that trained, by name.

        Returns:
          A scalar in the weights' data type, at least 0.
        """
        return tf.ones([])

    # The server -----------------------------------------------------------------------

    def broadcast(self, weights: Tensors, memory: Memory) -> Tensors:
        """Returns the weights that clients receive in place of the model's weights.

        Args:
          weights: The trainable weights.
          memory: The server's memories of this method, by name.

        Returns:
          One tensor per weight.
        """
        return weights

    def update_memory(self, server: Server) -> Any:
        """Ends a round in which clients trained and the mean update is finite.

        Args:
          server: The server with its old `memory`.

        Returns:
          The method's new memories by name, or a `Change` of them; memories left out do
          not change.
        """
        return {}

    def next_model(self, server: Server) -> Any:
        """Makes the new model, after `update_memory`.

        Args:
          server: The server with its new `memory`.

        Returns:
          The new model's trainable weights, one tensor per weight, or a `Change` of
          them.
        """
        return list(server.weights)

    def evaluated(self, weights: Tensors, memory: Memory) -> Tensors:
        """Returns the weights that are evaluated, in place of the model's weights.

        Args:
          weights: The trainable weights.
          memory: The server's memories of this method, by name.

        Returns:
          One tensor per weight.
        """
        return weights

    def own_model(self, weights: Tensors, memory: Memory) -> Tensors:
        """Returns the weights that a client is evaluated with, such as its own copy.

        Args:
          weights: The trainable weights of the server's model.
          memory: The client's memories of this method, by name; the first values for a
            client that never took part.

        Returns:
          One tensor per weight.
        """
        return weights


def keeps_at_clients(method: Method) -> bool:
    """Whether clients keep something of a method between their rounds."""
    return bool(method.client_memory) or overrides(method, "personal")


def overrides(method: Any, what: str) -> bool:
    """Whether a method, or a method class, overrides a hook of `Method`."""
    owner = method if isinstance(method, type) else type(method)
    return getattr(owner, what) is not getattr(Method, what)
