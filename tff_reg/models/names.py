"""The names of the models: our own and the models of installed packages.

This module needs no TensorFlow. A package offers a model by an entry point in the group
`tff_reg.models`: a function that makes the network,

    def wide(*, input_shape, num_classes, norm, projector, seed, dtype) -> BlockModel

whose attribute `norms`, if it has one, lists the norms that the network can have.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Optional

from tff_reg import plugins

_ENTRY_POINTS = "tff_reg.models"

# The module of each model's builder function, which has the name of the model.
MODULES = {
    "cnn": "plain_cnns",
    "resnet8": "resnet",
    "resnet10": "resnet",
    "resnet18": "resnet",
    "resnet18_imagenet": "resnet",
    "resnet18_no_maxpool": "resnet",
    "resnet18_feduv": "resnet",
    "resnet20": "resnet",
    "resnet56": "resnet",
    "vgg9": "plain_cnns",
    "mobilenet": "mobilenet",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "feddyn_cnn": "plain_cnns",
    "man_convnet": "plain_cnns",
    "univarfl_cnn": "plain_cnns",
    "feduv_cnn": "plain_cnns",
}
_BUILTIN = tuple(MODULES)
MODEL_NAMES = (*_BUILTIN, *plugins.entry_points(_ENTRY_POINTS, _BUILTIN))
# Networks of Keras layers for other examples, in `keras_nets`.
IMAGES, ROWS, TEXTS = "images", "rows of numbers", "texts"
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
ALL_NAMES = (*MODEL_NAMES, *OF_KIND, *KERAS_NAMES)
NORM_NAMES = ("group", "batch", "none")
PROJECTOR_NAMES = ("none", "moon", "univarfl", "feduv")


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
    if model_name in OF_KIND:
        return ("none",)
    if (theirs := of_package(model_name)) is not None:
        return tuple(getattr(theirs, "norms", ("none",)))
    if model_name.startswith("resnet"):
        return ("group", "batch")
    if model_name == "feduv_cnn":
        return ("batch", "group")
    if model_name in ("feddyn_cnn", "univarfl_cnn", *KERAS_NAMES):
        return ("none",)
    return NORM_NAMES


def kind_of(model_name: str) -> str:
    """Returns what a model takes: images, rows of numbers or texts."""
    return OF_KIND.get(model_name, IMAGES)


def of_package(model_name: str) -> Optional[Callable[..., Any]]:
    """Returns the builder of a model from another package; None for other names."""

    def check(value: Any) -> str:
        return "" if callable(value) else "a function that makes the network"

    return plugins.load(_ENTRY_POINTS, _BUILTIN, model_name, check)


def builder(model_name: str) -> Callable[..., Any]:
    """Returns the function that builds a model's network."""
    if (theirs := of_package(model_name)) is not None:
        return theirs
    module = importlib.import_module(f"tff_reg.models.{MODULES[model_name]}")
    return getattr(module, model_name)
