"""The loss of a Keras model: the loss that it was compiled with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import keras_calls, learning_model as learning_model_lib

_SOFTMAX = ("softmax", "softmax_v2")  # Keras's and TensorFlow's.
_ANY_LABELS = ("ctc", "circle")  # Losses that take labels of other shapes.


@dataclasses.dataclass(frozen=True)
class CompiledLoss:
    """The loss of a compiled model: the weighted sum of its outputs' losses.

    Attributes:
      keras: The model's Keras module.
      names: The names of the outputs, in order; None for a single output.
      losses: The loss of each output; None for an output without a loss.
      scales: The weight of each loss.
    """

    keras: Any
    names: Optional[Sequence[Any]]
    losses: Sequence[Any]
    scales: Sequence[float]

    def __call__(self, labels: Any, outputs: Any):
        pairs = [(labels, outputs)]
        if self.names is not None:
            pairs = [
                tuple(y[name] if isinstance(y, dict) else y[n] for y in pairs[0])
                for n, name in enumerate(self.names)
            ]
        return tf.add_n(
            [
                scale * _mean(self.keras, loss, *pair)
                for loss, scale, pair in zip(self.losses, self.scales, pairs)
                if loss is not None
            ]
        )


def loss_of(
    model: Any, call: keras_calls.Call, given: Any, keras: Any
) -> Optional[Callable]:
    """Finds the function of (labels, outputs) that gives a batch's loss.

    Args:
      model: The model.
      call: A traced call of the model.
      given: The user's function, or a loss of Keras; None for the loss that the model
        was compiled with.
      keras: The model's Keras module.

    Returns:
      The function; None for the cross-entropy of integer labels and logits.

    Raises:
      ValueError: If the model overrides Keras's training step, or its compiled losses
        do not fit its outputs, or a loss has no reduction.
    """
    if given is learning_model_lib.sparse_cross_entropy:
        return None
    if given is not None and not _name_of(given):
        return given
    loss, config = given, {}
    if given is None:
        _check_has_no_own_step(model, keras)
        if getattr(model, "compiled", True):
            loss = getattr(model, "loss", None)
            config = getattr(model, "get_compile_config", dict)() or {}
    if loss is None:
        return None
    names = _names_of(model, call.output)
    scales = _each(model, "loss_weights", config.get("loss_weights"), names, 1.0)
    losses = [
        None if each is None else keras.losses.get(each)
        for each in _each(model, "losses", loss, names, loss)
    ]
    for each in losses:
        reduction = getattr(each, "reduction", "sum")
        if reduction in (None, "none"):
            raise ValueError(
                f"The model {model.name!r} was compiled with a loss that has"
                f" reduction={reduction!r}: make it 'sum' or"
                " 'sum_over_batch_size'."
            )
    if names is None and _is_sparse(losses[0]):
        _check_from_logits(model, losses[0], call)
        if (call.output.shape.rank or 0) <= 2 and _is_plain(losses[0]):
            if scales[0] == 1:
                return None
            raise ValueError(
                f"The model {model.name!r} was compiled with loss_weights, and has one"
                " output: leave them out, and multiply the learning rate."
            )
    return CompiledLoss(keras, names, losses, scales)


def label_spec_of(loss: Optional[Callable], output: Any) -> Any:
    """Returns the default `tf.TensorSpec`s of the labels that a loss takes.

    Args:
      loss: The result of `loss_of`.
      output: The model's output, a tensor or a structure of tensors.

    Returns:
      int32, without the outputs' last axis, for cross-entropy of integer labels; else
      the outputs' specs. The first axis is the batch, of unknown size.
    """
    flat = tf.nest.flatten(output)
    losses = loss.losses if isinstance(loss, CompiledLoss) else ()
    if len(losses) != len(flat):
        losses = [loss] * len(flat)
    specs = [
        tf.TensorSpec([None, *x.shape[1:-1]], tf.int32)
        if loss is None or _is_sparse(each)
        else keras_calls.batched_spec(x)
        for each, x in zip(losses, flat)
    ]
    return tf.nest.pack_sequence_as(output, specs)


def _check_has_no_own_step(model: Any, keras: Any) -> None:
    """Raises a ValueError if a model overrides `train_step` or `compute_loss`."""
    bases = (keras.Sequential, keras.Model)
    for name in ("train_step", "compute_loss"):
        own = getattr(getattr(model, name, None), "__func__", None)
        if own not in [getattr(base, name, None) for base in bases]:
            raise ValueError(
                f"The model {model.name!r} has a {name} of its own, which clients do"
                " not run: give from_keras a loss_fn, if its loss of labels and outputs"
                " is all."
            )


def _name_of(loss: Any) -> str:
    """Returns a Keras loss's name in lower case; '' for a loss that is not Keras's."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    is_own = named.__module__.split(".")[0] in ("keras", "tf_keras")
    return named.__name__.lower() if is_own else ""


