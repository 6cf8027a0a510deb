"""A block model with its task loss and metrics, as a TFF learning model."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.models import block_model, keras_calls, names

ForwardPass = block_model.ForwardPass


def sparse_cross_entropy(labels, logits):
    """Returns the mean cross-entropy of a batch; 0 of an empty one."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    count = tf.cast(tf.size(losses), losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), count)


def are_correct(labels, predictions):
    """Returns whether each example's class has the largest prediction, and no NaN."""
    largest = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
    is_known = tf.reduce_all(~tf.math.is_nan(predictions), axis=-1)
    return tf.equal(largest, labels) & is_known


class LearningModel(tff.learning.models.VariableModel):
    """A `BlockModel` with a task loss, as a `tff.learning.models.VariableModel`.

    TFF's processes, evaluations and programs accept it; this package's client work also
    uses its `network`. Its metrics are `loss` and `accuracy` (means over examples) and
    `num_examples`; `accuracy` needs a network whose output is a vector of logits.

    >>> import numpy as np
    >>> from tff_reg import models
    >>> model = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()
    >>> model.predict_on_batch(np.zeros([2, 8, 8, 1]), training=False).shape
    TensorShape([2, 3])

    Args:
      network: The `BlockModel`.
      loss_fn: Function of (labels, logits) that returns the batch's mean loss.
      label_spec: `tf.TensorSpec` of the labels, or a structure of specs; by default
        int32 class numbers.
    """

    def __init__(
        self,
        network: block_model.BlockModel,
        *,
        loss_fn: Callable = sparse_cross_entropy,
        label_spec: Any = None,
    ):
        if not isinstance(network, block_model.BlockModel):
            raise TypeError(
                f"A LearningModel takes a BlockModel, not a {type(network).__name__}:"
                " tff_reg.models.from_keras(model) gives the model_fn of a Keras model."
            )
        self.network = network
        self.loss_fn = loss_fn
        self._label_spec = label_spec or tf.TensorSpec([None], tf.int32)
        with tf.name_scope("metrics"):
            self._loss_sum = tf.Variable(0.0, trainable=False, name="loss_sum")
            self._correct = tf.Variable(0, False, name="correct", dtype=tf.int64)
            self._examples = tf.Variable(0, False, name="examples", dtype=tf.int64)

    @property
    def trainable_variables(self):
        return self.network.trainable_variables

    @property
    def non_trainable_variables(self):
        return self.network.non_trainable_variables

    @property
    def local_variables(self):
        return [self._loss_sum, self._correct, self._examples]

    @property
    def has_plain_forward_pass(self) -> bool:
        """Whether no sub-class overrides `forward_pass`."""
        return type(self).forward_pass is LearningModel.forward_pass

    @property
    def has_accuracy(self) -> bool:
        """Whether the model is a classifier, whose accuracy is measured."""
        return self.network.num_classes is not None

    @property
    def input_spec(self):
        return collections.OrderedDict(x=self.network.input_spec, y=self._label_spec)

    def predict_on_batch(self, x, training: bool = True):
        forward = ForwardPass(training=training, update_statistics=training)
        return self.network(x, forward).predictions

    def forward_pass(self, batch_input, training: bool = True):
        added: list[tf.Tensor] = []
        forward = ForwardPass(
            training=training, update_statistics=training, on_loss=added.append
        )
        outputs = self.network(batch_input["x"], forward)
        loss = self.loss_fn(batch_input["y"], outputs.logits)
        if added and training:
            loss += tf.add_n(added)
        self.update_metrics(batch_input["y"], outputs.predictions, loss)
        count = tf.shape(tf.nest.flatten(outputs.logits)[0])[0]
        return tff.learning.models.BatchOutput(
            loss=loss, predictions=outputs.predictions, num_examples=count
        )

    def update_metrics(self, labels, predictions, loss):
        """Adds a batch to the metrics.

        Args:
          labels: int [batch], or other labels that `loss_fn` accepts.
          predictions: float [batch, num_classes], or other outputs of the network.
          loss: The batch's mean loss, a scalar.
        """
        count = tf.shape(tf.nest.flatten(labels)[0], out_type=tf.int64)[0]
        mean_loss = tf.cast(loss, tf.float32)
        self._loss_sum.assign_add(mean_loss * tf.cast(count, tf.float32))
        if self.has_accuracy:
            are_right = are_correct(labels, predictions)
            self._correct.assign_add(tf.math.count_nonzero(are_right))
        self._examples.assign_add(count)

    def report_local_unfinalized_metrics(self):
        examples = self._examples.read_value()
        count = tf.cast(examples, tf.float32)
        sums = collections.OrderedDict(loss=[self._loss_sum.read_value(), count])
        if self.has_accuracy:
            sums["accuracy"] = [tf.cast(self._correct, tf.float32), count]
        sums["num_examples"] = examples
        return sums

    def metric_finalizers(self):
        finalizers: dict[str, Any] = collections.OrderedDict(loss=finalize_ratio)
        if self.has_accuracy:
            finalizers["accuracy"] = finalize_ratio
        finalizers["num_examples"] = finalize_identity
        return finalizers

    def reset_metrics(self):
        for variable in self.local_variables:
            variable.assign(tf.zeros_like(variable))


