"""Convolutions of narrow maps with many channels, to the same bits in less time.

A CPU's kernels take the pixels of one row of one image at a time. With four of them,
oneDNN's read the weights more than they compute. So the batch is laid out as one image,
with the maps side by side and a column of zeros after each: the same sums, in the same
order, of longer rows. The weights' gradient, which does not gain, is left as it is.
"""

from __future__ import annotations

import tensorflow as tf

from tff_reg.models import gradients as gradients_lib

# Where it pays or is even in both of AVX2 and AVX512 (`bin/bench narrow_maps`).
_WIDTHS, _CHANNELS = range(2, 5), 512
_OPTIONS = {"strides": [1, 1, 1, 1], "padding": "SAME"}


def pays(x: tf.Tensor, kernel: tf.Tensor) -> bool:
    """Whether `convolve` is the faster one, as was measured on CPUs.

    Args:
      x: float [batch, height, width, in_channels], perhaps of sizes not known yet.
      kernel: float [rows, columns, in_channels, out_channels].

    Returns:
      True for clients' batches, whose size no graph knows, of maps of 2 to 4 columns,
      for kernels of 3 x 3 and 512 channels or more, where TensorFlow sees no GPU.
    """
    return (
        x.shape[0] is None
        and x.shape[1:].is_fully_defined()
        and x.shape[2] in _WIDTHS
        and kernel.shape[:2] == [3, 3]
        and kernel.shape[2:].is_fully_defined()
        and min(kernel.shape[2:]) >= _CHANNELS
        and not tf.config.get_visible_devices("GPU")
    )


@gradients_lib.custom_gradient
def convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`tf.nn.conv2d(x, kernel, 1, "SAME")`, with the same derivatives of any order.

    Args:
      x: float [batch, height, width, in_channels], all but the batch known.
      kernel: float [rows, columns, in_channels, out_channels], of at most 3 columns.

    Returns:
      float [batch, height, width, out_channels].
    """
    _, height, width, channels = x.shape
    y = _apart(tf.nn.conv2d(_side_by_side(x), kernel, 1, "SAME"), width)

    def gradient(upstream):
        joined = _side_by_side(upstream)
        x_gradient = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=[1, height, tf.shape(joined)[2], channels],
            filter=kernel,
            out_backprop=joined,
            **_OPTIONS,
        )
        x_gradient = tf.ensure_shape(x_gradient, [1, height, None, channels])
        kernel_gradient = tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=kernel.shape, out_backprop=upstream, **_OPTIONS
        )
        return _apart(x_gradient, width), kernel_gradient

    return y, gradient


def _side_by_side(x):
    """[batch, height, width, channels] to [1, height, batch (width + 1), channels]."""
    _, height, _, channels = x.shape
    padded = tf.pad(x, [[0, 0], [0, 0], [0, 1], [0, 0]])
    return tf.reshape(tf.transpose(padded, [1, 0, 2, 3]), [1, height, -1, channels])


def _apart(joined, width: int):
    """What `_side_by_side` was given, of that width."""
    _, height, _, channels = joined.shape
    maps = tf.reshape(joined, [height, -1, width + 1, channels])
    return tf.transpose(maps[:, :, :width], [1, 0, 2, 3])
