"""What a regulariser is: a pure function of one local training step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, ClassVar, Mapping, NamedTuple, Sequence

from tff_reg.lazy import tf

LOCAL = "local"
# The models beside the local one that a regulariser may read.
GLOBAL = "global"  # The one that the round started from.
PREVIOUS = "previous"  # The client's own at the end of the last round it was in.
AVERAGED = "averaged"  # The mean of the last rounds' global models.


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


@dataclasses.dataclass(frozen=True)
class Step:
    """One local training step, as a regulariser sees it.

    Attributes:
      network: The local `tff_reg.models.BlockModel`.
      outputs: The local network's `Outputs` for the batch: the one forward pass
        that all regularisers share.
      features: The batch's input, float [batch, ...].
      labels: int [batch]; where examples were mixed, of the first of the two.
      task_loss: Mean task loss of the batch, a scalar.
      weights: The local trainable weights.
      global_weights: The round's global trainable weights, in the same order;
        constants.
      compute_loss: The task loss of other logits for the same batch, a function of
        float [batch, classes].
      outputs_of: Function of GLOBAL, PREVIOUS or AVERAGED giving that model's `Outputs`
        for the batch, as constants, computed once a step. Only for those among the
        regulariser's `reference_models`.
      classify_from: Function of (model, features) giving the logits of features of
        several blocks, as `BlockModel.classify_from`, where the model is one of the
        regulariser's reference models, whose weights are constants, or LOCAL; the
        features are differentiated.
      key: int64 [2], for what is random in this step, the regulariser's own.
    """

    network: Any
    outputs: Any
    features: Any = None
    labels: Any = None
    task_loss: Any = None
    weights: Sequence[Any] = ()
    global_weights: Sequence[Any] = ()
    compute_loss: Callable[[Any], Any] = None
    outputs_of: Callable[[str], Any] = None
    classify_from: Callable[[str, Sequence[Any]], Any] = None
    key: Any = None


class Regularizer:
    """Base class: a frozen dataclass of strengths with the term as a method.

    A sub-class is a frozen dataclass. Most add a term: their first field, `strength`,
    multiplies it. With strength 0 the term is measured and reported but takes no part
    in training, which is then FedAvg's to the bit. Others change the model, the batch
    or the forward pass instead (`has_term` is False): they override `adapt_network`,
    `change_batch` or `change_pass`.

    Attributes:
      name: What the method is called on the command line and in metrics.
      measurement_names: Names of the further scalars that it reports.
      has_term: Whether it adds a term to the loss.
      needs_network: Whether it looks inside the model, which must then be a
        `tff_reg.models.LearningModel` and not any TFF model.
      records_activations: Whether it reads `outputs.activations`.
      reference_models: Which of GLOBAL, PREVIOUS and AVERAGED it reads. With PREVIOUS,
        clients have state.
      averaged_rounds: How many global models AVERAGED is the mean of, this round's
        among them.
      is_random: Whether it draws random numbers.
      mixes_examples: Whether `change_batch` gives examples more than one label.
      needs_one_label: Whether it needs examples to have one label.
    """

    name: ClassVar[str]
    measurement_names: ClassVar[tuple[str, ...]] = ()
    has_term: ClassVar[bool] = True
    needs_network: ClassVar[bool] = True
    records_activations: ClassVar[bool] = False
    reference_models: ClassVar[tuple[str, ...]] = ()
    averaged_rounds: int = 0
    is_random: ClassVar[bool] = False
    mixes_examples: ClassVar[bool] = False
    needs_one_label: ClassVar[bool] = False
    strength: float

    def __call__(self, step: Step) -> Term:
        """Computes the term, if it has one.

        Args:
          step: The step; all tensors of it are in the model's data type.

        Returns:
          The `Term`, differentiable with respect to the local weights.
        """
        raise NotImplementedError

    def adapt_network(self, network) -> None:
        """Changes a network that was just made, before it is used.

        Args:
          network: The `tff_reg.models.BlockModel`.

        Raises:
          ValueError: If the network cannot be changed so.
        """

    def change_batch(self, batch: Batch, key) -> Change:
        """Changes the batch before the forward pass.

        Args:
          batch: The batch.
          key: int64 [2] if it `is_random`, else None.

        Returns:
          The new `Batch` and what was measured.
        """
        return Change(batch, {})

    def change_pass(self, forward, network, key) -> Change:
        """Changes the settings of the local forward pass.

        Args:
          forward: The `tff_reg.models.ForwardPass`.
          network: The local `BlockModel`.
          key: int64 [2] if it `is_random`, else None.

        Returns:
          The new `ForwardPass` and what was measured.
        """
        return Change(forward, {})

    def check_network(self, network) -> None:
        """Checks, before anything is traced, that a network has what the term needs.

        Args:
          network: The `tff_reg.models.BlockModel`.

        Raises:
          ValueError: If it does not.
        """


class IncompatibleMethodsError(ValueError):
    """A sum of methods that makes no sense."""


def check_sum(regularizers: Sequence[Any]) -> None:
    """Checks that regularisers, or their classes, can be added up.

    Args:
      regularizers: The terms of the sum.

    Raises:
      IncompatibleMethodsError: If one stands there twice, two mix the examples, or
        one needs what another takes away.
    """
    names = [r.name for r in regularizers]
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleMethodsError(
                f"A regulariser may stand in a sum once, but {name} stands there "
                f"{names.count(name)} times."
            )
    mixing = [r.name for r in regularizers if r.mixes_examples]
    if len(mixing) > 1:
        raise IncompatibleMethodsError(
            f"{' and '.join(mixing)} each replace the batch by mixed examples, and one "
            "would mix what the other has mixed: leave one out."
        )
    for regularizer in regularizers:
        if mixing and regularizer.needs_one_label:
            raise IncompatibleMethodsError(
                f"{regularizer.name} needs the one true class of every example, and "
                f"{mixing[0]} gives each example two: leave one of them out."
            )


def check_has_network(regularizer: Regularizer, model) -> None:
    """Raises a TypeError if a regulariser needs the network and the model has none.

    Args:
      regularizer: The regulariser.
      model: A `tff.learning.models.VariableModel`.
    """
    if regularizer.needs_network and not hasattr(model, "network"):
        raise TypeError(
            f"{regularizer.name} looks inside the network: model_fn must return a "
            f"tff_reg.models.LearningModel, but returned {type(model).__name__}. See "
            "tff_reg.models.from_keras_blocks."
        )


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


def check_between(method: str, low: float, high: float, **values: float) -> None:
    """Raises a ValueError unless every value is in (low, high].

    Args:
      method: The method's name, for the message.
      low: The bound that is excluded.
      high: The bound that is included.
      **values: The values by their names.
    """
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low < value <= high:
            raise ValueError(
                f"{method}: {name} must be above {low} and at most {high}, but is "
                f"{value!r}."
            )


def check_count(method: str, **values: int) -> None:
    """Raises a ValueError unless every value is a whole number from 1.

    Args:
      method: The method's name, for the message.
      **values: The values by their names.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{method}: {name} must be a whole number of at least 1, but is "
                f"{value!r}."
            )


def check_choice(method: str, choices: Sequence[str], **values: str) -> None:
    """Raises a ValueError unless every value is one of the choices.

    Args:
      method: The method's name, for the message.
      choices: What a value may be.
      **values: The values by their names.
    """
    for name, value in values.items():
        if value not in choices:
            raise ValueError(
                f"{method}: {name} must be one of {', '.join(choices)}, but is "
                f"{value!r}."
            )
