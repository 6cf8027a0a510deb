"""MobileNetV2 for small images, a backbone of the FedMLB paper (Table 9).

Mark Sandler, Andrew Howard, Menglong Zhu, Andrey Zhmoginov, Liang-Chieh Chen.
"MobileNetV2: Inverted Residuals and Linear Bottlenecks." CVPR 2018.

A unit widens its input by a 1x1 convolution, convolves every channel by itself, and
narrows it again by a 1x1 convolution without a non-linearity; where neither the size
nor the channels change, its input is added. Channels, units and strides of the stages
are in `_STAGES`.

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024), a common CIFAR variant: the stem is a 1x1 convolution
with a padding of 1, only stages 2 to 4 halve the resolution, convolutions have biases,
norms are GroupNorm of two groups, and everything is initialised as PyTorch does by
default. FedMLB's cut there makes M = 8 blocks: the stem, stages 1 to 6, and the
classifier with stage 7, the last 1x1 convolution, global average pooling and the linear
layer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_reg.models import block_model, classifiers, conv_units, layers, resnet

ForwardPass = layers.ForwardPass

_STEM = 32
# Output channels, units, stride of the first, and by how much a unit widens its input.
_STAGES = (
    (16, 1, 1, 1),
    (24, 2, 2, 6),
    (32, 3, 2, 6),
    (64, 4, 2, 6),
    (96, 3, 1, 6),
    (160, 3, 1, 6),
    (320, 1, 1, 6),
)
_FEATURES = 1280


def _pointwise(in_channels, channels, seeds, padding=0):
    return functools.partial(
        layers.Conv2D,
        in_channels,
        channels,
        1,
        seeds,
        padding=padding,
        use_bias=True,
        initializer=layers.uniform_fan_in,
    )


class InvertedResidual(layers.ForwardLayer):
    """A unit: widen, convolve every channel, narrow; its input is added if it fits.

    Args:
      in_channels: Channels of the input.
      channels: Channels of the output.
      stride: Of the convolution in the middle.
      expansion: By how much the input is widened.
      branch_index: Position among the model's residual branches; None for a unit that
        adds nothing.
      norm: 'group', 'batch' or 'none'.
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        in_channels,
        channels,
        stride,
        expansion,
        *,
        branch_index,
        norm,
        seeds,
        name,
        dtype,
    ):
        super().__init__(name=name, dtype=dtype)
        self._branch_index = branch_index
        options: dict[str, Any] = dict(norm=norm, dtype=dtype)
        hidden = expansion * in_channels
        depthwise = functools.partial(
            layers.DepthwiseConv2D, hidden, 3, seeds, stride=stride, padding=1
        )
        with tf.name_scope(name):
            self.widen = conv_units.ConvUnit(
                _pointwise(in_channels, hidden, seeds),
                hidden,
                activation=tf.nn.relu6,
                name="widen",
                **options,
            )
            self.depthwise = conv_units.ConvUnit(
                depthwise, hidden, activation=tf.nn.relu6, name="depthwise", **options
            )
            self.narrow = conv_units.ConvUnit(
                _pointwise(hidden, channels, seeds),
                channels,
                activation=None,
                name="narrow",
                **options,
            )
        self.built = True

    def call(self, x, forward: ForwardPass):
        def branch():
            y = self.depthwise(self.widen(x, forward), forward)
            return self.narrow(y, forward)

        if self._branch_index is None:
            return branch()
        return layers.residual_sum(forward, self._branch_index, x, branch)


class MobileNetClassifier(classifiers.LinearClassifier):
    """The last stage, a 1x1 convolution, global average pooling, a linear layer."""

    def __init__(
        self, stage, in_channels, num_classes, *, norm, projector, seeds, name, dtype
    ):
        super().__init__(name=name, dtype=dtype)
        self.stage = stage
        with tf.name_scope(name):
            self.features = conv_units.ConvUnit(
                _pointwise(in_channels, _FEATURES, seeds),
                _FEATURES,
                norm=norm,
                activation=tf.nn.relu6,
                name="features",
                dtype=dtype,
            )
            self.add_head(_FEATURES, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        x = self.features(self.stage(x, forward), forward)
        return tf.reduce_mean(x, axis=[1, 2])


def mobilenet(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "group",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> block_model.BlockModel:
    """Builds MobileNetV2.

    Args:
      input_shape: (height, width, channels) of an image; any size and channels.
      num_classes: Number of logits.
      norm: 'group', 'batch' or 'none', after every convolution.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A `BlockModel` with the blocks stem, stage1, ..., stage6, classifier. It has 10
      residual branches and can run at a fraction of its width.
    """
    seeds = layers.Seeds(seed)
    options: dict[str, Any] = dict(norm=norm, dtype=dtype)
    blocks = [
        conv_units.ConvUnit(
            _pointwise(input_shape[-1], _STEM, seeds, padding=1),
            _STEM,
            activation=tf.nn.relu6,
            name="stem",
            **options,
        )
    ]
    in_channels, num_branches = _STEM, 0
    for number, (channels, num_units, first_stride, expansion) in enumerate(
        _STAGES, start=1
    ):
        units = []
        with tf.name_scope(f"stage{number}"):
            for unit in range(num_units):
                stride = 1 if unit else first_stride
                is_residual = stride == 1 and in_channels == channels
                units.append(
                    InvertedResidual(
                        in_channels,
                        channels,
                        stride,
                        expansion,
                        branch_index=num_branches if is_residual else None,
                        seeds=seeds,
                        name=f"unit{unit + 1}",
                        **options,
                    )
                )
                num_branches += is_residual
                in_channels = channels
        blocks.append(resnet.Stage(units, name=f"stage{number}", dtype=dtype))
    blocks.append(
        MobileNetClassifier(
            blocks.pop(),
            in_channels,
            num_classes,
            projector=projector,
            seeds=seeds,
            name="classifier",
            **options,
        )
    )
    return block_model.BlockModel(
        blocks,
        input_shape=input_shape,
        num_classes=num_classes,
        num_branches=num_branches,
        supports_width=True,
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm != "batch",
    )