def check_model_fn(model_fn: Any) -> None:
    """Checks that a `model_fn` is a function, not a model."""
    models = (tff.learning.models.VariableModel, tf.Module)
    is_keras = keras_calls.is_keras_3(model_fn) or keras_calls.is_keras_2(model_fn)
    if not callable(model_fn) or is_keras or isinstance(model_fn, models):
        what = (
            "tff_reg.models.from_keras(model) gives the model_fn of a Keras model"
            if is_keras
            else "pass a function without arguments that returns a new model at each"
            " call"
        )
        raise TypeError(f"model_fn is a {type(model_fn).__name__}; {what}.")


def check_model(model: Any) -> None:
    """Checks the model that a `model_fn` has returned."""
    if not isinstance(model, tff.learning.models.VariableModel):
        raise TypeError(
            f"model_fn returned a {type(model).__name__}; it must return a"
            " tff.learning.models.VariableModel, such as a"
            " tff_reg.models.LearningModel. What tff_reg.models.from_keras(model)"
            " returns is itself the model_fn of a Keras model."
        )
    check_dtypes(model.trainable_variables)


def check_dtypes(variables: Sequence[Any]) -> None:
    """Checks that weights are all float32 or all float64."""
    found = {tf.as_dtype(getattr(v, "true_dtype", v.dtype)).name for v in variables}
    # Keras's mixed-precision variables are used in another dtype than they have.
    is_mixed = any(hasattr(v, "true_dtype") for v in variables)
    if is_mixed or len(found) > 1 or not found <= {"float32", "float64"}:
        raise ValueError(
            f"The model's weights are {' and '.join(sorted(found))}"
            f"{', its layers compute in less (mixed precision)' * is_mixed}: give all"
            " layers the same dtype, float32 or float64."
        )


def finalize_ratio(sums: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the ratio of [sum, count]; 0 if the count is 0."""
    return tf.math.divide_no_nan(sums[0], sums[1])


def finalize_identity(value: tf.Tensor) -> tf.Tensor:
    """Returns a sum over clients unchanged."""
    return value


def build_model_fn(
    model_name: str,
    *,
    image_shape: Sequence[int],
    num_classes: int,
    norm: Optional[str] = None,
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> Callable[[], LearningModel]:
    """Returns a `model_fn` for a network by its name.

    >>> from tff_reg import models
    >>> model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)
    >>> len(model_fn().trainable_variables)
    10

    Args:
      model_name: One of `names.MODEL_NAMES`.
      image_shape: (height, width, channels).
      num_classes: Number of classes.
      norm: One of `names.norms_of(model_name)`; None for the first of them.
      projector: The layers between the features and the classifier's linear layer, one
        of `names.PROJECTOR_NAMES`; see `classifiers`.
      seed: Seed of the initial weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A function without arguments that returns a new `LearningModel`. It raises an
      ImageSizeError if the images are too small for the model.

    Raises:
      ValueError: If the name, the norm or the projector is unknown, or the model
        cannot have that norm.
    """
    if norm is None:
        norm = names.norms_of(str(model_name))[0]
    _check_names(model_name, norm, projector)

    build_network = names.builder(model_name)

    def model_fn() -> LearningModel:
        network = build_network(
            input_shape=tuple(image_shape),
            num_classes=num_classes,
            norm=norm,
            projector=projector,
            seed=seed,
            dtype=dtype,
        )
        return LearningModel(network)

    return model_fn


def _check_names(model_name: str, norm: str, projector: str) -> None:
    for what, value, choices in (
        ("model", model_name, names.MODEL_NAMES),
        ("norm", norm, names.NORM_NAMES),
        ("projector", projector, names.PROJECTOR_NAMES),
    ):
        if value not in choices:
            raise ValueError(
                f"Unknown {what} {value!r}: choose one of {', '.join(choices)}."
            )
    norms = names.norms_of(model_name)
    if norm not in norms:
        raise ValueError(
            f"The model {model_name!r} cannot have the norm {norm!r}: choose "
            f"{' or '.join(repr(one) for one in norms)}."
        )


def initial_weights(model_fn: Callable) -> tff.learning.models.ModelWeights:
    """Builds a model and returns its initial weights as NumPy arrays.

    >>> from tff_reg import models
    >>> model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)
    >>> models.initial_weights(model_fn).trainable[0].shape
    (3, 3, 1, 32)

    Args:
      model_fn: A function without arguments that returns a
        `tff.learning.models.VariableModel`.

    Returns:
      A `tff.learning.models.ModelWeights` of lists of arrays.
    """
    with tf.Graph().as_default():
        model = model_fn()
        weights = tff.learning.models.ModelWeights.from_model(model)
        variables = [*weights.trainable, *weights.non_trainable]
        with tf.compat.v1.Session() as session:
            session.run([v.initializer for v in variables])
            values = session.run(variables)
    split = len(weights.trainable)
    return tff.learning.models.ModelWeights(values[:split], values[split:])
