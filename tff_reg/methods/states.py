"""What a method sees of a step, of a client and of the server; all that it sees.

The symbols are those of the MAN authors' code: w_i are a client's weights, cloud those
it received, n_i its number of examples, wt_i = n_i / mean(n), N the number of all
clients, K the local steps and lr0 the client learning rate before any decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tff_reg.lazy import tf
from tff_reg.models import forward as forward_lib

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

# TensorFlow's values have no types that a checker knows.
# One tensor, or variable, a trainable weight, in the weights' order.
Tensors = list[Any]
# What is remembered, sent or uploaded: structures of tensors by name.
Memory = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Term:
    """What a method adds to the loss of one batch.

    Attributes:
      raw: The term before its strength, a scalar.
      weighted: What is added to the loss, a scalar.
      measurements: Further scalars to report, by the names that the method lists in
        `measurement_names`.
    """

    raw: Any
    weighted: Any
    measurements: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


class Change(NamedTuple):
    """What became of a batch or a forward pass.

    Attributes:
      value: The new one.
      measurements: As in `Term`.
    """

    value: Any
    measurements: Mapping[str, Any]


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
    raise TypeError(
        "the step of a model that does not show its network has no other logits, "
        "reference models or paths: the method needs `needs_network = True`."
    )


@dataclasses.dataclass(frozen=True)
class Step:
    """One local training step, as a term sees it.

    Attributes:
      network: The local network; None if the model does not show it.
      outputs: The local network's for the batch: the one forward pass that all terms
        share; None likewise.
      features: The batch's input, float [batch, ...].
      labels: int [batch]; where examples were mixed, of the first of the two.
      task_loss: Mean task loss of the batch, a scalar.
      weights: The local trainable weights.
      global_weights: The received trainable weights, in the same order; constants.
      compute_loss: The task loss of other logits for the same batch, a function of
        float [batch, classes].
      outputs_of: Function of the name of one of the method's `reference_models` giving
        that model's outputs for the batch, as constants, computed once a step.
      classify_from: Function of (model, features) giving the logits of features of
        several blocks, as `BlockModel.classify_from`, where the model is one of the
        method's reference models, whose weights are constants, or LOCAL; the features
        are differentiated.
      class_counts: As in `Local`.
      key: int64 [2], for what is random in this step, the method's own.
    """

    network: BlockModel
    outputs: forward_lib.Outputs
    features: Any = None
    labels: Any = None
    task_loss: Any = None
    weights: Sequence[Any] = ()
    global_weights: Sequence[Any] = ()
    compute_loss: Callable[[Any], Any] = _without_network
    outputs_of: Callable[[str], forward_lib.Outputs] = _without_network
    classify_from: Callable[[str, Sequence[Any]], Any] = _without_network
    class_counts: Any = None
    key: Any = None


@dataclasses.dataclass(frozen=True)
class Local:
    """Where a client stands.

    Attributes:
      weights: w, the trainable weights: variables.
      cloud: The received trainable weights.
      in_head: Whether each weight is of the last layer, if the model shows its network.
      client: The client's memories by name, lists of tensors.
      server: The memories that the server sent, by name.
      state: What the method keeps during the client's training: at first what `begin`
        gave.
      class_counts: int32 [classes], how many examples of each class the client has;
        None unless some method of the sum `needs_class_counts`.
      relative_size: wt_i, a scalar.
      relative_weight: wt_i where clients weigh by their examples, else 1, a scalar.
      num_steps: Steps taken, an int32 scalar.
      num_examples: Examples trained on, counted in every epoch, an int64 scalar.
      weighs_by_examples: Whether clients weigh by their examples.
      hparams: The client optimiser's of this round by name, scalars: `learning_rate`
        after its decay, `momentum` if there is one.
      local_steps: K, a scalar: the population's, or the steps taken, int32.
      step_size: K lr0, a scalar; only at the end of training.
      scaled_gradient_sum: The learning rate after its decay times the sum of the
        gradients that the optimiser followed, one tensor a weight, at the end of
        training; None with SGD without momentum, with which it is -`moved`, and unless
        some method of the sum `needs_gradients`.
    """

    weights: Sequence[Any]
    cloud: Sequence[Any]
    client: Mapping[str, Sequence[Any]]
    server: Mapping[str, Sequence[Any]]
    state: Any = ()
    in_head: Sequence[bool] = ()
    class_counts: Any = None
    relative_size: Any = None
    relative_weight: Any = None
    num_steps: Any = None
    num_examples: Any = None
    weighs_by_examples: bool = True
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    local_steps: Any = None
    step_size: Any = None
    scaled_gradient_sum: Any = None

    def with_state(self, state: Any) -> Local:
        """The same with another `state`."""
        return dataclasses.replace(self, state=state)

    @property
    def moved(self) -> Tensors:
        """w_i - cloud, one tensor a weight."""
        return [w - c for w, c in zip(self.weights, self.cloud)]

    @property
    def taken(self) -> Tensors:
        """-`moved` as SGD without momentum would have it of the same gradients.

        One tensor a weight; over `step_size` it is the gradients' mean. Only for a
        method that `needs_gradients`, at the end of training.
        """
        if self.scaled_gradient_sum is not None:
            return self.scaled_gradient_sum
        return [c - w for w, c in zip(self.weights, self.cloud)]

    @property
    def weight(self) -> Any:
        """What the client weighs in the mean of the cohort, at the end of training."""
        dtype = self.cloud[0].dtype
        if self.weighs_by_examples:
            return tf.cast(self.num_examples, dtype)
        return tf.ones([], dtype)


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the server stands at the end of a round.

    Attributes:
      before: The trainable weights of the round's global model.
      weights: Those that the server optimiser made of them.
      memory: What the server remembers, by name.
      moved: The sum over the clients that trained of w_i - cloud, one tensor a weight:
        the number of them times the mean, in which they weigh as they do in the model
        and each has the scale that a method of the sum gives its update.
      uploads: The sums of what clients uploaded, by name.
      count: How many clients trained, an int32 scalar above 0.
      num_clients: N.
    """

    before: Sequence[Any]
    weights: Sequence[Any]
    memory: Mapping[str, Any]
    moved: Sequence[Any]
    uploads: Mapping[str, Any]
    count: Any
    num_clients: int

    @property
    def mean_moved(self) -> Tensors:
        """The mean over the clients that trained of w_i - cloud."""
        return [moved / tf.cast(self.count, moved.dtype) for moved in self.moved]
