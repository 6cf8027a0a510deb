"""SqueezeNet for small images, a backbone of the FedMLB paper (Table 9).

Forrest N. Iandola, Song Han, Matthew W. Moskewicz, Khalid Ashraf, William J. Dally,
Kurt Keutzer. "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
model size." 2016. https://arxiv.org/abs/1602.07360

A fire module narrows its input by a 1x1 convolution, and widens that by a 1x1 and a 3x3
convolution side by side; `_FIRES` has their sizes. Modules 3, 5 and 7 add their input
(the paper's simple bypass).

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024), a common CIFAR variant: a 3x3 stem of 96 channels,
2x2 max-pooling after the stem, module 4 and module 8, GroupNorm of two groups, no
dropout, and PyTorch's default initialisation. FedMLB's cut there makes M = 9 blocks:
the stem, modules 2 to 8, and the classifier with module 9. The paper's last 1x1
convolution and the average over positions after it are computed the other way round,
as a linear layer of the average, which is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import block_model, classifiers, conv_units, layers, pooling

ForwardPass = layers.ForwardPass

_STEM = 96
# Channels between and of the output of modules 2 to 9.
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


def _convolution(in_channels, channels, kernel_size, seeds):
    return functools.partial(
        layers.Conv2D,
        in_channels,
        channels,
        kernel_size,
        seeds,
        padding=kernel_size // 2,
        use_bias=True,
        initializer=layers.uniform_fan_in,
    )


class Fire(block_model.Block):
    """A fire module, with its bypass and pooling if it has them.

    Args:
      in_channels: Channels of the input.
      squeezed: Channels in between.
      channels: Channels of the output, half of them from each convolution.
      branch_index: Position among the model's residual branches; None without bypass.
      pool: Function of the output, or None.
      norm: 'group', 'batch' or 'none'.
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        in_channels: int,
        squeezed: int,
        channels: int,
        *,
        branch_index: Optional[int] = None,
        pool: Optional[Callable] = None,
        norm: str,
        seeds: layers.Seeds,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self._branch_index = branch_index
        self._pool = pool
        half = channels // 2
        options: dict[str, Any] = dict(norm=norm, dtype=dtype)
        with tf.name_scope(name):
            self.squeeze = conv_units.ConvUnit(
                _convolution(in_channels, squeezed, 1, seeds),
                squeezed,
                name="squeeze",
                **options,
            )
            self.expand1 = conv_units.ConvUnit(
                _convolution(squeezed, half, 1, seeds), half, name="expand1", **options
            )
            self.expand3 = conv_units.ConvUnit(
                _convolution(squeezed, half, 3, seeds), half, name="expand3", **options
            )
        self.built = True

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


class SqueezeNetClassifier(classifiers.LinearClassifier):
    """The last fire module, global average pooling, and a linear layer."""

    def __init__(
        self,
        in_channels,
        squeezed,
        channels,
        num_classes,
        *,
        norm,
        projector,
        seeds,
        name,
        dtype,
    ):
        super().__init__(name=name, dtype=dtype)
        with tf.name_scope(name):
            self.fire = Fire(
                in_channels,
                squeezed,
                channels,
                norm=norm,
                seeds=seeds,
                name="fire",
                dtype=dtype,
            )
            self.add_head(channels, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        return tf.reduce_mean(self.fire(x, forward), axis=[1, 2])


def squeezenet(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "group",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> block_model.BlockModel:
    """Builds SqueezeNet.

    Args:
      input_shape: (height, width, channels) of an image, from 8x8.
      num_classes: Number of logits.
      norm: 'group', 'batch' or 'none', after every convolution; the paper has none.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A `BlockModel` with the blocks stem, fire2, ..., fire8, classifier. It has 3
      residual branches, the modules with a bypass; channels side by side cannot be cut
      to a fraction of their width.

    Raises:
      block_model.ImageSizeError: If the images are smaller than 8x8.
    """
    block_model.check_image_size("squeezenet", input_shape, _MINIMUM_SIDE)
    seeds = layers.Seeds(seed)
    options: dict[str, Any] = dict(norm=norm, dtype=dtype)
    pool = functools.partial(pooling.max_pool, size=2, stride=2)
    stem = _convolution(input_shape[-1], _STEM, 3, seeds)
    blocks = [conv_units.ConvUnit(stem, _STEM, pool=pool, name="stem", **options)]
    in_channels = _STEM
    for number, (squeezed, channels) in enumerate(_FIRES[:-1], start=_FIRST):
        is_bypassed = number in _BYPASSED
        blocks.append(
            Fire(
                in_channels,
                squeezed,
                channels,
                branch_index=_BYPASSED.index(number) if is_bypassed else None,
                pool=pool if number in _POOLED else None,
                seeds=seeds,
                name=f"fire{number}",
                **options,
            )
        )
        in_channels = channels
    blocks.append(
        SqueezeNetClassifier(
            in_channels,
            *_FIRES[-1],
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
        num_branches=len(_BYPASSED),
        supports_width=False,
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm != "batch",
    )
