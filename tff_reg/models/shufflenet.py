"""ShuffleNet for small images, a backbone of the FedMLB paper (Table 9).

Xiangyu Zhang, Xinyu Zhou, Mengxiao Lin, Jian Sun. "ShuffleNet: An Extremely Efficient
Convolutional Neural Network for Mobile Devices." CVPR 2018. (The first version, which
the FedMLB paper cites.)

A unit is a grouped 1x1 convolution to a quarter of the output channels, a shuffle of
the channels, a 3x3 convolution of every channel by itself, and a grouped 1x1
convolution; then its input is added. The first unit of a stage halves the resolution
and appends its input, averaged over 3x3 windows, instead.

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024): 3 groups, stages of 4, 8 and 4 units with 240, 480
and 960 channels, a 3x3 stem of 24 channels without stride and pooling, groups in the
first convolution of all too, biases in all convolutions, GroupNorm of two groups, and
PyTorch's default initialisation. FedMLB's cut there makes M = 5 blocks: the stem, the
three stages, and the classifier after global average pooling.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers, pooling, resnet

ForwardPass = layers.ForwardPass

_GROUPS = 3
_STEM = 24
# Output channels and units of the stages.
_STAGES = ((240, 4), (480, 8), (960, 4))


class ShuffleUnit(layers.ForwardLayer):
    """A unit with a residual branch, or one that halves the resolution.

    Args:
      in_channels: Channels of the input.
      channels: Channels of the output.
      branch_index: Position among the model's residual branches; None for a unit that
        halves the resolution and appends its input.
      norm: 'group', 'batch' or 'none'.
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        branch_index: Optional[int],
        norm: str,
        seeds: layers.Seeds,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self._branch_index = branch_index
        is_residual = branch_index is not None
        hidden = channels // 4
        added = channels if is_residual else channels - in_channels
        depthwise = functools.partial(
            layers.DepthwiseConv2D,
            hidden,
            3,
            seeds,
            stride=1 if is_residual else 2,
            padding=1,
        )

        def pointwise(*channels):
            return functools.partial(
                layers.GroupedPointwiseConv2D, *channels, _GROUPS, seeds
            )

        options: dict[str, Any] = dict(norm=norm, dtype=dtype)
        self.shuffle = layers.ChannelShuffle(_GROUPS)
        with tf.name_scope(name):
            self.reduce = conv_units.ConvUnit(
                pointwise(in_channels, hidden), hidden, name="reduce", **options
            )
            self.depthwise = conv_units.ConvUnit(
                depthwise, hidden, activation=None, name="depthwise", **options
            )
            self.expand = conv_units.ConvUnit(
                pointwise(hidden, added),
                added,
                activation=None,
                name="expand",
                **options,
            )
        self.built = True

    def call(self, x, forward: ForwardPass):
        def branch():
            y = self.shuffle(self.reduce(x, forward), forward)
            return self.expand(self.depthwise(y, forward), forward)

        if self._branch_index is None:
            pooled = pooling.average_pool(x, 3, 2, padding=1)
            total = tf.concat([pooled, branch()], axis=-1)
        else:
            total = layers.residual_sum(forward, self._branch_index, x, branch)
        return forward.record(tf.nn.relu(total))


def shufflenet(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "group",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> block_model.BlockModel:
    """Builds ShuffleNet.

    Args:
      input_shape: (height, width, channels) of an image; any size and channels.
      num_classes: Number of logits.
      norm: 'group', 'batch' or 'none', after every convolution.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A `BlockModel` with the blocks stem, stage2, stage3, stage4, classifier (the
      paper's numbers). It has 13 residual branches; its groups and appended channels
      cannot be cut to a fraction of their width.
    """
    seeds = layers.Seeds(seed)
    options: dict[str, Any] = dict(norm=norm, dtype=dtype)
    stem = functools.partial(
        layers.Conv2D,
        input_shape[-1],
        _STEM,
        3,
        seeds,
        padding=1,
        use_bias=True,
        initializer=layers.uniform_fan_in,
    )
    blocks = [conv_units.ConvUnit(stem, _STEM, name="stem", **options)]
    in_channels, num_branches = _STEM, 0
    for number, (channels, num_units) in enumerate(_STAGES, start=2):
        units = []
        with tf.name_scope(f"stage{number}"):
            for unit in range(num_units):
                units.append(
                    ShuffleUnit(
                        in_channels,
                        channels,
                        branch_index=num_branches if unit else None,
                        seeds=seeds,
                        name=f"unit{unit + 1}",
                        **options,
                    )
                )
                num_branches += unit > 0
                in_channels = channels
        blocks.append(resnet.Stage(units, name=f"stage{number}", dtype=dtype))
    blocks.append(
        resnet.PoolingClassifier(
            in_channels,
            num_classes,
            projector=projector,
            seeds=seeds,
            name="classifier",
            dtype=dtype,
        )
    )
    return block_model.BlockModel(
        blocks,
        input_shape=input_shape,
        num_classes=num_classes,
        num_branches=num_branches,
        supports_width=False,
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm != "batch",
    )