def _is_sparse(loss: Any) -> bool:
    """Whether a loss takes integer labels for outputs with one logit per class."""
    return _name_of(loss).startswith("sparse")


def _is_plain(loss: Any) -> bool:
    """Whether a cross-entropy is the mean over all examples."""
    is_mean = getattr(loss, "reduction", "auto") in ("sum_over_batch_size", "auto")
    return is_mean and _config_of(loss).get("ignore_class") is None


def _check_from_logits(model: Any, loss: Any, call: keras_calls.Call) -> None:
    """Raises a ValueError if a loss's `from_logits` does not fit the model's end."""
    is_softmax = keras_calls.is_softmax_of(call.output, call)
    takes_logits = bool(_config_of(loss).get("from_logits"))
    if takes_logits == is_softmax:
        what = "a softmax" if is_softmax else "no softmax"
        raise ValueError(
            f"The model {model.name!r} ends in {what}, and was compiled with a loss"
            f" that has from_logits={takes_logits}: compile it with"
            f" from_logits={not takes_logits}, or give from_keras a loss_fn, if its"
            " outputs are"
            " something else."
        )


def _config_of(loss: Any) -> dict[str, Any]:
    """Returns a loss's config; empty for a function."""
    return getattr(loss, "get_config", dict)()


def _names_of(model: Any, output: Any) -> Optional[list[Any]]:
    """Returns the names of the outputs, in order; None for a single output."""
    if isinstance(output, dict):
        return sorted(output)  # As Keras sorts them for a list of losses.
    if not isinstance(output, (list, tuple)):
        return None
    names = getattr(model, "output_names", None) or []
    return list(names) if len(names) == len(output) else list(range(len(output)))


def _each(
    model: Any, what: str, given: Any, names: Optional[list[Any]], default: Any
) -> list[Any]:
    """Returns the value for each output from an argument of `compile`."""
    if not isinstance(given, (dict, list, tuple)):
        return [default if given is None else given] * len(names or [None])
    wanted = names or [*(getattr(model, "output_names", None) or [None])][:1]
    missing = None if default is given else default
    if isinstance(given, dict) and set(given) <= set(wanted):
        return [given.get(name, missing) for name in wanted]
    if not isinstance(given, dict) and len(given) == len(wanted):
        return list(given)
    raise ValueError(
        f"The model {model.name!r} was compiled with {what} of"
        f" {list(given) if isinstance(given, dict) else len(given)}, and its outputs"
        f" are {wanted}."
    )


def _mean(keras: Any, loss: Any, labels: Any, outputs: Any):
    """Computes the mean loss; labels may lack a last axis of size 1 of the outputs."""
    labels = tf.convert_to_tensor(labels)
    _check_labels(_name_of(loss), labels.shape, outputs.shape)
    if not isinstance(loss, keras.losses.Loss):
        # As in `compile`: the mean is over the outputs that the mask keeps.
        wrapper: Any = keras.losses.MeanSquaredError.__bases__[0]
        is_3 = wrapper.__module__.startswith("keras.") and hasattr(keras, "ops")
        loss = wrapper(loss, **({"dtype": outputs.dtype.name} if is_3 else {}))
    rank = outputs.shape.rank
    if rank and labels.shape.rank == rank - 1 and outputs.shape[-1] == 1:
        labels = labels[..., tf.newaxis]
    return tf.reduce_mean(loss(labels, outputs))


def _check_labels(name: str, labels: tf.TensorShape, outputs: tf.TensorShape) -> None:
    """Raises a ValueError if a Keras loss would broadcast the labels to the outputs."""
    if not name or name in _ANY_LABELS or None in (labels.rank, outputs.rank):
        return
    wanted = outputs[:-1] if name.startswith("sparse") else outputs
    # Keras drops a last axis of size 1 that only one of the two has.
    difference = labels.rank - wanted.rank
    given = labels[:-1] if difference == 1 and labels[-1] == 1 else labels
    cut = wanted[:-1] if difference == -1 and wanted[-1] == 1 else wanted
    if not given.is_compatible_with(cut):
        raise ValueError(f"{name} takes labels {wanted}")


