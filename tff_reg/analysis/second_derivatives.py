"""Second derivatives to replace TensorFlow's wrong or slow ones.

* `tf.nn.moments` (in Keras's LayerNormalization, and in BatchNormalization in training)
  holds the mean constant in its variance. The first derivative is still right, but the
  second derivative is silently wrong: by a quarter in a small network.
* TensorFlow registers that some gradients have no derivative, so that terms are missing
  silently: that of bilinear resizing is here, the others are refused.
* TensorFlow's second derivative of max-pooling is slow; that of ReLU adds zeros.
"""

from __future__ import annotations

import functools
from typing import Any

from tff_reg.lazy import tf


class NoSecondDerivativeError(ValueError):
    """TensorFlow cannot differentiate an operation of the model twice."""


def corrected(graph) -> Any:
    """Returns a context in which a graph's operations use this module's derivatives."""
    return graph.gradient_override_map(_registered())


# Gradients of real numbers that TensorFlow registers as not differentiable.
_REFUSED = (
    "FakeQuantWithMinMaxArgsGradient",
    "FakeQuantWithMinMaxVarsGradient",
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    "SparseAddGrad",
)


@functools.cache
def _registered() -> dict[str, str]:
    """Registers the derivatives once; returns their names by operation type."""
    derivatives = {
        "StopGradient": _of_stop_gradient,
        "ReluGrad": _of_relu_gradient,
        "MaxPoolGrad": _of_max_pool_gradient,
        "ResizeBilinearGrad": _of_resize_gradient,
        **dict.fromkeys(_REFUSED, _refuse),
    }
    names = {kind: f"TffReg{kind}" for kind in derivatives}
    for kind, derivative in derivatives.items():
        tf.RegisterGradient(names[kind])(derivative)
    return names


def _of_stop_gradient(operation, upstream):
    # In tf.nn.moments the derivative of the variance by the mean is 0, but the second
    # derivative is not.
    is_in_moments = "moments" in operation.name.split("/")[:-1]
    return upstream if is_in_moments else None


def _of_relu_gradient(operation, upstream):
    features = operation.inputs[1]
    return tf.raw_ops.ReluGrad(gradients=upstream, features=features), None


def _of_resize_gradient(operation, upstream):
    names = ("align_corners", "half_pixel_centers")
    options = {name: operation.get_attr(name) for name in names}
    size = tf.shape(operation.inputs[0])[1:3]
    return tf.raw_ops.ResizeBilinear(images=upstream, size=size, **options), None


def _refuse(operation, upstream):
    raise NoSecondDerivativeError(
        f"TensorFlow cannot differentiate this model twice: {operation.type}"
        f" ({operation.name}) is registered as not differentiable."
    )


def _of_max_pool_gradient(operation, upstream):
    """Returns None, None and the upstream values at the maxima, of the pooled shape."""
    names = ("ksize", "strides", "padding", "data_format")
    settings = {name: operation.get_attr(name) for name in names}
    settings["padding"] = settings["padding"].decode()
    settings["data_format"] = settings["data_format"].decode()
    image, pooled, _ = operation.inputs
    if not _are_tiles(image.shape, **settings):
        result = tf.raw_ops.MaxPoolGradGrad(
            orig_input=image, orig_output=pooled, grad=upstream, **settings
        )
        return None, None, result
    # The gradient marks exactly one position per window as the maximum.
    is_maximum = tf.raw_ops.MaxPoolGrad(
        orig_input=image, orig_output=pooled, grad=tf.ones_like(pooled), **settings
    )
    means = tf.raw_ops.AvgPool(value=upstream * is_maximum, **settings)
    _, height, width, _ = settings["ksize"]
    return None, None, means * (height * width)


def _are_tiles(shape, ksize, strides, padding: str, data_format: str) -> bool:
    """Whether windows neither overlap nor reach beyond the image."""
    if data_format != "NHWC" or ksize != strides or padding not in ("VALID", "SAME"):
        return False
    sizes = list(zip(shape[1:3], ksize[1:3]))
    return padding == "VALID" or all(size and not size % k for size, k in sizes)


def check_no_hidden_moments(graph) -> None:
    """Checks that no function in a graph uses tf.nn.moments: it cannot be corrected."""
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op == "StopGradient" and "moments" in node.name:
                raise NoSecondDerivativeError(
                    "The model uses tf.nn.moments inside a tf.function, where its "
                    "second derivative in TensorFlow is wrong: remove the tf.function; "
                    "the loss is compiled anyway."
                )
