"""Central evaluation of a model's weights on a test set."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.data import digests
from tff_reg.lazy import np, tf, tff

learning_model = lazy.module("tff_reg.models.learning_model")


class CentralEvaluation:
    """Loss and accuracy of given weights over all examples of a test set.

    The model is built and its forward pass traced once; after that a call only
    assigns weights and runs. Batches are weighted by their number of examples, so
    both results are the exact means over the examples whatever the batch size.

    Attributes:
      preprocess_fn: That of the examples, or None.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        x: Any,
        y: Any,
        *,
        preprocess_fn: Optional[Callable[[Any], Any]] = None,
        batch_size: int = 256,
    ):
        """Builds the model.

        Args:
          model_fn: Makes a `tff.learning.models.VariableModel`, its loss the mean over
            the batch; for classification with predictions [batch, classes] that are
            logits or probabilities. It is run with `training=False`, so BatchNorm
            uses its moving statistics.
          x: Examples [n, ...], or a dict or tuple of such.
          y: Labels int [n]; for another loss, what the model's takes.
          preprocess_fn: Applied to a batch of `x` in TensorFlow, for instance the
            normalisation of images; None for none.
          batch_size: Examples at a time; it changes memory and speed only.

        Raises:
          ValueError: If there are no examples, or not one label an example.
        """
        self._x, self._y = _arrays(x), _arrays(y)
        counts = [len(each) for each in tf.nest.flatten([self._x, self._y])]
        if not counts[0] or len(set(counts)) > 1:
            raise ValueError(
                f"A test set needs one label an example and at least one of them;"
                f" this one has {counts[0]} examples and {counts[-1]} labels."
            )
        self.preprocess_fn = preprocess_fn
        self._batch_size = batch_size
        learning_model.check_model_fn(model_fn)
        self._model = model_fn()
        learning_model.check_model(self._model)
        self._weights = tff.learning.models.ModelWeights.from_model(self._model)

        @tf.function(
            input_signature=tf.nest.map_structure(
                lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype),
                [self._x, self._y],
            )
        )
        def batch_totals(x, y):
            features = x if preprocess_fn is None else preprocess_fn(x)
            batch = collections.OrderedDict(x=features, y=y)
            output = self._model.forward_pass(batch, training=False)
            correct = tf.zeros([], tf.int64)
            if self._has_accuracy:
                correct = learning_model.count_correct(y, output.predictions)
            return tf.cast(output.loss, tf.float64), correct

        self._has_accuracy = getattr(self._model, "has_accuracy", True)
        self._batch_totals = batch_totals.get_concrete_function()

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of the test examples, by its name among `digests.NAMES`."""
        return {digests.TEST_EXAMPLES: digests.of_examples(self._x, self._y)}

    @property
    def examples_dtype(self) -> str:
        """The data type of the examples as they are stored; of a single input."""
        return getattr(self._x, "dtype", np.dtype("float32")).name

    @property
    def num_weights(self) -> int:
        """How many trainable numbers the model has."""
        return sum(int(np.prod(v.shape)) for v in self._weights.trainable)

    @property
    def weight_names(self) -> tuple[list[str], list[str]]:
        """Unique names of the trainable and of the other variables, in order."""
        weights = self._weights
        seen = collections.Counter()

        def unique(variable) -> str:
            name = variable.name.split(":")[0]
            seen[name] += 1
            return name if seen[name] == 1 else f"{name}_{seen[name] - 1}"

        return (
            [unique(variable) for variable in weights.trainable],
            [unique(variable) for variable in weights.non_trainable],
        )

    def __call__(self, weights: Any) -> collections.OrderedDict[str, float]:
        """Evaluates the model with these weights.

        Args:
          weights: `tff.learning.models.ModelWeights` of the model, as
            `process.get_model_weights(state)` returns them.

        Returns:
          `loss` (float, mean over the examples) and `accuracy` (float, share of the
          examples whose most probable class is the label, 0 to 1), which only a
          classifier has. A prediction that is not a number is wrong.
        """
        weights.assign_weights_to(self._model)
        count = len(tf.nest.flatten(self._y)[0])
        loss, correct = 0.0, 0
        for start in range(0, count, self._batch_size):
            end = min(start + self._batch_size, count)
            x, y = tf.nest.map_structure(
                lambda array, rows=slice(start, end): array[rows], [self._x, self._y]
            )
            batch_loss, batch_correct = self._batch_totals(x, y)
            loss += float(batch_loss) * (end - start)
            correct += int(batch_correct)
        totals = collections.OrderedDict(loss=loss / count)
        if self._has_accuracy:
            totals["accuracy"] = correct / count
        return totals


def _arrays(values: Any) -> Any:
    """Arrays, in the dict or tuple in which they are given, if they are in one."""
    if isinstance(values, dict):
        pairs = ((name, np.asarray(values[name])) for name in sorted(values))
        return collections.OrderedDict(pairs)
    if isinstance(values, tuple):
        return tuple(np.asarray(each) for each in values)
    return np.asarray(values)
