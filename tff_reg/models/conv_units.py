"""Plain CNNs, and their parts: convolutions with what comes after, hidden layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.models import block_model, classifiers, layers

ForwardPass = layers.ForwardPass


class ConvUnit(block_model.Block):
    """A convolution, an optional norm, an optional non-linearity, optional pooling.

    Args:
      convolution: Makes the convolution, given its `name` and `dtype`.
      channels: Its output channels.
      norm: 'group', 'batch' or 'none'.
      groups: Of group normalisation.
      activation: The non-linearity, whose output is recorded; None for none.
      pool: Function of the activation, or None.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        convolution: Callable,
        channels: int,
        *,
        norm: str,
        groups: int = 2,
        activation: Optional[Callable] = tf.nn.relu,
        pool: Optional[Callable] = None,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self._pool = pool
        self.norm = None
        with tf.name_scope(name):
            self.conv = convolution(name="conv", dtype=dtype)
            if norm != "none":
                self.norm = layers.build_norm(
                    norm, channels, groups=groups, name="norm", dtype=dtype
                )
        self.built = True

    def call(self, x, forward: ForwardPass):
        x = self.conv(x, forward)
        if self.norm is not None:
            x = self.norm(x, forward)
        if self._activation is not None:
            x = forward.record(self._activation(x))
        return x if self._pool is None else self._pool(x)


class HiddenLayersClassifier(classifiers.LinearClassifier):
    """Flattening, hidden layers with ReLU, and a linear layer.

    The last hidden layer gives the features. Flattened, the channels of one position
    lie next to each other; in PyTorch, the positions of one channel.

    Args:
      features: Numbers of an example once flattened.
      hidden: Units of the hidden layers.
      num_classes: Number of logits.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        num_classes: int,
        *,
        projector: str,
        seeds: layers.Seeds,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self.hidden = []
        with tf.name_scope(name):
            for number, units in enumerate(hidden, start=1):
                layer_name = f"hidden{number}" if len(hidden) > 1 else "hidden"
                self.hidden.append(
                    layers.Dense(features, units, seeds, name=layer_name, dtype=dtype)
                )
                features = units
            self.add_head(features, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        features = x.shape[1:].num_elements()
        if features != self.hidden[0].kernel.shape[0]:
            raise block_model.MissingCapabilityError(
                "This model flattens its features, so it takes images of one size "
                f"only, but they came as {x.shape}, not "
                f"{self.hidden[0].kernel.shape[0]} numbers an image. Take a model that "
                "pools, for example 'resnet8'."
            )
        x = tf.reshape(x, shape=[-1, features])
        for layer in self.hidden:
            x = forward.record(tf.nn.relu(layer(x, forward)))
        return x


class Convolution(NamedTuple):
    """A convolution of a plain CNN.

    Attributes:
      channels: Its output channels.
      kernel_size: Height and width of the kernel.
      stride: Of both axes.
      padding: Zeros added on every side.
      pool: Function of the activation, or None.
    """

    channels: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    pool: Optional[Callable] = None


def build(
    convolutions: Sequence[Convolution],
    classifier: Callable[..., block_model.Block],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str,
    groups: int = 2,
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
    **options: Any,
) -> block_model.BlockModel:
    """Builds a plain CNN.

    Args:
      convolutions: The convolutions, each with a norm and ReLU.
      classifier: Makes the last block, given what else it takes by keyword.
      input_shape: (height, width, channels) of an image.
      num_classes: Number of logits.
      norm: 'group', 'batch' or 'none', after every convolution.
      groups: Of group normalisation.
      projector: One of `names.PROJECTOR_NAMES` (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.
      **options: Those of `layers.Conv2D`: biases and initialisers.

    Returns:
      A `BlockModel` with the blocks conv1, conv2, ..., classifier. It cannot run at a
      fraction of its width.
    """
    seeds = layers.Seeds(seed)
    blocks: list[block_model.Block] = []
    in_channels = input_shape[-1]
    for number, each in enumerate(convolutions, start=1):
        convolution = functools.partial(
            layers.Conv2D,
            in_channels,
            each.channels,
            each.kernel_size,
            seeds,
            stride=each.stride,
            padding=each.padding,
            **options,
        )
        blocks.append(
            ConvUnit(
                convolution,
                each.channels,
                norm=norm,
                groups=groups,
                pool=each.pool,
                name=f"conv{number}",
                dtype=dtype,
            )
        )
        in_channels = each.channels
    blocks.append(
        classifier(
            num_classes=num_classes,
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
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm != "batch",
        num_branches=0,
        supports_width=False,
    )
