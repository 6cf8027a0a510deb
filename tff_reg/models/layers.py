"""Layers that run at a fraction of their width, in float32 or float64, without Keras.

A layer creates its variables when it is made, and is called with the input and a
`ForwardPass`. It uses the first channels of its kernel: as many input channels as the
input has, and as many output channels as the pass's width gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.models import forward as forward_lib, initial, pooling

ForwardPass = forward_lib.ForwardPass


class ForwardLayer(tf.Module):
    """A layer that is called with its input and a `ForwardPass`.

    A sub-class creates its variables and layers in `make` and computes in `call`.
    """

    def __init__(
        self,
        *args: Any,
        name: Optional[str] = None,
        dtype: Any = "float32",
        **options: Any,
    ):
        super().__init__(name=name)
        self.dtype = tf.as_dtype(dtype)
        with tf.name_scope(self.name):
            self.make(*args, **options)

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """The layer's own variables in creation order, then its inner layers'."""
        return self._variables("trainable_variables")

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        """The variables that are not trained, in the same order."""
        return self._variables("non_trainable_variables")

    def _variables(self, kind: str) -> list[tf.Variable]:
        # `tf.Module` would sort them by the attributes' names.
        attributes = [v for n, v in vars(self).items() if not n.startswith("_self_")]
        members = tf.nest.flatten(attributes)
        is_trained = kind == "trainable_variables"
        found = [
            *(v for v in members if _is_variable(v) and v.trainable == is_trained),
            *(v for m in members if _has_variables(m) for v in getattr(m, kind)),
        ]
        return list({id(variable): variable for variable in found}.values())

    def add_weight(
        self,
        name: str,
        shape: Sequence[int],
        initializer: initial.Initializer,
        trainable: bool = True,
    ) -> tf.Variable:
        """Creates a variable."""
        value = functools.partial(initializer, shape, self.dtype)
        return tf.Variable(value, trainable, name=name, dtype=self.dtype, shape=shape)

    def make(self, *args: Any, **options: Any) -> None:
        """Creates the variables and layers; the name scope is the layer's."""

    def add_kernel(self, shape, initializer, bias_initializer, bias_size=None):
        """Creates `kernel`, and `bias` unless its initialiser is None."""
        self.kernel = self.add_weight("kernel", shape, initializer=initializer)
        self.bias: Any = None
        if bias_initializer is not None:
            self.bias = self.add_weight(
                "bias", (bias_size or shape[-1],), initializer=bias_initializer
            )

    # The data type of products with the kernel, if another one than that of weights.
    compute_dtype: Optional[tf.DType] = None

    def product(self, operation: Callable, x, kernel):
        """Computes `operation(x, kernel)` in `compute_dtype`; returns it in `dtype`."""
        if self.compute_dtype is None:
            return operation(x, kernel)
        y = operation(*(tf.cast(each, self.compute_dtype) for each in (x, kernel)))
        return tf.cast(y, self.dtype)

    def __call__(self, x, forward: ForwardPass):
        return self.call(x, forward)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def _has_variables(value: Any) -> bool:
    """Whether a value is a layer of this package or of Keras."""
    return isinstance(value, tf.Module) and hasattr(value, "trainable_variables")


def first_channels(vector, x):
    """Returns the first entries of a variable [channels], one per channel of `x`."""
    if x.shape[-1] == vector.shape[0]:
        return vector
    return vector[: forward_lib.number_of_channels(x)]


class Seeds:
    """Gives every initialiser of a model its own seed, in order of creation."""

    def __init__(self, seed: int):
        self._children = np.random.SeedSequence(seed)

    def next(self) -> int:
        """Returns the next seed, from 0 to 2**31 - 1."""
        (child,) = self._children.spawn(1)
        return int(child.generate_state(1)[0] & 0x7FFFFFFF)


def he_normal_fan_out(seeds: Seeds) -> initial.Initializer:
    """Kaiming normal over the fan-out, as in torchvision's ResNets."""
    return initial.normal_fan_out(seeds.next())


def uniform_fan_in(seeds: Seeds) -> initial.Initializer:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for weights."""
    return initial.uniform_fan_in(seeds.next())


def uniform_bias(seeds: Seeds, fan_in: int) -> initial.Initializer:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for biases."""
    return initial.uniform(fan_in**-0.5, seeds.next())


def zero_bias(seeds: Seeds, fan_in: int) -> initial.Initializer:
    """Zeros, for any fan-in."""
    del seeds, fan_in
    return tf.zeros


class Conv2D(ForwardLayer):
    """A 2-D convolution over [batch, height, width, channels], padded as in PyTorch."""

    def make(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        seeds: Seeds,
        *,
        stride: int = 1,
        padding: int = 0,
        use_bias: bool = False,
        initializer: Callable = he_normal_fan_out,
        bias_initializer: Callable = uniform_bias,
    ):
        self.out_channels = out_channels
        self.stride = stride
        self.padding = _Padding(kernel_size, stride, padding)
        shape = (kernel_size, kernel_size, in_channels, out_channels)
        fan_in = kernel_size**2 * in_channels
        of_kernel = initializer(seeds)
        of_bias = bias_initializer(seeds, fan_in) if use_bias else None
        self.add_kernel(shape, of_kernel, of_bias)

    def call(self, x, forward: ForwardPass):
        kernel, bias = self.kernel, self.bias
        channels = forward_lib.channels_at_width(self.out_channels, forward.width)
        is_whole = forward.has_static_width and channels == kernel.shape[3]
        if x.shape[-1] != kernel.shape[2] or not is_whole:
            kernel = kernel[:, :, : forward_lib.number_of_channels(x), :channels]
            bias = None if bias is None else bias[:channels]
        x, stride = self.padding(x), self.stride
        if kernel.shape[0] == 1 and stride > 1:
            # In gradients of strided 1x1 kernels, oneDNN in TF 2.14 writes beyond its
            # buffers (8 to 16 channels, varying batches, two threads per operation).
            # Pooling single pixels gives x[:, ::stride, ::stride], 20 times as fast.
            x, stride = pooling.average_pool(x, 1, stride), 1
        convolve = functools.partial(
            tf.nn.conv2d, strides=stride, padding=self.padding.name
        )
        x = self.product(convolve, x, kernel)
        return x if bias is None else tf.nn.bias_add(x, bias)


