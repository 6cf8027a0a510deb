"""Central evaluation of a model's weights on a test set."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.data import digests, dtypes, rows as rows_lib
from tff_reg.lazy import np, tf, tff

block_model = lazy.module("tff_reg.models.block_model")
learning_model = lazy.module("tff_reg.models.learning_model")


# Keras metrics that take one-hot labels, each with a sparse counterpart.
_OF_ONE_HOT = (
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "TopKCategoricalAccuracy",
)


class CentralEvaluation:
    """Loss and accuracy of given weights over all examples of a test set.

        evaluate = experiment.CentralEvaluation(
            process.model_fn, x_test, y_test,
            metrics={"confidence": lambda y, p: p.max(axis=-1)})

    The model is built and its forward pass traced once; after that a call only
    assigns weights and runs. Batches are weighted by their number of examples, so
    both results are the exact means over the examples for any batch size. Only a loss
    that is no mean over a batch's examples, such as one of Keras with
    reduction="sum", depends on the batch size.

    Attributes:
      preprocess_fn: The preprocessing of the examples, or None.
      metrics: The user's own metrics, by name.
      subsets: The subsets of the test examples whose accuracies are measured, too.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        x: Any,
        y: Any,
        *,
        preprocess_fn: Optional[Callable[[Any], Any]] = None,
        batch_size: int = 256,
        metrics: Mapping[str, Any] = {},
        subsets: Mapping[str, Any] = {},
    ):
        """Builds the model.

        Args:
          model_fn: Makes a `tff.learning.models.VariableModel`, its loss the mean over
            the batch; for classification with predictions [batch, classes] that are
            logits or probabilities. It is run with `training=False`, so BatchNorm
            uses its moving statistics.
          x: Examples [n, ...], or a dict or tuple of such.
          y: Labels int [n]; for another loss, the targets that the loss takes.
          preprocess_fn: Applied to a batch of `x` in TensorFlow, for instance the
            normalisation of images; None for none.
          batch_size: Examples per batch, which changes memory and speed only.
          metrics: Further metrics by name. Each is a Keras metric, or a function called
            with the labels [n] and the model's predictions [n, ...] of all examples,
            NumPy arrays; it returns a number, or one number per example, which are
            averaged. Predictions are what the model returns: logits, of a Keras model
            maybe probabilities.
          subsets: Masks of test examples, bool [n], by name, such as each domain's; the
            accuracy on each is measured, too.

        Raises:
          TypeError: If a metric is neither.
          ValueError: If there are no examples, not one label per example, or a metric
            called loss or accuracy.
        """
        self.metrics, self.subsets = _checked(metrics), dict(subsets)
        self._x, self._y = _arrays(x), _arrays(y)
        check_labels(self.metrics, self._y)
        for each in tf.nest.flatten(self._x):
            dtypes.check_finite(each, "the test set")
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

        self._has_accuracy = getattr(self._model, "has_accuracy", True)
        self._batch_totals = self._traced()

    def _traced(self) -> Any:
        """Traces the function of a batch: loss, which are right, maybe predictions."""
        is_ours = hasattr(self._model, "network")
        preprocess = self.preprocess_fn and dtypes.converted(self.preprocess_fn)
        spec = tf.nest.map_structure(_batch_spec, [self._x, self._y])

        @functools.partial(tf.function, input_signature=spec, autograph=not is_ours)
        def batch_totals(x, y):
            features = x if preprocess is None else preprocess(x)
            batch = collections.OrderedDict(x=features, y=y)
            output = self._model.forward_pass(batch, training=False)
            correct = tf.zeros([0], tf.bool)
            self._has_accuracy &= _are_classes(self._model, y, output.predictions)
            if self._has_accuracy:
                # The labels of some data sets are [n, 1].
                labels = tf.reshape(y, tf.shape(output.predictions)[:-1])
                correct = learning_model.are_correct(labels, output.predictions)
            predictions = output.predictions if self.metrics else ()
            return tf.cast(output.loss, tf.float64), correct, predictions

        return batch_totals.get_concrete_function()

    @property
    def columns(self) -> list[str]:
        """The names of what is measured."""
        accuracies = ["accuracy", *(f"{name}/accuracy" for name in self.subsets)]
        return ["loss", *accuracies[: None if self._has_accuracy else 0], *self.metrics]

    @property
    def examples(self) -> tuple[Any, Any]:
        """The test examples: x as stored, and y."""
        return self._x, self._y

    @functools.cached_property
    def _outcomes_of_batch(self) -> Any:
        """The function of a batch: predicted classes, cross-entropies."""
        preprocess = self.preprocess_fn and dtypes.converted(self.preprocess_fn)

        @functools.partial(tf.function, autograph=False, reduce_retracing=True)
        def outcomes(x, y):
            forward = block_model.ForwardPass(training=False)
            features = x if preprocess is None else preprocess(x)
            outputs = self._model.network(features, forward)
            is_known = ~tf.reduce_any(tf.math.is_nan(outputs.predictions), -1)
            predicted = tf.argmax(outputs.predictions, -1, output_type=tf.int32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs.logits)
            return tf.where(is_known, predicted, -1), losses

        return outcomes

    def outcomes(self, weights: Any, x: Any, y: Any, rows: Any) -> tuple[Any, Any]:
        """Returns a classifier's predictions and cross-entropies, one per example.

        Args:
          weights: The weights.
          x: Examples like those of the test set.
          y: Their classes, int32 [n].
          rows: The rows of `x` and `y` that are tested, int [m].

        Returns:
          int32 [m], -1 where an output is NaN, and float32 [m].
        """
        weights.assign_weights_to(self._model)
        starts = range(0, len(rows), self._batch_size)
        parts = [rows[start : start + self._batch_size] for start in starts]
        found = [
            self._outcomes_of_batch(rows_lib.take(x, part), y[part]) for part in parts
        ]
        predicted, losses = (np.concatenate(each) for each in zip(*found))
        return predicted, losses

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the test examples and of their subsets."""
        return digests.of_tests(self._x, self._y, self.subsets)

    @property
    def examples_spec(self) -> Any:
        """The `tf.TensorSpec`s of the examples as they are stored."""
        return tf.nest.map_structure(_batch_spec, self._x)

    @property
    def num_weights(self) -> int:
        """The number of trainable parameters."""
        return sum(int(np.prod(v.shape)) for v in self._weights.trainable)

    @property
    def frozen(self) -> Mapping[str, Any]:
        """The network's constants by name, which are weights that nobody trains."""
        return getattr(getattr(self._model, "network", None), "frozen", {})

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
        """Evaluates the model with these weights."""
        weights.assign_weights_to(self._model)
        count = len(tf.nest.flatten(self._y)[0])
        loss, correct, predictions = 0.0, [], []
        for start in range(0, count, self._batch_size):
            end = min(start + self._batch_size, count)
            x, y = tf.nest.map_structure(
                lambda array, rows=slice(start, end): array[rows], [self._x, self._y]
            )
            batch_loss, batch_correct, batch_predictions = self._batch_totals(x, y)
            predictions.append(batch_predictions)
            loss += float(batch_loss) * (end - start)
            correct.append(batch_correct)
        totals = collections.OrderedDict(loss=loss / count)
        if self._has_accuracy:
            are_correct = np.concatenate(correct)
            totals["accuracy"] = int(np.count_nonzero(are_correct)) / count
            for name, mask in self.subsets.items():
                totals[f"{name}/accuracy"] = float(are_correct[mask].mean())
        if self.metrics:
            whole = tf.nest.map_structure(
                lambda *parts: np.concatenate(parts), *predictions
            )
            given = tf.nest.map_structure(_read_only, [self._y, whole])
            for name, metric in self.metrics.items():
                try:
                    totals[name] = _value(name, metric, *given)
                except Exception as error:  # A user's function may raise anything.
                    why = f"{type(error).__name__}: {error}"
                    raise ValueError(f"The metric {name!r} failed: {why}") from error
        return totals


