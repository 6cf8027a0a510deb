"""The mean loss of a batch as a function of variables, to be differentiated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import models
from tff_reg.lazy import keras, tf


class UnsuitableModelError(TypeError):
    """The model or its variables cannot be differentiated."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss and its variables.

    Attributes:
      mean_loss: Function of a batch that returns its mean loss, a scalar.
      variables: The variables to differentiate by.
      filter_axes: For each variable, the axes that span the weights of one output.
      blocks: The `variables` of each block or layer, by its name; empty for a loss
        function.
      statistics: The variables that a pass in training mode changes (BatchNorm's
        running statistics), to be restored after the pass.
    """

    mean_loss: Callable[[Any], Any]
    variables: Sequence[Any]
    filter_axes: Sequence[tuple[int, ...]]
    blocks: Mapping[str, Sequence[Any]]
    statistics: Sequence[Any]


def is_model(model_or_loss_fn) -> bool:
    """Whether the argument is a model, for batches (x, y), and not a loss function."""
    is_keras = isinstance(model_or_loss_fn, keras.Model)
    return is_keras or network_of(model_or_loss_fn) is not None


def build(
    model_or_loss_fn,
    *,
    loss_fn: Optional[Callable] = None,
    variables: Optional[Sequence] = None,
    training: bool = False,
    first_features: tf.Tensor,
) -> Objective:
    """Builds the objective; the arguments are those of `Hessian`.

    Args:
      model_or_loss_fn: As in `Hessian`.
      loss_fn: As in `Hessian`.
      variables: As in `Hessian`.
      training: As in `Hessian`.
      first_features: The features of a batch, to build a Keras model that has no
        variables yet.

    Returns:
      The `Objective`.

    Raises:
      UnsuitableModelError: If the model cannot be differentiated.
      ValueError: If the arguments do not fit together.
    """
    network = network_of(model_or_loss_fn)
    if network is not None:
        model, parts = network, network.blocks
        loss_fn = loss_fn or getattr(model_or_loss_fn, "loss_fn", None)
        predict = _block_model_predictions(network, training)
    elif isinstance(model_or_loss_fn, keras.Model):
        model = model_or_loss_fn
        if not model.built:
            model(first_features[:1])
        if loss_fn is None:
            _check_gives_logits(model)
        parts = model.layers
        predict = functools.partial(model, training=training)
    else:
        return _of_loss_fn(model_or_loss_fn, loss_fn, variables, training)
    chosen = _checked(model.trainable_variables if variables is None else variables)
    return Objective(
        _mean_loss(predict, loss_fn or _cross_entropy),
        chosen,
        _filter_axes(parts, chosen, network),
        _blocks_of({part.name: part.trainable_variables for part in parts}, chosen),
        list(model.non_trainable_variables) if training else (),
    )


def _of_loss_fn(mean_loss, loss_fn, variables, training: bool) -> Objective:
    """Builds the objective of a loss function of a batch."""
    if not callable(mean_loss):
        raise UnsuitableModelError(
            "This takes a Keras model, a BlockModel, a LearningModel or a function of "
            f"a batch that returns its mean loss, not a {type(mean_loss).__name__}."
        )
    if loss_fn is not None or training:
        raise ValueError(
            "loss_fn and training are for models: a loss function has its own."
        )
    if variables is None:
        raise ValueError(
            "A loss function needs variables=..., the variables to differentiate by."
        )
    chosen = _checked(variables)
    return Objective(mean_loss, chosen, _filter_axes([], chosen), {}, ())


def network_of(model):
    """Returns the `BlockModel` of a model of this package or of Keras 3, else None."""
    if models.keras_calls.is_keras_3(model):
        return models.from_keras(model)().network
    if isinstance(model, models.LearningModel):
        return model.network
    return model if isinstance(model, models.BlockModel) else None


def _block_model_predictions(network, training: bool):
    def predict(features):
        settings = models.ForwardPass(training=training, update_statistics=False)
        return network(features, settings).logits

    return predict


def _check_gives_logits(model):
    last = model.layers[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", None)
    is_softmax = isinstance(last, keras.layers.Softmax) or activation == "softmax"
    if is_softmax or activation == "sigmoid":
        raise UnsuitableModelError(
            f"The model's last layer, {last.name!r}, gives probabilities, but the "
            "default loss takes logits: pass loss_fn, for example "
            "keras.losses.SparseCategoricalCrossentropy()."
        )


def _checked(variables) -> list:
    variables = list(variables)
    if not variables:
        raise UnsuitableModelError("There are no variables to differentiate by.")
    for variable in variables:
        if not isinstance(variable, tf.Variable):
            raise UnsuitableModelError(
                "variables must hold tf.Variables, but among them is a "
                f"{type(variable).__name__}."
            )
        if variable.dtype not in (tf.float32, tf.float64):
            raise UnsuitableModelError(
                f"Variables must be float32 or float64, but {variable.name!r} is "
                f"{variable.dtype.name}."
            )
    if len({variable.ref() for variable in variables}) < len(variables):
        raise UnsuitableModelError("A variable is there twice in variables.")
    return variables


def _of_keras(layer) -> Optional[tuple[Any, tuple[int, ...]]]:
    """Returns kernel and filter axes of a layer whose outputs are not the last axis."""
    names = " ".join(kind.__name__ for kind in type(layer).__mro__)
    kernel = getattr(layer, "depthwise_kernel", None)
    is_depthwise = kernel is not None or "DepthwiseConv" in names
    kernel = getattr(layer, "kernel", None) if kernel is None else kernel
    if kernel is None or not (is_depthwise or "Transpose" in names):
        return None
    before = tuple(range(len(kernel.shape) - 2))
    return kernel, before if is_depthwise else (*before, len(kernel.shape) - 1)


def _filter_axes(parts, variables, network: Any = None) -> list[tuple[int, ...]]:
    """All axes but the last and the axes of channels or groups; see `Objective`."""
    own = {}
    for layer in (each for part in parts for each in (part, *part.submodules)):
        if isinstance(layer, models.layers.GroupedPointwiseConv2D):
            own[layer.kernel.ref()] = (1,)
        elif isinstance(layer, models.layers.DepthwiseConv2D):
            own[layer.kernel.ref()] = (0, 1)
        elif (found := _of_keras(layer)) is not None:
            own[found[0].ref()] = found[1]
    for layer in getattr(network, "keras_layers", ()):
        if (found := _of_keras(layer)) is not None:
            own[network.standing_for(found[0]).ref()] = found[1]
    return [own.get(v.ref(), tuple(range(v.shape.rank - 1))) for v in variables]


def _blocks_of(blocks, variables) -> dict[str, list]:
    """Returns the blocks' variables that are among `variables`, each in one block."""
    left = {variable.ref() for variable in variables}
    result = {}
    for name, members in blocks.items():
        members = [v for v in members if v.ref() in left]
        left -= {v.ref() for v in members}
        if members:
            result[name] = members
    return result


def _mean_loss(predict, loss_fn):
    def mean_loss(batch):
        features, labels = batch
        return tf.reduce_mean(loss_fn(labels, predict(features)))

    return mean_loss


def _cross_entropy(labels, logits):
    """Computes the cross-entropy of every example.

    Args:
      labels: int [batch] or [batch, 1].
      logits: float [batch, num_classes].

    Returns:
      float [batch].

    Raises:
      UnsuitableModelError: If the labels are not integers, or an example has several
        labels or rows of logits.
    """
    if not labels.dtype.is_integer:
        raise UnsuitableModelError(
            "The default loss takes integer labels, but these are "
            f"{labels.dtype.name}: pass loss_fn."
        )
    if labels.shape.rank == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape.rank != 1 or logits.shape.rank != 2:
        raise UnsuitableModelError(
            "The default loss takes one label and one row of logits for each example, "
            f"but the labels are {labels.shape} and the logits {logits.shape}: pass "
            "loss_fn."
        )
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
