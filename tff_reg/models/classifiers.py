"""The head of a network between features and logits: projector and linear layer.

A projector is part of the model. Its output is the embedding that MOON and UniVarFL
regularise, and the input of the classifier's linear layer.

* `moon`: linear, ReLU, linear (Li, He, Song, "Model-Contrastive Federated Learning",
  CVPR 2021), with the sizes of the FedAlign authors' networks: as many hidden units
  as features, and min(features, 256) outputs. The sizes are 256-256-256 for their
  ResNet-56 and 512-512-256 for ResNet-18.
* `univarfl`: "a two-layer projector (batch normalization + ReLU)" of 256 neurons for
  the small CNN and 512 for ResNet-18 (UniVarFL, Section 4). The paper says no more.
  Here it is linear, batch norm, ReLU, linear; both linear layers have biases and
  max(features, 256) units. This gives the paper's two sizes, and 256 for ResNet-8,
  ResNet-20 and ResNet-56. The norm is always batch norm, even if the network has
  another norm, so that the model has running statistics.
* `feduv`: the same sizes, but linear, batch norm and ReLU, all three twice, as in the
  code of FedUV (Son et al., CVPR 2024), which UniVarFL follows; the embedding is the
  output of the second ReLU.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from tff_reg.models import block_model, layers, norms

ForwardPass = layers.ForwardPass

MOON_FEATURES = 256
UNIVARFL_FEATURES = 256


class Projector(layers.ForwardLayer):
    """A linear layer, an optional batch norm, ReLU, and a linear layer.

    `ends_in_relu` adds another batch norm and ReLU.

    Below full width only the input has fewer features.

    Attributes:
      features: Features of the output, at every width.
    """

    def make(
        self,
        in_features: int,
        hidden: int,
        features: int,
        *,
        has_norm: bool,
        ends_in_relu: bool = False,
        seeds: layers.Seeds,
    ):
        self.features = features
        dtype = self.dtype
        self.dense1 = layers.Dense(
            in_features, hidden, seeds, name="dense1", dtype=dtype
        )
        norm = functools.partial(norms.BatchNorm, dtype=dtype)
        self.norm = norm(hidden, name="norm") if has_norm else None
        self.dense2 = layers.Dense(hidden, features, seeds, name="dense2", dtype=dtype)
        self.norm2 = norm(features, name="norm2") if ends_in_relu else None

    def call(self, x, forward: ForwardPass):
        x = self.dense1(x, forward)
        if self.norm is not None:
            x = self.norm(x, forward)
        x = self.dense2(forward.activate(x), forward)
        if self.norm2 is None:
            return x
        return forward.activate(self.norm2(x, forward))


def _projector(kind: str, in_features: int, **options: Any) -> Optional[Projector]:
    """Makes the projector `kind`; None for 'none'. See the module's docstring."""
    if kind == "none":
        return None
    if kind == "moon":
        features = min(in_features, MOON_FEATURES)
        return Projector(in_features, in_features, features, has_norm=False, **options)
    features = max(in_features, UNIVARFL_FEATURES)
    options.update(has_norm=True, ends_in_relu=kind == "feduv")
    return Projector(in_features, features, features, **options)


class LinearClassifier(block_model.Classifier):
    """A feature extractor, an optional projector, and a linear layer.

    A sub-class makes the layers of its feature extractor, then calls `add_head`, and
    defines `extract`.
    """

    def add_head(
        self, features: int, num_classes: int, *, projector: str, seeds: layers.Seeds
    ):
        """Makes the projector and the linear layer."""
        self.projector = _projector(
            projector, features, seeds=seeds, name="projector", dtype=self.dtype
        )
        if self.projector is not None:
            features = self.projector.features
        self.dense = layers.Dense(
            features, num_classes, seeds, name="dense", dtype=self.dtype
        )

    def extract(self, x, forward: ForwardPass):
        """Returns features [batch, features] from the previous block's output."""
        raise NotImplementedError

    def embed(self, x, forward: ForwardPass):
        features = self.extract(x, forward)
        if self.projector is None:
            return features
        return self.projector(features, forward)

    def classify(self, embedding, forward: ForwardPass):
        return self.dense(embedding, forward)

    @property
    def linear_layer(self):
        return self.dense

    def replace_linear_layer(self, layer: layers.ForwardLayer) -> None:
        self.dense = layer
