"""Residual networks for small images (He et al., CVPR 2016).

* `resnet56`: FedML's network of that name, used by the FedAlign paper:
  bottleneck blocks 6-6-6 with expansion 4 and stages of 16-32-64 planes
  (591,322 parameters with BatchNorm and 10 classes, 614,452 with 100), not the
  9-9-9 basic blocks of the original paper.
* `resnet20`, `resnet8`: basic blocks 3-3-3 and 1-1-1, stages 16-32-64.
* `resnet10`: basic blocks 1-1-1-1, stages 16-32-64-128: as many blocks as `resnet18`
  has, to try things out.
* `resnet18`: basic blocks 2-2-2-2, stages 64-128-256-512, with the stem for small
  images that the FedMLB paper uses.
* `resnet18_imagenet`: the same with the original stem, for the FedAlign paper's
  ImageNet-200: 7x7 with stride 2, then 3x3 max-pooling with stride 2 (torchvision's
  11,689,512 parameters with 1000 classes).
* `resnet18_no_maxpool`: that without the max-pooling, as the UniVarFL paper says.
* `resnet18_feduv`: FedUV's, which is UniVarFL's by all that it says: the stem for small
  images, and the first stage halves the resolution, too.

The others have a 3x3 stem with stride 1. All but FedUV's halve the resolution at every
stage but the first; all end in global average pooling and one linear layer. A shortcut
whose shape changes is a strided 1x1 convolution with a norm. Convolutions are
initialised as in torchvision (Kaiming normal over the fan-out), the classifier as
PyTorch's linear layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tff_reg.models import block_model, classifiers, layers, pooling

ForwardPass = layers.ForwardPass


class StemShape(NamedTuple):
    """What a stem is.

    Attributes:
      kernel_size: Of its convolution.
      stride: Of its convolution.
      has_pool: Whether 3x3 max-pooling with stride 2 follows.
    """

    kernel_size: int
    stride: int
    has_pool: bool


SMALL_STEM = StemShape(kernel_size=3, stride=1, has_pool=False)
IMAGENET_STEM = StemShape(kernel_size=7, stride=2, has_pool=True)


class Stem(block_model.Block):
    """A convolution, norm and ReLU, and max-pooling if the shape says so."""

    def __init__(self, in_channels, channels, shape, *, norm, seeds, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self._has_pool = shape.has_pool
        with tf.name_scope(name):
            self.conv = layers.Conv2D(
                in_channels,
                channels,
                shape.kernel_size,
                seeds,
                stride=shape.stride,
                padding=shape.kernel_size // 2,
                name="conv",
                dtype=dtype,
            )
            self.norm = layers.build_norm(norm, channels, name="norm", dtype=dtype)
        self.built = True

    def call(self, x, forward: ForwardPass):
        x = forward.record(tf.nn.relu(self.norm(self.conv(x, forward), forward)))
        return pooling.max_pool(x, 3, 2, padding=1) if self._has_pool else x


class Residual(layers.ForwardLayer):
    """A residual unit: convolutions with norms, added to a shortcut, then ReLU.

    Args:
      kernels: For each convolution (kernel size, output channels, stride).
      in_channels: Channels of the input.
      branch_index: Position of this unit's branch among the model's branches.
      norm: 'group' or 'batch'.
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(self, kernels, in_channels, *, branch_index, norm, seeds, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self._branch_index = branch_index
        self.convs, self.norms = [], []
        channels, total_stride = in_channels, 1
        with tf.name_scope(name):
            for number, (size, out_channels, stride) in enumerate(kernels, start=1):
                self.convs.append(
                    layers.Conv2D(
                        channels,
                        out_channels,
                        size,
                        seeds,
                        stride=stride,
                        padding=size // 2,
                        name=f"conv{number}",
                        dtype=dtype,
                    )
                )
                self.norms.append(
                    layers.build_norm(
                        norm, out_channels, name=f"norm{number}", dtype=dtype
                    )
                )
                channels, total_stride = out_channels, total_stride * stride
            self.shortcut_conv = self.shortcut_norm = None
            if total_stride != 1 or channels != in_channels:
                self.shortcut_conv = layers.Conv2D(
                    in_channels,
                    channels,
                    1,
                    seeds,
                    stride=total_stride,
                    name="shortcut_conv",
                    dtype=dtype,
                )
                self.shortcut_norm = layers.build_norm(
                    norm, channels, name="shortcut_norm", dtype=dtype
                )
        self.built = True

    def call(self, x, forward: ForwardPass):
        def branch(y=x):
            for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
                y = forward.record(tf.nn.relu(norm(conv(y, forward), forward)))
            return self.norms[-1](self.convs[-1](y, forward), forward)

        shortcut = x
        conv, norm = self.shortcut_conv, self.shortcut_norm
        if conv is not None and norm is not None:
            shortcut = norm(conv(x, forward), forward)
        total = layers.residual_sum(forward, self._branch_index, shortcut, branch)
        return forward.record(tf.nn.relu(total))


class Stage(block_model.Block):
    """Residual units one after another."""

    def __init__(self, units: Sequence[Residual], *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.units = list(units)
        self.built = True

    def call(self, x, forward: ForwardPass):
        for unit in self.units:
            x = unit(x, forward)
        return x


class PoolingClassifier(classifiers.LinearClassifier):
    """Global average pooling and one linear layer."""

    def __init__(self, in_channels, num_classes, *, projector, seeds, name, dtype):
        super().__init__(name=name, dtype=dtype)
        with tf.name_scope(name):
            self.add_head(in_channels, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        return tf.reduce_mean(x, axis=[1, 2])


def _basic(planes, stride):
    return [(3, planes, stride), (3, planes, 1)]


def _bottleneck(planes, stride):
    return [(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)]


def build_resnet(
    unit_kernels,
    units_per_stage: Sequence[int],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "group",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
    planes: Sequence[int] = (16, 32, 64),
    stem: StemShape = SMALL_STEM,
    first_stride: int = 1,
) -> block_model.BlockModel:
    """Builds a residual network; see the module's docstring for the shapes.

    Args:
      unit_kernels: Function of (planes, stride) giving the unit's convolutions.
      units_per_stage: Number of residual units of each stage.
      input_shape: (height, width, channels) of an image; any size and channels.
      num_classes: Number of logits.
      norm: 'group' or 'batch'.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.
      planes: Planes of each stage.
      stem: What comes before the stages.
      first_stride: Of the first stage; the others have 2.

    Returns:
      A `BlockModel` with the blocks stem, stage1, ..., classifier.
    """
    seeds = layers.Seeds(seed)
    options = dict(norm=norm, seeds=seeds, dtype=dtype)
    channels = planes[0]
    blocks = [Stem(input_shape[-1], channels, stem, name="stem", **options)]
    branch_index = 0
    for stage, (stage_planes, num_units) in enumerate(zip(planes, units_per_stage)):
        units = []
        with tf.name_scope(f"stage{stage + 1}"):
            for unit in range(num_units):
                stage_stride = 2 if stage else first_stride
                kernels = unit_kernels(stage_planes, 1 if unit else stage_stride)
                units.append(
                    Residual(
                        kernels,
                        channels,
                        branch_index=branch_index,
                        name=f"unit{unit + 1}",
                        **options,
                    )
                )
                channels = kernels[-1][1]
                branch_index += 1
        blocks.append(Stage(units, name=f"stage{stage + 1}", dtype=dtype))
    blocks.append(
        PoolingClassifier(
            channels,
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
        num_branches=branch_index,
        supports_width=True,
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm == "group",
    )


def resnet56(**options) -> block_model.BlockModel:
    """FedML's ResNet-56; options as in `build_resnet`."""
    return build_resnet(_bottleneck, (6, 6, 6), **options)


def resnet20(**options) -> block_model.BlockModel:
    """ResNet-20; options as in `build_resnet`."""
    return build_resnet(_basic, (3, 3, 3), **options)


def resnet8(**options) -> block_model.BlockModel:
    """ResNet-8; options as in `build_resnet`."""
    return build_resnet(_basic, (1, 1, 1), **options)


def resnet10(**options) -> block_model.BlockModel:
    """ResNet-10, narrow; options as in `build_resnet`."""
    return build_resnet(_basic, (1, 1, 1, 1), planes=(16, 32, 64, 128), **options)


def resnet18(**options) -> block_model.BlockModel:
    """ResNet-18 for small images; options as in `build_resnet`."""
    return build_resnet(_basic, (2, 2, 2, 2), planes=(64, 128, 256, 512), **options)


def resnet18_imagenet(**options) -> block_model.BlockModel:
    """ResNet-18 with the stem for ImageNet; options as in `build_resnet`."""
    return resnet18(stem=IMAGENET_STEM, **options)


def resnet18_no_maxpool(**options) -> block_model.BlockModel:
    """ResNet-18 for ImageNet without max-pooling; options as in `build_resnet`."""
    return resnet18(stem=IMAGENET_STEM._replace(has_pool=False), **options)


def resnet18_feduv(**options) -> block_model.BlockModel:
    """FedUV's ResNet-18; options as in `build_resnet`."""
    return resnet18(first_stride=2, **options)