def subsets_of(task: Any, has_tail: bool) -> dict[str, Any]:
    """Returns the subsets of a task's test examples, each a mask, bool [n].

    They are the domains and, in a long tail, the classes of which the clients train on
    many examples (more than 100), medium (20 to 100) or few (less than 20): Z. Liu et
    al., "Large-Scale Long-Tailed Recognition in an Open World", CVPR 2019, Section 5.

    Args:
      task: The task.
      has_tail: Whether classes are told apart by the clients' training examples.
    """
    found = {}
    if getattr(task, "test_domains", None) is not None:
        for number, name in enumerate(task.domain_names):
            found[f"domain/{name}"] = task.test_domains == number
    if has_tail:
        labels, clients = task.test_arrays()[1], task.client_data
        own = np.concatenate([*map(clients.client_positions, clients.client_ids)])
        trained = task.train_labels[np.unique(own)]
        sizes = np.bincount(trained, minlength=1 + labels.max())[labels]
        found["many_shot"] = sizes > 100
        found["medium_shot"] = (sizes >= 20) & (sizes <= 100)
        found["few_shot"] = sizes < 20
    return {name: mask for name, mask in found.items() if mask.any()}


def _read_only(array: Any) -> Any:
    """Returns a view of an array that a metric cannot change."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _are_classes(model: Any, labels: Any, predictions: Any) -> bool:
    """Whether labels are class numbers and predictions one number per class."""
    if hasattr(model, "has_accuracy"):
        return True  # It has said so itself.
    if tf.nest.is_nested(predictions) or tf.nest.is_nested(labels):
        return False
    shape = predictions.shape
    several = shape.rank is None or (shape.rank == 2 and shape[-1] != 1)
    are_flat = labels.shape.rank in (None, 1) or labels.shape[1:] == (1,)
    return several and labels.dtype.is_integer and are_flat


def _checked(metrics: Any) -> dict[str, Any]:
    """Returns the user's metrics by name; refuses other values."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics are {metrics!r}; give a dict of them by name.")
    for name, metric in dict(metrics).items():
        if name in ("loss", "accuracy"):
            raise ValueError(
                f"A metric is called {name!r}, which is evaluated in any case; give it"
                " another name."
            )
        if isinstance(metric, type) or not callable(metric):
            raise TypeError(
                f"The metric {name!r} is {metric!r}; give a function of (labels,"
                " predictions) or a Keras metric, such as"
                " keras.metrics.SparseTopKCategoricalAccuracy(5)."
            )
    return dict(metrics)


