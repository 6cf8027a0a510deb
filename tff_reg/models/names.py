"""The names of the models: our own and the models of installed packages.

This module needs no TensorFlow. A package offers a model by an entry point in the group
`tff_reg.models`: a function that makes the network,

    def wide(*, input_shape, num_classes, norm, projector, seed, dtype) -> BlockModel

whose attribute `norms`, if it has one, lists the norms that the network can have.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from tff_reg import plugins

NORM_NAMES = ("group", "batch", "none")
PROJECTOR_NAMES = ("none", "moon", "univarfl", "feduv")
# A `mixed_precision` that the runtime carries out: how a GPU multiplies float32.
TF32 = "tf32"
IMAGES, ROWS, TEXTS = "images", "rows of numbers", "texts"


class Network(NamedTuple):
    """A network of ours.

    Attributes:
      module: The module whose function of the network's name builds it.
      norms: The normalisations that it can have; the first is the default.
    """

    module: str
    norms: tuple[str, ...] = NORM_NAMES


_RESNET = Network("resnet", ("group", "batch"))
NETWORKS = {
    "cnn": Network("plain_cnns"),
    "resnet8": _RESNET,
    "resnet10": _RESNET,
    "resnet18": _RESNET,
    "resnet18_imagenet": _RESNET,
    "resnet18_no_maxpool": _RESNET,
    "resnet18_feduv": _RESNET,
    "resnet20": _RESNET,
    "resnet56": _RESNET,
    "vgg9": Network("plain_cnns"),
    "mobilenet": Network("mobilenet"),
    "shufflenet": Network("shufflenet"),
    "squeezenet": Network("squeezenet"),
    "feddyn_cnn": Network("plain_cnns", ("none",)),
    "man_convnet": Network("plain_cnns"),
    "univarfl_cnn": Network("plain_cnns", ("none",)),
    "feduv_cnn": Network("plain_cnns", ("batch", "group")),
}


def _load(name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"tff_reg.models.{NETWORKS[name].module}")
    return getattr(module, name)


def _must(name: str, value: Any) -> str:
    return "" if callable(value) else "a function that makes the network"


_REGISTRY = plugins.Registry("tff_reg.models", NETWORKS, _load, _must)
MODEL_NAMES = _REGISTRY.names()
# Networks of Keras layers for other examples, in `keras_nets`.
OF_KIND = {"mlp": ROWS, "lstm": TEXTS, "transformer": TEXTS}
# Networks of `keras.applications`, which a classifier follows.
KERAS_NAMES = tuple(
    f"keras:{name}"
    for name in (
        *("MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"),
        *("ResNet50", "ResNet101", "ResNet50V2", "DenseNet121", "VGG16", "Xception"),
        *("EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny"),
    )
)
# The end of the name of a file with a Keras model.
FILE = ".keras"
ALL_NAMES = (*MODEL_NAMES, *OF_KIND, *KERAS_NAMES)


def norms_of(model_name: str) -> tuple[str, ...]:
    """Returns the normalisations that a model can have.

    >>> from tff_reg import models
    >>> models.norms_of("resnet56"), models.norms_of("feddyn_cnn")
    (('group', 'batch'), ('none',))

    Args:
      model_name: One of `ALL_NAMES`.

    Returns:
      Some of `NORM_NAMES`; the first is the default.

    Raises:
      PluginError: If the model's package cannot be loaded.
    """
    if model_name in NETWORKS:
        return NETWORKS[model_name].norms
    return tuple(getattr(of_package(model_name), "norms", ("none",)))


def is_file(model_name: Optional[str]) -> bool:
    """Returns whether a model is a file of the user's Keras model."""
    return bool(model_name) and model_name.endswith(FILE)


def kind_of(model_name: str) -> str:
    """Returns what a model takes: images, rows of numbers or texts."""
    return OF_KIND.get(model_name, IMAGES)


def of_kind(kind: str) -> list[str]:
    """Returns the names of the models that take such examples."""
    return [name for name in ALL_NAMES if kind_of(name) == kind]


def of_package(model_name: str) -> Optional[Callable[..., Any]]:
    """Returns the builder of a model from another package; None for other names."""
    return None if model_name in NETWORKS else _REGISTRY.find(model_name)


def builder(model_name: str) -> Callable[..., Any]:
    """Returns the function that builds a model's network, one of `MODEL_NAMES`."""
    return _REGISTRY.find(model_name)