class DepthwiseConv2D(ForwardLayer):
    """A 2-D convolution of every channel with a separate kernel, with biases.

    It is initialised as in PyTorch. Below full width it keeps its input's channels.
    """

    filter_axes = (0, 1)

    def make(
        self,
        channels: int,
        kernel_size: int,
        seeds: Seeds,
        *,
        stride: int = 1,
        padding: int = 0,
    ):
        self.out_channels = channels
        self.stride = stride
        self.padding = _Padding(kernel_size, stride, padding)
        shape = (kernel_size, kernel_size, channels, 1)
        initial = (uniform_bias(seeds, kernel_size**2) for _ in range(2))
        self.add_kernel(shape, *initial, bias_size=channels)

    def call(self, x, forward: ForwardPass):
        kernel, bias = self.kernel, first_channels(self.bias, x)
        if x.shape[-1] != kernel.shape[2]:
            kernel = kernel[:, :, : forward_lib.number_of_channels(x)]
        strides = [1, self.stride, self.stride, 1]
        x = tf.nn.depthwise_conv2d(self.padding(x), kernel, strides, self.padding.name)
        return tf.nn.bias_add(x, bias)


class GroupedPointwiseConv2D(ForwardLayer):
    """A 1x1 convolution in groups of consecutive channels, with biases.

    It is a batch of matrix products, because TensorFlow has no gradient of grouped
    convolutions in float64 on a CPU. It is initialised as in PyTorch and runs at full
    width only.
    """

    filter_axes = (1,)

    def make(self, in_channels: int, out_channels: int, groups: int, seeds: Seeds):
        self.out_channels = out_channels
        self.groups = groups
        fan_in = in_channels // groups
        shape = (groups, fan_in, out_channels // groups)
        initial = (uniform_bias(seeds, fan_in) for _ in range(2))
        self.add_kernel(shape, *initial, bias_size=out_channels)

    def call(self, x, forward: ForwardPass):
        grouped = tf.reshape(x, [-1, self.groups, self.kernel.shape[1]])
        grouped = tf.transpose(grouped, [1, 0, 2])
        products = self.product(tf.linalg.matmul, grouped, self.kernel)
        flat = tf.reshape(tf.transpose(products, [1, 0, 2]), [-1, self.bias.shape[0]])
        return _at_positions(tf.nn.bias_add(flat, self.bias), x)


class ChannelShuffle(ForwardLayer):
    """Distributes the channels of each group over all groups (ShuffleNet).

    Channel i of group g moves to position i * groups + g.
    """

    def make(self, groups: int):
        self.groups = groups

    def call(self, x, forward: ForwardPass):
        channels = x.shape[-1]
        grouped = tf.reshape(x, [-1, self.groups, channels // self.groups])
        flat = tf.reshape(tf.transpose(grouped, [0, 2, 1]), [-1, channels])
        return _at_positions(flat, x)


def _at_positions(flat, x):
    """Reshapes [positions, channels] to `x`'s [batch, height, width, channels]."""
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], flat.shape[-1:]], 0))


class _Padding:
    """Zeros on every side of an image, and TensorFlow's name of the remaining padding.

    oneDNN knows 'SAME' and 'VALID' but no explicit padding; at stride 1, 'SAME' pads
    both ends equally.

    Attributes:
      name: 'SAME' or 'VALID', for the convolution.
    """

    def __init__(self, kernel_size: int, stride: int, padding: int):
        self._padding = padding
        self.name = "VALID"
        if stride == 1 and 2 * padding == kernel_size - 1:
            self._padding, self.name = 0, "SAME"

    def __call__(self, x):
        return pooling.pad(x, self._padding)


class Dense(ForwardLayer):
    """A linear layer over [batch, features], initialised as in PyTorch.

    Below full width only the input is narrower: a classifier keeps its classes.
    """

    def make(self, in_features: int, out_features: int, seeds: Seeds):
        initial = uniform_fan_in(seeds), uniform_bias(seeds, in_features)
        self.add_kernel((in_features, out_features), *initial)

    def call(self, x, forward: ForwardPass):
        kernel = first_channels(self.kernel, x)
        return tf.nn.bias_add(self.product(tf.linalg.matmul, x, kernel), self.bias)


def residual_sum(
    forward: ForwardPass,
    branch_index: int,
    shortcut,
    branch: Callable[[], tf.Tensor],
):
    """Returns `shortcut + scale * branch`; the pass may scale or drop branches.

    In training a branch of scale 0 is not run, so that its BatchNorm statistics stay,
    unless the pass records activations.
    """
    if forward.branch_scales is None:
        return shortcut + branch()
    scale = tf.cast(forward.branch_scales[branch_index], shortcut.dtype)
    if not forward.training or forward.record_activations:
        return shortcut + scale * branch()
    return tf.cond(
        tf.not_equal(scale, 0),
        lambda: shortcut + scale * branch(),
        lambda: shortcut,
    )
