"""What a Keras model is trained by: the loss that it was compiled with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import keras_calls, learning_model as learning_model_lib

_SOFTMAX = ("softmax", "softmax_v2")  # Keras's and TensorFlow's.


def loss_of(
    model: Any, output: Any, given: Optional[Callable], keras: Any
) -> Optional[Callable]:
    """Finds the function of (labels, outputs) that gives a batch's loss.

    Args:
      model: The model.
      output: What it gives, a tensor or a structure of them.
      given: The user's; None for what the model was compiled with.
      keras: The model's Keras.

    Returns:
      The function; None for the cross-entropy of integer labels and logits.

    Raises:
      ValueError: If the model has a training step of its own, or its losses are not
        those of its outputs.
    """
    if given is not None:
        return None if given is learning_model_lib.sparse_cross_entropy else given
    for name in ("train_step", "compute_loss"):
        own = getattr(type(model), name, None)
        bases = (keras.Sequential, keras.Model)
        if own not in [getattr(base, name, None) for base in bases]:
            raise ValueError(
                f"The model {model.name!r} has a {name} of its own, which clients do"
                " not run: give loss_fn, if its loss of labels and outputs is all."
            )
    loss = getattr(model, "loss", None) if getattr(model, "compiled", True) else None
    if loss is None:
        return None
    config = getattr(model, "get_compile_config", dict)() or {}
    names = _names_of(model, output)
    scales = _each(model, "loss_weights", config.get("loss_weights"), names, 1.0)
    if _is_plain_cross_entropy(loss, keras):
        if scales[0] != 1:
            raise ValueError(
                f"The model {model.name!r} was compiled with loss_weights, and has one"
                " output: leave them out, and multiply the learning rate."
            )
        return None
    losses = _each(model, "losses", loss, names, loss)
    for each in losses:
        if getattr(each, "reduction", "sum") in (None, "none"):
            raise ValueError(
                f"The model {model.name!r} was compiled with a loss that has"
                f" reduction={each.reduction!r}: make it 'sum' or"
                " 'sum_over_batch_size'."
            )

    def total(labels: Any, outputs: Any):
        if names is None:
            return scales[0] * _mean(keras, losses[0], labels, outputs)
        pairs = [
            [y[name] if isinstance(y, dict) else y[n] for y in (labels, outputs)]
            for n, name in enumerate(names)
        ]
        return tf.add_n(
            [
                scale * _mean(keras, each, *pair)
                for each, scale, pair in zip(losses, scales, pairs)
                if each is not None
            ]
        )

    return total


def _is_plain_cross_entropy(loss: Any, keras: Any) -> bool:
    """Whether a loss is the mean cross-entropy of integer labels."""
    if isinstance(loss, str):
        return loss == "sparse_categorical_crossentropy"
    return (
        type(loss) is keras.losses.SparseCategoricalCrossentropy
        and getattr(loss, "reduction", None) in ("sum_over_batch_size", "auto")
        and loss.get_config().get("ignore_class") is None
    )


def _names_of(model: Any, output: Any) -> Optional[list[Any]]:
    """The names of the outputs, in order; None of a single one."""
    if isinstance(output, dict):
        return sorted(output)  # So does Keras with a list of losses.
    if not isinstance(output, (list, tuple)):
        return None
    names = getattr(model, "output_names", None) or []
    return list(names) if len(names) == len(output) else list(range(len(output)))


def _each(
    model: Any, what: str, given: Any, names: Optional[list[Any]], default: Any
) -> list[Any]:
    """What was given for each of the outputs, as `compile` takes it."""
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
    """The mean loss of labels that may lack the outputs' last axis, of size 1."""
    loss = keras.losses.get(loss)
    if not isinstance(loss, keras.losses.Loss):
        # As `compile` does: the mean is of what the outputs' mask leaves.
        wrapper: Any = keras.losses.MeanSquaredError.__bases__[0]
        is_3 = wrapper.__module__.startswith("keras.") and hasattr(keras, "ops")
        loss = wrapper(loss, **({"dtype": outputs.dtype.name} if is_3 else {}))
    labels, rank = tf.convert_to_tensor(labels), outputs.shape.rank
    if rank and labels.shape.rank == rank - 1 and outputs.shape[-1] == 1:
        labels = labels[..., tf.newaxis]
    return tf.reduce_mean(loss(labels, outputs))


def check_gives_logits(
    model: Any,
    call: keras_calls.Call,
    found: Optional[keras_calls.LayerCall],
    head: Any,
) -> None:
    """Checks that cross-entropy of integer labels fits the output.

    Args:
      model: The model.
      call: A call of it that was traced.
      found: What gave the logits in it.
      head: The `Dense` layer that gave them, or None.

    Raises:
      ValueError: If it does not.
    """
    output = call.output
    if not tf.is_tensor(output) or output.shape.rank != 2 or output.shape[-1] is None:
        shapes = [str(tuple(x.shape)) for x in tf.nest.flatten(output)]
        raise ValueError(
            f"The model {model.name!r} gives {' and '.join(shapes)}, and cross-entropy"
            " of integer labels takes one logit a class: flatten before the last layer,"
            " or compile the model with its loss, or give loss_fn."
        )
    if output.shape[-1] == 1:
        raise ValueError(
            f"The model {model.name!r} gives one number, and cross-entropy of integer"
            " labels takes one logit a class: compile the model with its loss, or give"
            " loss_fn."
        )
    layer: Any = None if found is None else found.layer
    activation = keras_calls.activation_of(layer)
    if activation not in ("linear", *_SOFTMAX):
        raise ValueError(
            f"The last layer, {layer.name!r}, has the activation {activation}, and"
            " cross-entropy of integer labels takes logits or a softmax's output:"
            " compile the model with its loss, or give loss_fn."
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
    loss = getattr(model, "loss", None)
    if loss is None:
        return
    takes_logits = not isinstance(loss, str) and loss.get_config()["from_logits"]
    if takes_logits == is_softmax:
        what = "a softmax" if is_softmax else "no softmax"
        raise ValueError(
            f"The model {model.name!r} ends in {what}, and was compiled with a loss"
            f" that has from_logits={takes_logits}: compile it with"
            f" from_logits={not takes_logits}, or give loss_fn, if its outputs are"
            " something else."
        )


def check_fits(model: Any, loss: Callable, label_spec: Any, output: Any) -> None:
    """Checks that a loss can be computed of labels and outputs.

    Args:
      model: The model.
      loss: Function of (labels, outputs) giving a batch's mean loss.
      label_spec: `tf.TensorSpec`s of the labels.
      output: The output, a tensor or a structure of them.

    Raises:
      ValueError: If it cannot, or is no float scalar.
    """
    specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), output
    )
    labels = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(label_spec)]
    outputs = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(specs)]
    what = (
        f"The loss of {model.name!r}, of labels {' and '.join(labels)} and outputs"
        f" {' and '.join(outputs)},"
    )
    advice = "give loss_fn, or say with label_spec what labels are."
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
