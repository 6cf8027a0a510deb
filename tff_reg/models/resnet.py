"""Residual networks for small images (He et al., CVPR 2016).

* `resnet56`: FedML's network of that name, used by the FedAlign paper:
  bottleneck blocks 6-6-6 with expansion 4 and stages of 16-32-64 planes
  (591,322 parameters with BatchNorm and 10 classes, 614,452 with 100), not the
  9-9-9 basic blocks of the original paper.
* `resnet20`, `resnet8`: basic blocks 3-3-3 and 1-1-1, stages 16-32-64.
* `resnet10`: basic blocks 1-1-1-1, stages 16-32-64-128: for quick trials, with as many
  stages as `resnet18`.
* `resnet18`: basic blocks 2-2-2-2, stages 64-128-256-512, with the stem for small
  images that the FedMLB paper uses.
* `resnet18_imagenet`: the same with the original stem, for the FedAlign paper's
  ImageNet-200: 7x7 with stride 2, then 3x3 max-pooling with stride 2 (torchvision's
  11,689,512 parameters with 1000 classes).
* `resnet18_no_maxpool`: `resnet18_imagenet` without max-pooling (the UniVarFL paper).
* `resnet18_feduv`: the ResNet-18 of FedUV and, as far as its paper says, of UniVarFL:
  the stem for small images, and the first stage halves the resolution, too.

The other networks have a 3x3 stem with stride 1. All but FedUV's halve the resolution
at every stage but the first; all end in global average pooling and one linear layer. A
shortcut that changes the shape is a strided 1x1 convolution with a norm. Convolutions
are initialised as in torchvision (Kaiming normal over the fan-out), the classifier as
PyTorch's linear layers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tff_reg.models import block_model, conv_units, layers, norms, pooling

ForwardPass = layers.ForwardPass


class StemShape(NamedTuple):
    """The shape of a stem.

    Attributes:
      kernel_size: Kernel size of its convolution.
      stride: Stride of its convolution.
      has_pool: Whether 3x3 max-pooling with stride 2 follows.
    """

    kernel_size: int
    stride: int
    has_pool: bool


SMALL_STEM = StemShape(kernel_size=3, stride=1, has_pool=False)
IMAGENET_STEM = StemShape(kernel_size=7, stride=2, has_pool=True)


class Residual(layers.ForwardLayer):
    """A residual unit: convolutions with norms, added to a shortcut, then ReLU."""

    def make(self, kernels, in_channels, branch_index, *, norm, seeds):
        def convolution(name, *shape, stride):
            options = dict(stride=stride, padding=shape[-1] // 2, dtype=self.dtype)
            return layers.Conv2D(*shape, seeds, name=name, **options)

        def normalization(name, channels):
            return norms.build_norm(norm, channels, name=name, dtype=self.dtype)

        self._branch_index = branch_index
        self.convs, self.norms = [], []
        channels, total_stride = in_channels, 1
        for number, (size, out_channels, stride) in enumerate(kernels, start=1):
            shape = (channels, out_channels, size)
            self.convs.append(convolution(f"conv{number}", *shape, stride=stride))
            self.norms.append(normalization(f"norm{number}", out_channels))
            channels, total_stride = out_channels, total_stride * stride
        self.shortcut_conv = self.shortcut_norm = None
        if total_stride != 1 or channels != in_channels:
            shape = (in_channels, channels, 1)
            self.shortcut_conv = convolution(
                "shortcut_conv", *shape, stride=total_stride
            )
            self.shortcut_norm = normalization("shortcut_norm", channels)

    def call(self, x, forward: ForwardPass):
        def branch(y=x):
            for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
                y = forward.activate(norm(conv(y, forward), forward))
            return self.norms[-1](self.convs[-1](y, forward), forward)

        shortcut = x
        conv, norm = self.shortcut_conv, self.shortcut_norm
        if conv is not None and norm is not None:
            shortcut = norm(conv(x, forward), forward)
        total = layers.residual_sum(forward, self._branch_index, shortcut, branch)
        return forward.activate(total)


def _basic(planes, stride):
    return [(3, planes, stride), (3, planes, 1)]


def _bottleneck(planes, stride):
    return [(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)]


def build_resnet(
    unit_kernels,
    units_per_stage: Sequence[int],
    *,
    input_shape: Sequence[int],
    norm: str = "group",
    planes: Sequence[int] = (16, 32, 64),
    stem: StemShape = SMALL_STEM,
    first_stride: int = 1,
    **options: Any,
) -> block_model.BlockModel:
    """Builds a residual network; see the module's docstring for the shapes."""
    convolution = functools.partial(
        layers.Conv2D,
        input_shape[-1],
        planes[0],
        stem.kernel_size,
        stride=stem.stride,
        padding=stem.kernel_size // 2,
    )
    pool = functools.partial(pooling.max_pool, size=3, stride=2, padding=1)
    blocks = {
        "stem": functools.partial(
            conv_units.ConvUnit, convolution, pool=pool if stem.has_pool else None
        )
    }
    channels, branches = planes[0], itertools.count()
    for stage, (stage_planes, num_units) in enumerate(zip(planes, units_per_stage)):
        units = []
        for unit in range(num_units):
            stage_stride = 2 if stage else first_stride
            kernels = unit_kernels(stage_planes, 1 if unit else stage_stride)
            units.append(functools.partial(Residual, kernels, channels, next(branches)))
            channels = kernels[-1][1]
        blocks[f"stage{stage + 1}"] = functools.partial(conv_units.Stage, units)
    return conv_units.build(
        blocks,
        functools.partial(conv_units.PoolingClassifier, channels),
        input_shape=input_shape,
        norm=norm,
        num_branches=next(branches),
        supports_width=True,
        **options,
    )


# Options as in `build_resnet`; the module's docstring describes the networks.
resnet56 = functools.partial(build_resnet, _bottleneck, (6, 6, 6))
resnet20 = functools.partial(build_resnet, _basic, (3, 3, 3))
resnet8 = functools.partial(build_resnet, _basic, (1, 1, 1))
resnet10 = functools.partial(
    build_resnet, _basic, (1, 1, 1, 1), planes=(16, 32, 64, 128)
)
resnet18 = functools.partial(
    build_resnet, _basic, (2, 2, 2, 2), planes=(64, 128, 256, 512)
)
resnet18_imagenet = functools.partial(resnet18, stem=IMAGENET_STEM)
resnet18_no_maxpool = functools.partial(
    resnet18, stem=IMAGENET_STEM._replace(has_pool=False)
)
resnet18_feduv = functools.partial(resnet18, first_stride=2)
