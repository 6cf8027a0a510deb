"""What a regulariser is: a pure function of one local training step."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, ClassVar, Mapping, Sequence

from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Term:
    """What a regulariser adds to the loss of one batch.

    Attributes:
      raw: The term before its strength, a scalar.
      weighted: What is added to the loss, a scalar.
      measurements: Further scalars to report, by the names that the regulariser
        lists in `measurement_names`.
    """

    raw: "tf.Tensor"
    weighted: "tf.Tensor"
    measurements: Mapping[str, "tf.Tensor"] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Step:
    """One local training step, as a regulariser sees it.

    Attributes:
      network: The local `tff_reg.models.BlockModel`.
      outputs: The local network's `Outputs` for the batch: the one forward pass
        that all regularisers share.
      features: The batch's input, float [batch, ...].
      labels: int [batch].
      task_loss: Mean task loss of the batch, a scalar.
      weights: The local trainable weights.
      global_weights: The round's global trainable weights, in the same order;
        constants.
      loss_fn: The task loss, a function of (labels, logits).
      compute_global_outputs: Runs the global model on the batch, as constants.
      run_global_from: Runs the global model from a block on, as a function of (block,
        feature) giving `Outputs`; its weights are constants, the feature is
        differentiated. Only for regularisers with `needs_global_model`.
      compute_key: Makes the step's key.
    """

    network: Any
    outputs: Any
    features: Any
    labels: Any
    task_loss: Any
    weights: Sequence[Any]
    global_weights: Sequence[Any]
    compute_global_outputs: Callable[[], Any]
    compute_key: Callable[[], Any]
    loss_fn: Callable = None
    run_global_from: Callable = None

    @functools.cached_property
    def global_outputs(self):
        """The global model's `Outputs` for the batch, run once if asked for.

        Only for regularisers with `needs_global_model`.
        """
        return self.compute_global_outputs()

    @functools.cached_property
    def key(self):
        """int64 [2], for what is random in this step; made once if asked for."""
        return self.compute_key()


class Regularizer:
    """Base class: a frozen dataclass of strengths with the term as a method.

    A sub-class is a frozen dataclass whose first field, `strength`, multiplies the
    term. With strength 0 the term is measured and reported but takes no part in
    training, which is then FedAvg's to the bit.

    Attributes:
      name: What the method is called on the command line and in metrics.
      measurement_names: Names of the further scalars that it reports.
      needs_network: Whether it looks inside the model, which must then be a
        `tff_reg.models.LearningModel` and not any TFF model.
      records_activations: Whether it reads `outputs.activations`.
      needs_global_model: Whether it reads `Step.global_outputs`.
    """

    name: ClassVar[str]
    measurement_names: ClassVar[tuple[str, ...]] = ()
    needs_network: ClassVar[bool] = True
    records_activations: ClassVar[bool] = False
    needs_global_model: ClassVar[bool] = False
    strength: float

    def __call__(self, step: Step) -> Term:
        """Computes the term.

        Args:
          step: The step; all tensors of it are in the model's data type.

        Returns:
          The `Term`, differentiable with respect to the local weights.
        """
        raise NotImplementedError

    def check_network(self, network) -> None:
        """Checks, before anything is traced, that a network has what the term needs.

        Args:
          network: The `tff_reg.models.BlockModel`.

        Raises:
          ValueError: If it does not.
        """


def check_nonnegative(method: str, **strengths: float) -> None:
    """Raises a ValueError unless every strength is a finite number from 0.

    Args:
      method: The method's name, for the message.
      **strengths: The values by their names.
    """
    for name, value in strengths.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise ValueError(
                f"{method}: {name} must be a finite number that is not negative, but "
                f"is {value!r}."
            )
