"""ShuffleNet for small images, a backbone of the FedMLB paper (Table 9).

Xiangyu Zhang, Xinyu Zhou, Mengxiao Lin, Jian Sun. "ShuffleNet: An Extremely Efficient
Convolutional Neural Network for Mobile Devices." CVPR 2018. (The first version, which
the FedMLB paper cites.)

A unit is a grouped 1x1 convolution to a quarter of the output channels, a shuffle of
the channels, a 3x3 depthwise convolution, and a grouped 1x1 convolution; then the unit
adds its input. The first unit of a stage halves the resolution and, instead of adding
its input, appends it, averaged over 3x3 windows.

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024): 3 groups, stages of 4, 8 and 4 units with 240, 480
and 960 channels, a 3x3 stem of 24 channels without stride and pooling, groups also in
the first unit's first convolution, biases in all convolutions, GroupNorm of two groups,
and PyTorch's default initialisation. There, FedMLB divides it into M = 5 blocks: the
stem, the three stages, and the classifier after global average pooling.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers, pooling

ForwardPass = layers.ForwardPass

_GROUPS = 3
_STEM = 24
# Output channels and units of the stages.
_STAGES = ((240, 4), (480, 8), (960, 4))


class ShuffleUnit(layers.ForwardLayer):
    """A unit with a residual branch, or one that halves the resolution."""

    def make(self, in_channels, channels, branch_index, **options):
        self._branch_index = branch_index
        is_residual = branch_index is not None
        hidden = channels // 4
        added = channels if is_residual else channels - in_channels
        options["dtype"] = self.dtype

        def pointwise(in_channels, channels, **more):
            convolution = functools.partial(
                layers.GroupedPointwiseConv2D, in_channels, channels, _GROUPS
            )
            return conv_units.ConvUnit(convolution, **more, **options)

        self.shuffle = layers.ChannelShuffle(_GROUPS)
        self.reduce = pointwise(in_channels, hidden, name="reduce")
        depthwise = functools.partial(
            layers.DepthwiseConv2D, hidden, 3, stride=2 - is_residual, padding=1
        )
        self.depthwise = conv_units.ConvUnit(
            depthwise, activation=None, name="depthwise", **options
        )
        self.expand = pointwise(hidden, added, activation=None, name="expand")

    def call(self, x, forward: ForwardPass):
        def branch():
            y = self.shuffle(self.reduce(x, forward), forward)
            return self.expand(self.depthwise(y, forward), forward)

        if self._branch_index is None:
            pooled = pooling.average_pool(x, 3, 2, padding=1)
            total = tf.concat([pooled, branch()], axis=-1)
        else:
            total = layers.residual_sum(forward, self._branch_index, x, branch)
        return forward.activate(total)


def shufflenet(
    *, input_shape: Sequence[int], norm: str = "group", **options: Any
) -> block_model.BlockModel:
    """Builds ShuffleNet."""
    stem = conv_units.torch_conv(input_shape[-1], _STEM, 3, padding=1)
    blocks = {"stem": functools.partial(conv_units.ConvUnit, stem)}
    in_channels, num_branches = _STEM, 0
    for number, (channels, num_units) in enumerate(_STAGES, start=2):
        units = []
        for unit in range(num_units):
            index = num_branches if unit else None
            units.append(functools.partial(ShuffleUnit, in_channels, channels, index))
            num_branches += unit > 0
            in_channels = channels
        blocks[f"stage{number}"] = functools.partial(conv_units.Stage, units)
    return conv_units.build(
        blocks,
        functools.partial(conv_units.PoolingClassifier, in_channels),
        input_shape=input_shape,
        norm=norm,
        num_branches=num_branches,
        **options,
    )
