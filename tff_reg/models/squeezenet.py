"""SqueezeNet for small images, a backbone of the FedMLB paper (Table 9).

Forrest N. Iandola, Song Han, Matthew W. Moskewicz, Khalid Ashraf, William J. Dally,
Kurt Keutzer. "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
model size." 2016. https://arxiv.org/abs/1602.07360

A fire module narrows its input by a 1x1 convolution, and widens the result by a 1x1 and
a 3x3 convolution side by side; `_FIRES` has their sizes. Modules 3, 5 and 7 add their
input (the paper's simple bypass).

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024), a common CIFAR variant: a 3x3 stem of 96 channels,
2x2 max-pooling after the stem, module 4 and module 8, GroupNorm of two groups, no
dropout, and PyTorch's default initialisation. There, FedMLB divides it into M = 9
blocks: the stem, modules 2 to 8, and the classifier with module 9. The paper's last 1x1
convolution and the average over positions after it are computed in reverse order, as a
linear layer of the average, with the same result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers, pooling

ForwardPass = layers.ForwardPass

_STEM = 96
# Squeezed channels and output channels of modules 2 to 9.
_FIRES = (
    (16, 128),
    (16, 128),
    (32, 256),
    (32, 256),
    (48, 384),
    (48, 384),
    (64, 512),
    (64, 512),
)
_FIRST = 2
_BYPASSED = (3, 5, 7)
_POOLED = (4, 8)
_MINIMUM_SIDE = 8


def _unit(in_channels, channels, size, **options):
    """Maker of a convolution with its norm and ReLU."""
    convolution = conv_units.torch_conv(in_channels, channels, size, padding=size // 2)
    return functools.partial(conv_units.ConvUnit, convolution, **options)


class Fire(block_model.Block):
    """A fire module with optional bypass and pooling."""

    def make(
        self,
        in_channels: int,
        squeezed: int,
        channels: int,
        *,
        branch_index: Optional[int] = None,
        pool: Optional[Callable] = None,
        **options: Any,
    ):
        self._branch_index = branch_index
        self._pool = pool
        half = channels // 2
        options["dtype"] = self.dtype
        self.squeeze = _unit(in_channels, squeezed, 1)(name="squeeze", **options)
        self.expand1 = _unit(squeezed, half, 1)(name="expand1", **options)
        self.expand3 = _unit(squeezed, half, 3)(name="expand3", **options)

    def call(self, x, forward: ForwardPass):
        def branch():
            squeezed = self.squeeze(x, forward)
            halves = [self.expand1(squeezed, forward), self.expand3(squeezed, forward)]
            return tf.concat(halves, axis=-1)

        if self._branch_index is None:
            y = branch()
        else:
            y = layers.residual_sum(forward, self._branch_index, x, branch)
        return y if self._pool is None else self._pool(y)


def squeezenet(
    *, input_shape: Sequence[int], norm: str = "group", **options: Any
) -> block_model.BlockModel:
    """Builds SqueezeNet."""
    block_model.check_image_size("squeezenet", input_shape, _MINIMUM_SIDE)
    pool = functools.partial(pooling.max_pool, size=2, stride=2)
    blocks = {"stem": _unit(input_shape[-1], _STEM, 3, pool=pool)}
    in_channels = _STEM
    for number, (squeezed, channels) in enumerate(_FIRES[:-1], start=_FIRST):
        is_bypassed = number in _BYPASSED
        blocks[f"fire{number}"] = functools.partial(
            Fire,
            in_channels,
            squeezed,
            channels,
            branch_index=_BYPASSED.index(number) if is_bypassed else None,
            pool=pool if number in _POOLED else None,
        )
        in_channels = channels
    last = functools.partial(Fire, in_channels, *_FIRES[-1])
    return conv_units.build(
        blocks,
        functools.partial(conv_units.PoolingClassifier, _FIRES[-1][1], {"fire": last}),
        input_shape=input_shape,
        norm=norm,
        num_branches=len(_BYPASSED),
        **options,
    )
