"""Parts that several networks share, and `build`, which makes a network of them.

The maker of a part is the part's class, or a `functools.partial` of the class with some
arguments. `build` calls it with `norm`, `seeds`, `name` and `dtype`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import block_model, classifiers, layers, norms

ForwardPass = layers.ForwardPass
Maker = Callable[..., Any]

# Returns the maker of a convolution with bias and PyTorch's default initialisation.
torch_conv = functools.partial(
    functools.partial,
    layers.Conv2D,
    use_bias=True,
    initializer=layers.uniform_fan_in,
)


class ConvUnit(block_model.Block):
    """A convolution, an optional norm, an optional non-linearity, optional pooling."""

    def make(
        self,
        convolution: Maker,
        *,
        norm: str,
        seeds: layers.Seeds,
        groups: int = 2,
        activation: Optional[Callable] = tf.nn.relu,
        pool: Optional[Callable] = None,
    ):
        self._activation = activation
        self._pool = pool
        self.conv = convolution(seeds=seeds, name="conv", dtype=self.dtype)
        self.norm = None
        if norm != "none":
            channels = self.conv.out_channels
            self.norm = norms.build_norm(
                norm, channels, groups=groups, name="norm", dtype=self.dtype
            )

    def call(self, x, forward: ForwardPass):
        x = self.conv(x, forward)
        if self.norm is not None:
            x = self.norm(x, forward)
        if self._activation is not None:
            x = forward.activate(x, self._activation)
        return x if self._pool is None else self._pool(x)


class Stage(block_model.Block):
    """Units one after another, called unit1, unit2, ..."""

    def make(self, makers: Sequence[Maker], **options: Any):
        self.units = [
            make(name=f"unit{number}", dtype=self.dtype, **options)
            for number, make in enumerate(makers, start=1)
        ]

    def call(self, x, forward: ForwardPass):
        for unit in self.units:
            x = unit(x, forward)
        return x


class PoolingClassifier(classifiers.LinearClassifier):
    """Optional layers, global average pooling, and a linear layer."""

    def make(
        self,
        features: int,
        before: Optional[Mapping[str, Maker]] = None,
        *,
        num_classes: int,
        projector: str,
        norm: str,
        seeds: layers.Seeds,
    ):
        self.before = [
            make(norm=norm, seeds=seeds, name=name, dtype=self.dtype)
            for name, make in (before or {}).items()
        ]
        self.add_head(features, num_classes, projector=projector, seeds=seeds)

    def extract(self, x, forward: ForwardPass):
        for layer in self.before:
            x = layer(x, forward)
        return tf.reduce_mean(x, axis=[1, 2])


class HiddenLayersClassifier(classifiers.LinearClassifier):
    """Flattening, hidden layers with ReLU, and a linear layer.

    The features are the output of the last hidden layer. Flattening keeps the channels
    of a position together; in PyTorch, the positions of a channel stay together.
    """

    takes_any_size = False

    def make(
        self,
        shape: Sequence[int],
        hidden: Sequence[int],
        *,
        pool: Optional[Callable] = None,
        num_classes: int,
        projector: str,
        norm: str,
        seeds: layers.Seeds,
    ):
        del norm
        self._pool = pool
        self.hidden = []
        features = math.prod(shape)
        for number, units in enumerate(hidden, start=1):
            name = f"hidden{number}" if len(hidden) > 1 else "hidden"
            self.hidden.append(
                layers.Dense(features, units, seeds, name=name, dtype=self.dtype)
            )
            features = units
        self.hidden[0].flattened = shape  # Of the inputs: [height, width, channels].
        self.add_head(features, num_classes, projector=projector, seeds=seeds)

    def extract(self, x, forward: ForwardPass):
        if self._pool is not None:
            x = self._pool(x)
        sizes = x.shape[1:]
        features = None if None in sizes else math.prod(sizes)
        if features != self.hidden[0].kernel.shape[0]:
            raise block_model.MissingCapabilityError(
                "This model flattens its features, so it takes images of one size "
                f"only, but got features {x.shape} instead of "
                f"{self.hidden[0].kernel.shape[0]} numbers per image. Use a model that "
                "pools, for example 'resnet8'."
            )
        x = tf.reshape(x, shape=[-1, features])
        for layer in self.hidden:
            x = forward.activate(layer(x, forward))
        return x


def build(
    blocks: Mapping[str, Maker],
    classifier: Maker,
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str,
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
    num_branches: int = 0,
    supports_width: bool = False,
) -> block_model.BlockModel:
    """Builds a network."""
    options: dict[str, Any] = dict(norm=norm, seeds=layers.Seeds(seed), dtype=dtype)
    made = [make(name=name, **options) for name, make in blocks.items()]
    made.append(
        classifier(
            num_classes=num_classes, projector=projector, name="classifier", **options
        )
    )
    return block_model.BlockModel(
        made,
        input_shape=input_shape,
        num_classes=num_classes,
        num_branches=num_branches,
        supports_width=supports_width,
        dtype=dtype,
        seed=seed,
        has_independent_examples=norm != "batch",
    )
