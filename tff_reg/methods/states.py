"""The arguments and results of a method's hooks: `Step`, `Local`, `Server` and others.

The symbols in the methods' files are those of the MAN authors' code: w_i are a client's
weights, wg the received weights, a_i its first weights, n_i its number of examples,
wt_i = n_i / mean(n), N the number of all clients, K the local steps and lr0 the client
learning rate before any decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tff_reg.lazy import tf
from tff_reg.models import forward as forward_lib

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

# Type checkers know no types of TensorFlow's values, hence Any.
# One tensor or variable per trainable weight, in the weights' order.
Tensors = list[Any]
# Memories or uploads: structures of tensors by name.
Memory = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Term:
    """The term of a method in the loss of one batch.

    Attributes:
      raw: The reported term, without its hyperparameter, a scalar.
      weighted: The term in the loss, a scalar; by default `raw`.
      measurements: Further scalars to report, by name.
      kept: Tensors for `keep`, by name; see `Local.kept`.
    """

    raw: Any
    weighted: Any = None
    measurements: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def __post_init__(self):
        if self.weighted is None:
            object.__setattr__(self, "weighted", self.raw)


class Change(NamedTuple):
    """The value of a hook with measurements beside it.

    Attributes:
      value: The changed `Batch` or `ForwardPass`, the gradient, the new memories or the
        new model.
      measurements: As in `Term`.
      kept: As in `Term`; from `gradient` alone.
    """

    value: Any
    measurements: Mapping[str, Any] = {}
    kept: Mapping[str, Any] = {}


class Batch(NamedTuple):
    """The examples of one step.

    Attributes:
      features: float [batch, ...].
      targets: (labels int [batch], weight scalar) pairs; the task loss is the weighted
        sum of their losses. One pair of weight 1, unless examples were mixed.
    """

    features: Any
    targets: Sequence[tuple[Any, Any]]


def _without_network(*_: Any) -> Any:
    raise TypeError("the step of a model that does not show its network has none.")


@dataclasses.dataclass(frozen=True)
class Finished:
    """The result of a client's round, beside its weights.

    Attributes:
      memory: The client's new memories by name; memories left out do not change.
      upload: Structures of tensors by the names of the method's `uploads`. The server
        gets their sums over the clients that trained.
      scale: Factor of the client's update, a scalar in the weights' data type; ignored
        for a client without steps.
      share: Scalars in the weights' data type by name, for `weigh`.
    """

    memory: Memory = dataclasses.field(default_factory=dict[str, Any])
    upload: Memory = dataclasses.field(default_factory=dict[str, Any])
    scale: Any = None
    share: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True)
class Step:
    """One local training step, as the hook `term` sees it.

    With a model other than a `tff_reg.models.LearningModel` only `task_loss`,
    `weights`, `start`, `global_weights` and `local` are set.

    Attributes:
      network: The local network, for a further pass: `network(x, forward)`, in
        evaluation mode with `models.ForwardPass()`.
      outputs: The local network's outputs for the batch: the one forward pass that all
        terms share.
      features: The batch's input, float [batch, ...].
      labels: int [batch]; for a mixed example the label of its first part.
      task_loss: Mean task loss of the batch, a scalar.
      weights: The local trainable weights.
      start: The trainable weights that the client began with, in the same order;
        constants.
      global_weights: The received trainable weights, constants; equal to `start`,
        unless a method overrides the hook `start`.
      compute_loss: Function from logits, float [batch, classes], to their task loss on
        the same batch.
      outputs_of: Function from a model's name to the model's outputs for the batch, as
        constants, computed once per step: "global" for the received model,
        "evaluated" for it in evaluation mode, or the name of a client memory, or of a
        server memory that was sent, in the weights' shapes.
      classify_from: Function of (model, features) giving the logits of features of
        several blocks, as `BlockModel.classify_from`. The model is "local" or a name
        that `outputs_of` takes; weights of the latter are constants, but gradients flow
        into the features.
      class_counts: As in `Local`.
      key: int64 [2], this method's key for random numbers in this step.
      local: The client: its memories, state, round and learning rate.
    """

    network: BlockModel
    outputs: forward_lib.Outputs
    features: Any = None
    labels: Any = None
    task_loss: Any = None
    weights: Sequence[Any] = ()
    start: Sequence[Any] = ()
    global_weights: Sequence[Any] = ()
    compute_loss: Callable[[Any], Any] = _without_network
    outputs_of: Callable[[str], forward_lib.Outputs] = _without_network
    classify_from: Callable[[str, Sequence[Any]], Any] = _without_network
    class_counts: Any = None
    key: Any = None
    local: Any = None


@dataclasses.dataclass(frozen=True)
class Local:
    """A client during its round, as one method sees it.

    Attributes:
      weights: w_i, the trainable weights: variables.
      start: a_i, the trainable weights that the client began with.
      global_weights: wg, the received trainable weights; equal to `start`, unless a
        method overrides the hook `start`.
      memory: The client's memories of this method, by name.
      server_memory: The server's memories of this method that were sent, by name.
      state: The method's state during the client's training: the result of `begin`,
        after the first step the result of `keep`.
      kept: What `term` and `gradient` gave for `keep` in this step, by name.
      round_num: The round, an int32 scalar, from 1.
      in_head: Whether each weight is in the last layer, if the model shows its network.
      output_axes: The axes of each weight's outputs, if the model shows its network.
      class_counts: int32 [classes], the client's number of examples per class.
      relative_size: wt_i, a scalar.
      relative_weight: wt_i, or 1 if all clients weigh alike, a scalar.
      num_steps: Steps taken, an int32 scalar.
      total_steps: Steps that the client takes in the round, an int32 scalar; needs
        whole-client data.
      epoch: The epoch of the next step, an int32 scalar from 0; needs whole-client
        data.
      begins_epoch: Whether the next step is the first of an epoch, a bool scalar; of
        batched data, which show no epochs, whether it is the first of all.
      num_examples: Examples trained on, counted in every epoch, an int64 scalar.
      hparams: The client optimiser's hyperparameters by name, scalars: `learning_rate`
        with this round's decay, `momentum` if there is one.
      local_steps: K, a scalar: the population's `local_steps`, else `num_steps`.
      step_size: K lr0, a scalar, lr0 being the learning rate before any decay (of a
        list of rates the highest so far); only at the end of training.
      weight: The client's weight in the cohort's mean, a scalar in the weights' data
        type; only at the end of training.
      scaled_gradient_sum: The decayed learning rate times the sum of the gradients that
        the optimiser used, one tensor per weight, at the end of training; None for SGD
        without momentum, where it equals -`delta`.
      uncorrected: The decayed learning rate times the sum of the gradients before any
        correction and clipping, one tensor per weight, at the end of training.
      has_ended: Whether the training has ended.
    """

    weights: Sequence[Any]
    start: Sequence[Any]
    memory: Mapping[str, Any]
    server_memory: Mapping[str, Any]
    global_weights: Sequence[Any] = ()
    state: Any = ()
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    round_num: Any = None
    in_head: Sequence[bool] = ()
    output_axes: Sequence[Sequence[int]] = ()
    class_counts: Any = None
    relative_size: Any = None
    relative_weight: Any = None
    num_steps: Any = None
    total_steps: Any = None
    epoch: Any = None
    begins_epoch: Any = None
    num_examples: Any = None
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    local_steps: Any = None
    step_size: Any = None
    weight: Any = None
    scaled_gradient_sum: Any = None
    uncorrected: Any = None
    has_ended: bool = True

    @property
    def delta(self) -> Tensors:
        """w_i - a_i, one tensor per weight."""
        return [w - a for w, a in zip(self.weights, self.start)]

    @property
    def taken(self) -> Tensors:
        """The learning rate times the sum of the *corrected* gradients of the round.

        One tensor per weight; divided by `step_size` it estimates their mean, that of
        the loss's gradients plus what the methods' corrections added. Only at the end
        of training.
        """
        if self.scaled_gradient_sum is not None:
            return self.scaled_gradient_sum
        return [a - w for w, a in zip(self.weights, self.start)]


@dataclasses.dataclass(frozen=True)
class Server:
    """The server at the end of a round, as one method sees it.

    Attributes:
      before: The trainable weights of the round's global model.
      weights: The trainable weights after the server optimiser's step, and after
        `next_model` of the methods before this one.
      memory: The server's memories of this method, by name; in `next_model` the new
        ones.
      old_memory: The memories before `update_memory`.
      delta_sum: The number of clients that trained times the mean of their w_i - a_i,
        one tensor per weight. The mean uses the clients' weights in the average, and
        any `scale` that a method gives to updates.
      uploads: The sums of the method's uploads, by name.
      count: The number of clients that trained, an int32 scalar above 0.
      num_clients: N.
    """

    before: Sequence[Any]
    weights: Sequence[Any]
    memory: Mapping[str, Any]
    old_memory: Mapping[str, Any]
    delta_sum: Sequence[Any]
    uploads: Mapping[str, Any]
    count: Any
    num_clients: int

    @property
    def mean_delta(self) -> Tensors:
        """The mean of w_i - a_i over the clients that trained, as in `delta_sum`."""
        return self.mean_of(self.delta_sum)

    def mean_of(self, sums: Sequence[Any]) -> Tensors:
        """Divides sums over the clients that trained by their number."""
        return [total / tf.cast(self.count, total.dtype) for total in sums]