def check_gives_logits(
    model: Any,
    call: keras_calls.Call,
    found: Optional[keras_calls.LayerCall],
    head: Any,
) -> None:
    """Checks that cross-entropy of integer labels fits the output.

    Args:
      model: The model.
      call: A traced call of the model.
      found: The layer call that gave the logits, or None.
      head: The `Dense` layer that gave the logits, or None.

    Raises:
      ValueError: If it does not fit.
    """
    output = call.output
    if not tf.is_tensor(output) or output.shape.rank != 2 or output.shape[-1] is None:
        shapes = [str(tuple(x.shape)) for x in tf.nest.flatten(output)]
        raise ValueError(
            f"The model {model.name!r} gives {' and '.join(shapes)}, and cross-entropy"
            " of integer labels takes one logit a class: flatten before the last layer,"
            " or compile the model with its loss, or give from_keras a loss_fn."
        )
    if output.shape[-1] == 1:
        raise ValueError(
            f"The model {model.name!r} gives one number, and cross-entropy of integer"
            " labels takes one logit a class: give the model one output for each class"
            " (two for yes and no). Of another model, compile its loss."
        )
    layer: Any = None if found is None else found.layer
    activation = keras_calls.activation_of(layer)
    if activation not in ("linear", *_SOFTMAX):
        raise ValueError(
            f"The last layer, {layer.name!r}, has the activation {activation}, and"
            " cross-entropy of integer labels takes logits or a softmax's output:"
            " compile the model with its loss, or give from_keras a loss_fn."
        )
    logits = keras_calls.logits_of(call)
    is_softmax = activation in _SOFTMAX or logits is not output
    is_own = found is None or found.output is output
    if activation in _SOFTMAX and not is_own:
        raise ValueError(
            f"The model {model.name!r} ends in the softmax of a softmax: leave one out."
        )
    is_lost = activation in _SOFTMAX and head is None and logits is output
    if is_lost or (output.op.type == "Softmax" and not is_softmax):
        raise ValueError(
            f"The model {model.name!r} ends in a softmax that is no layer's: end in a"
            " Dense layer with activation='softmax', in keras.layers.Softmax, or in"
            " logits."
        )


def check_fits(model: Any, loss: Callable, label_spec: Any, output: Any) -> None:
    """Checks that a loss can be computed from labels and outputs.

    Args:
      model: The model.
      loss: Function of (labels, outputs) giving a batch's mean loss.
      label_spec: `tf.TensorSpec`s of the labels.
      output: The output, a tensor or a structure of tensors.

    Raises:
      ValueError: If it cannot, is no float scalar, or mixes labels across examples.
    """
    specs = tf.nest.map_structure(keras_calls.batched_spec, output)
    labels = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(label_spec)]
    outputs = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(specs)]
    what = (
        f"The loss of {model.name!r}, of labels {' and '.join(labels)} and outputs"
        f" {' and '.join(outputs)},"
    )
    advice = "give from_keras a loss_fn, or say with label_spec what labels are."
    function = tf.function(loss, autograph=False)
    try:
        given = function.get_concrete_function(label_spec, specs).structured_outputs
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{what} cannot be computed ({why}): {advice}") from error
    found = [f"{x.dtype.name} {x.shape}" for x in tf.nest.flatten(given)]
    if found not in (["float32 ()"], ["float64 ()"]):
        raise ValueError(
            f"{what} is {' and '.join(found)}, not a float scalar: {advice}"
        )
    if tf.is_tensor(output) and _mixes_examples(loss, label_spec, output):
        raise ValueError(
            f"{what} compares each label with the outputs of all examples, as [n] and"
            " [n, 1] broadcast: give labels the outputs' last axis, or take it off in"
            " loss_fn."
        )


def _mixes_examples(loss: Callable, label_spec: Any, output: Any) -> bool:
    """Whether a loss ignores which label belongs to which example."""
    if not isinstance(label_spec, tf.TensorSpec) or not tf.executing_eagerly():
        return False
    if label_spec.shape.rank != 1 or output.shape.rank != 2 or output.shape[1] != 1:
        return False
    labels = tf.cast([0.0, 1.0, 0.0, 0.0], label_spec.dtype)
    outputs = tf.cast([[0.1], [0.2], [0.4], [0.9]], output.dtype)
    once, turned, others = (
        float(loss(each, outputs)) for each in (labels, labels[::-1], 1 - labels)
    )
    return abs(once - turned) <= 1e-6 * abs(once) and abs(once - others) > 1e-3
