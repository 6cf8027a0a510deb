"""The mean loss of a batch as a function of variables, to be differentiated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import models
from tff_reg.lazy import tf


class UnsuitableModelError(TypeError):
    """The model or its variables cannot be differentiated."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss and its variables.

    Attributes:
      mean_loss: Function of a batch that returns its mean loss, a scalar.
      variables: The variables to differentiate by.
      names: Their names.
      filter_axes: For each variable, the axes that span the weights of one output.
      blocks: The `variables` of each block or layer, by its name; empty for a loss
        function.
    """

    mean_loss: Callable[[Any], Any]
    variables: Sequence[Any]
    names: Sequence[str]
    filter_axes: Sequence[tuple[int, ...]]
    blocks: Mapping[str, Sequence[Any]]


def is_model(model_or_loss_fn) -> bool:
    """Whether the argument is a model, for batches (x, y), and not a loss function."""
    ours = (models.LearningModel, models.BlockModel)
    return isinstance(model_or_loss_fn, ours) or _is_keras(model_or_loss_fn)


def _is_keras(model) -> bool:
    return models.keras_calls.is_keras_3(model) or models.keras_calls.is_keras_2(model)


def build(
    model_or_loss_fn,
    *,
    variables: Optional[Sequence] = None,
    training: bool = False,
    first_batch: Any,
) -> Objective:
    """Builds the objective; the arguments are those of `Hessian`.

    `first_batch` shows what a Keras model takes that does not know it.
    """
    if not is_model(model_or_loss_fn):
        return _of_loss_fn(model_or_loss_fn, variables, training)
    model, blocks = model_or_loss_fn, None
    losses = getattr(model, "loss_fn", getattr(model, "loss", None))
    plan = getattr(getattr(model, "network", model), "plan", None)
    kerases = model if _is_keras(model) else getattr(plan, "model", None)
    _check_is_mean(losses, () if kerases is None else kerases(first_batch[0]))
    if _is_keras(model):
        model = _of_keras(model, first_batch)
        blocks = model.network.layer_variables
    network = getattr(model, "network", model)
    loss_fn = getattr(model, "loss_fn", models.learning_model.sparse_cross_entropy)
    if loss_fn is models.learning_model.sparse_cross_entropy:
        loss_fn = _cross_entropy

    def mean_loss(batch):
        features, labels = batch
        # The fixed key makes random layers one function of the variables.
        settings = models.ForwardPass(training=training, key=tf.zeros([2], tf.int64))
        return tf.reduce_mean(loss_fn(labels, network(features, settings).logits))

    if blocks is None:
        blocks = {block.name: block.trainable_variables for block in network.blocks}
    chosen = network.trainable_variables if variables is None else variables
    chosen = _checked(chosen)
    axes = models.roles.filter_axes(network, chosen)
    names = _names(chosen, network)
    return Objective(mean_loss, chosen, names, axes, _blocks_of(blocks, chosen))


def _check_is_mean(losses, outputs) -> None:
    """Refuses Keras losses that are no mean over a batch's examples."""
    flat = tf.nest.flatten(getattr(losses, "losses", losses))
    configs = [getattr(each, "get_config", dict)() for each in flat]
    is_masked = [hasattr(each, "_keras_mask") for each in tf.nest.flatten(outputs)]
    left_out = [each.get("ignore_class") is not None for each in configs]
    if any((*is_masked, *left_out, *(c.get("reduction") == "sum" for c in configs))):
        raise UnsuitableModelError(
            "The loss must be a mean over all examples: leave reduction='sum',"
            " ignore_class and a mask that reaches the outputs (mask_zero) out."
        )


def _names(variables, network: Any = None) -> list[str]:
    """Returns the variables' names, of a Keras model's those in the model."""
    known = getattr(network, "weight_names", {})
    return [known.get(id(v), v.name.rpartition(":")[0] or v.name) for v in variables]


def _of_keras(model, batch) -> Any:
    """Returns the `LearningModel` of a Keras model, with the model's own variables."""
    features, labels = tf.nest.map_structure(models.keras_calls.batched_spec, batch)
    options: dict[str, Any] = {}
    loss = getattr(model, "loss", None)
    if callable(loss) and not models.keras_losses.is_kerases(loss):
        options["label_spec"] = labels  # Nobody else says what it takes.
    if not getattr(model, "inputs", None):
        options["input_spec"] = features
    return models.from_keras(model, **options)(in_place=True)


def _of_loss_fn(mean_loss, variables, training: bool) -> Objective:
    """Builds the objective of a loss function of a batch."""
    if not callable(mean_loss):
        raise UnsuitableModelError(
            "This takes a Keras model, a BlockModel, a LearningModel or a function of "
            f"a batch that returns its mean loss, not a {type(mean_loss).__name__}."
        )
    if training:
        raise ValueError("training is for models: a loss function has its own.")
    if variables is None:
        raise ValueError(
            "A loss function needs variables=..., the variables to differentiate by."
        )
    chosen = _checked(variables)
    axes = models.roles.filter_axes(None, chosen)
    return Objective(mean_loss, chosen, _names(chosen), axes, {})


def _checked(variables) -> list:
    # A variable of Keras 3 holds one of TensorFlow.
    variables = [
        v.value if models.keras_calls.is_keras_3_variable(v) else v for v in variables
    ]
    if not variables:
        raise UnsuitableModelError("There are no variables to differentiate by.")
    return variables


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


def _cross_entropy(labels, logits):
    """Computes the cross-entropy of every example; labels may be [batch, 1]."""
    if not labels.dtype.is_integer:
        raise UnsuitableModelError(
            "The default loss takes integer labels, but these are "
            f"{labels.dtype.name}: compile a Keras model with its loss."
        )
    if labels.shape.rank == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape.rank != 1 or logits.shape.rank != 2:
        raise UnsuitableModelError(
            "The default loss takes one label and one row of logits for each example, "
            f"but the labels are {labels.shape} and the logits {logits.shape}: compile "
            "a Keras model with its loss."
        )
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
