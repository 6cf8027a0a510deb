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
          model_fn: Makes a `tff.learning.models.VariableModel` for classification
            (its predictions are logits or probabilities [batch, classes], its loss
            the mean over the batch). It is run with `training=False`, so BatchNorm
            uses its moving statistics.
          x: Examples [n, ...].
          y: Labels int [n].
          preprocess_fn: Applied to a batch of `x` in TensorFlow, for instance the
            normalisation of images; None for none.
          batch_size: Examples at a time; it changes memory and speed only.

        Raises:
          ValueError: If there are no examples, or not one label an example.
        """
        if not len(x) or len(x) != len(y):
            raise ValueError(
                f"A test set needs one label an example and at least one of them;"
                f" this one has {len(x)} examples and {len(y)} labels."
            )
        self._x, self._y = np.asarray(x), np.asarray(y)
        self._batch_size = batch_size
        learning_model.check_model_fn(model_fn)
        self._model = model_fn()
        learning_model.check_model(self._model)
        self._weights = tff.learning.models.ModelWeights.from_model(self._model)

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, *self._x.shape[1:]], self._x.dtype),
                tf.TensorSpec([None, *self._y.shape[1:]], self._y.dtype),
            ]
        )
        def batch_totals(x, y):
            features = x if preprocess_fn is None else preprocess_fn(x)
            batch = collections.OrderedDict(x=features, y=y)
            output = self._model.forward_pass(batch, training=False)
            correct = learning_model.count_correct(y, output.predictions)
            return tf.cast(output.loss, tf.float64), correct

        # Traced now: Keras layers made in eager mode cannot be called any more once
        # others of their class were made in a graph, as TFF does for a process.
        self._batch_totals = batch_totals.get_concrete_function()

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of the test examples, by its name among `digests.NAMES`."""
        return {digests.TEST_EXAMPLES: digests.of_examples(self._x, self._y)}

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
          examples whose most probable class is the label, 0 to 1). A prediction that
          is not a number is wrong.
        """
        weights.assign_weights_to(self._model)
        count = len(self._x)
        loss, correct = 0.0, 0
        for start in range(0, count, self._batch_size):
            x = self._x[start : start + self._batch_size]
            y = self._y[start : start + self._batch_size]
            batch_loss, batch_correct = self._batch_totals(x, y)
            loss += float(batch_loss) * len(x)
            correct += int(batch_correct)
        return collections.OrderedDict(loss=loss / count, accuracy=correct / count)