def check_labels(metrics: Mapping[str, Any], labels: Any) -> None:
    """Refuses metrics of one-hot labels where the labels are class numbers."""
    if tf.nest.is_nested(labels) or labels.ndim != 1:
        return
    for name, metric in metrics.items():
        kind = type(metric).__name__
        if hasattr(metric, "update_state") and kind in _OF_ONE_HOT:
            raise ValueError(
                f"The metric {name!r} is a {kind}, which takes one-hot labels, and the"
                f" labels are class numbers: give a Sparse{kind}."
            )


def _value(name: str, metric: Any, labels: Any, predictions: Any) -> float:
    """Computes one of the user's metrics over all examples."""
    if hasattr(metric, "update_state"):
        metric.reset_state()
        metric.update_state(labels, predictions)
        return float(metric.result())
    values = np.asarray(metric(labels, predictions), np.float64)
    shapes = [(), *(each.shape for each in tf.nest.flatten(labels))]
    shapes += [each[:1] for each in shapes]
    # Other shapes come from labels and predictions that NumPy has broadcast.
    if values.shape not in shapes:
        raise ValueError(
            f"The metric {name!r} returned an array {values.shape}; it must return a"
            " number, or one for each example."
        )
    return float(np.mean(values))


def _batch_spec(array: Any) -> Any:
    return tf.TensorSpec([None, *array.shape[1:]], array.dtype)


def _arrays(values: Any) -> Any:
    """Converts values to arrays, alone or in a dict or tuple."""
    if isinstance(values, dict):
        pairs = ((name, np.asarray(values[name])) for name in sorted(values))
        return collections.OrderedDict(pairs)
    if isinstance(values, tuple):
        return tuple(np.asarray(each) for each in values)
    return np.asarray(values)
