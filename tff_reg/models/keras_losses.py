"""The loss of a Keras model: what the user says, applied to what the model returns.

`loss_fn`, else the loss that the model was compiled with. Without either it is the
cross-entropy of integer labels, and the outputs' values on a trial batch say whether
they are probabilities or logits.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.models import keras_calls, learning_model as learning_model_lib


@dataclasses.dataclass(frozen=True)
class ModelLoss:
    """The loss of a model, and what it takes.

    Attributes:
      loss_fn: Function of (labels, outputs), of a classifier of (labels, logits).
      is_classifier: Whether it is the mean cross-entropy of integer labels for outputs
        [batch, classes].
      takes_probabilities: Whether a classifier's outputs are probabilities. Its logits
        are their logarithms.
      is_assumed: Whether nobody said the loss, and the outputs' values decided.
    """

    loss_fn: Callable
    is_classifier: bool = False
    takes_probabilities: bool = False
    is_assumed: bool = False


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

    digests = property(lambda self: (self.losses, self.scales))  # Names are numbered.

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
    model: Any, given: Any, outputs: Any, has_logits: bool, keras: Any
) -> ModelLoss:
    """Finds a model's loss, from its outputs on a trial batch."""
    if given is learning_model_lib.sparse_cross_entropy:
        return _of_classifier(model, outputs, takes_probabilities=False)
    if given is not None and not is_kerases(given):
        return ModelLoss(given)
    loss, config = given, {}
    if given is None:
        _check_has_no_own_step(model, keras)
        if getattr(model, "compiled", True):
            loss = getattr(model, "loss", None)
            config = getattr(model, "get_compile_config", dict)() or {}
    if loss is None:
        found = _of_classifier(model, outputs, _are_probabilities(outputs))
        last = getattr(model.layers[-1] if model.layers else None, "activation", None)
        is_linear = getattr(last, "__name__", "") == "linear"
        if not (found.takes_probabilities or is_linear) and np.min(outputs) >= 0:
            warnings.warn(
                f"The model {model.name!r} has no loss and no output below 0: its"
                " outputs are taken as logits. Leave the last layer's activation out,"
                " or compile the model with its loss.",
                stacklevel=4,
            )
        return dataclasses.replace(found, is_assumed=True)
    names = _names_of(model, outputs)
    scales = _each(model, "loss_weights", config.get("loss_weights"), names, 1.0)
    losses = [
        None if each is None else keras.losses.get(each)
        for each in _each(model, "losses", loss, names, loss)
    ]
    reductions = [getattr(each, "reduction", "auto") for each in losses]
    if given is None and not {None, "none"}.isdisjoint(reductions):
        raise ValueError(
            f"The model {model.name!r} was compiled with reduction=None, and Keras"
            " trains the sum over a batch: leave reduction out, or give 'sum'."
        )
    if names is None and _is_sparse(losses[0]):
        from_logits = bool(_config_of(losses[0]).get("from_logits"))
        if from_logits == _are_probabilities(outputs):
            what = "probabilities" if from_logits else "no probabilities"
            warnings.warn(
                f"The model {model.name!r} returns {what}, and its loss has"
                f" from_logits={from_logits}: compile it with"
                f" from_logits={not from_logits}.",
                stacklevel=4,
            )
        if outputs.shape.rank == 2 and _is_plain(losses[0]) and scales[0] == 1:
            # As Keras, which takes the logits that its outputs carry in any case.
            return _of_classifier(model, outputs, has_logits or not from_logits)
    return ModelLoss(CompiledLoss(keras, names, losses, scales))


def _of_classifier(model: Any, outputs: Any, takes_probabilities: bool) -> ModelLoss:
    """Returns the cross-entropy of integer labels; checks that the outputs fit it."""
    shapes = [tuple(x.shape) for x in tf.nest.flatten(outputs)]
    if not tf.is_tensor(outputs) or len(shapes[0]) != 2 or shapes[0][1] == 1:
        given = " and ".join(str((None, *shape[1:])) for shape in shapes)
        raise ValueError(
            f"The model {model.name!r} gives {given}, and cross-entropy of integer"
            " labels takes one output for each class (two for yes and no): flatten"
            " before the last layer, or compile the model with its loss, or give"
            " from_keras a loss_fn."
        )
    loss_fn = learning_model_lib.sparse_cross_entropy
    return ModelLoss(loss_fn, True, takes_probabilities)


def _are_probabilities(outputs: Any) -> bool:
    """Whether all rows are in [0, 1] and sum to 1."""
    if not tf.is_tensor(outputs) or outputs.shape.rank < 2:
        return False
    rows = np.asarray(outputs)
    is_inside = np.all((rows >= 0) & (rows <= 1))
    return bool(is_inside and np.allclose(rows.sum(-1), 1, rtol=0, atol=1e-3))


def label_spec_of(loss: ModelLoss, output: Any) -> Any:
    """Returns the default `tf.TensorSpec`s of the labels that a loss takes.

    int32, without the outputs' last axis, for cross-entropy of integer labels; else the
    outputs' specs.
    """
    flat = tf.nest.flatten(output)
    losses = getattr(loss.loss_fn, "losses", ())
    if len(losses) != len(flat):
        losses = [loss.loss_fn] * len(flat)
    specs = [
        tf.TensorSpec([None, *x.shape[1:-1]], tf.int32)
        if loss.is_classifier or _is_sparse(each)
        else keras_calls.batched_spec(x)
        for each, x in zip(losses, flat)
    ]
    return tf.nest.pack_sequence_as(output, specs)


def probabilities_of(loss: ModelLoss) -> Optional[Callable]:
    """Returns the function from outputs to probabilities; None if they are such."""
    if loss.is_classifier:
        return None if loss.takes_probabilities else tf.nn.softmax
    losses = getattr(loss.loss_fn, "losses", ())
    if len(losses) != 1 or not _config_of(losses[0]).get("from_logits"):
        return None
    return tf.sigmoid if _name_of(losses[0]).startswith("binary") else tf.nn.softmax


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


def is_kerases(loss: Any) -> bool:
    """Whether a loss is one of Keras's own, an object or a function."""
    return bool(_name_of(loss))


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
    if not isinstance(loss, keras.losses.Loss):
        # As in `compile`: the mean is over the outputs that the mask keeps.
        wrapper: Any = keras.losses.MeanSquaredError.__bases__[0]
        is_3 = wrapper.__module__.startswith("keras.") and hasattr(keras, "ops")
        loss = wrapper(loss, **({"dtype": outputs.dtype.name} if is_3 else {}))
    rank = outputs.shape.rank
    if rank and labels.shape.rank == rank - 1 and outputs.shape[-1] == 1:
        labels = labels[..., tf.newaxis]
    return tf.reduce_mean(loss(labels, outputs))


def check_fits(model: Any, loss: Callable, label_spec: Any, output: Any) -> None:
    """Raises a ValueError if a loss cannot be computed, or mixes labels of examples."""
    specs = tf.nest.map_structure(keras_calls.batched_spec, output)
    labels = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(label_spec)]
    outputs = [f"{s.dtype.name} {s.shape}" for s in tf.nest.flatten(specs)]
    what = (
        f"The loss of {model.name!r}, of labels {' and '.join(labels)} and outputs"
        f" {' and '.join(outputs)},"
    )
    advice = (
        "compile it with a loss of class numbers, or give from_keras a loss_fn, or say"
        " with label_spec what labels are."
    )
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
