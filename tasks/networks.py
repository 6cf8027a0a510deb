"""The network that a task's settings ask for."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import lazy, models
from tff_reg.models import names
from tff_reg.settings import SettingError

adjusted = lazy.module("tff_reg.models.adjusted")
keras_nets = lazy.module("tff_reg.models.keras_nets")
keras_applications = lazy.module("tff_reg.models.keras_applications")


def model_fn(
    settings: Mapping[str, Any],
    name: str,
    norm: Optional[str],
    *,
    image_shape: Sequence[int],
    num_classes: int,
    vocabulary: Optional[int] = None,
) -> Callable[[], Any]:
    """Returns the function that makes the network of a name."""
    shape: dict[str, Any] = dict(image_shape=image_shape, num_classes=num_classes)
    seed = settings["seed"]
    patterns = dict(train=settings["train"], freeze=settings["freeze"])
    if name in names.OF_KIND:
        built = keras_nets.build_model_fn(
            name,
            shape=image_shape,
            num_classes=num_classes,
            vocabulary=vocabulary,
            seed=seed,
            **patterns,
        )
        return begun(built, settings)
    if name in names.KERAS_NAMES:
        built = keras_applications.build_model_fn(name, seed=seed, **shape, **patterns)
        made = begun(built, settings)
        if made is not built and not settings["initial_weights"].endswith(".npz"):
            expected = keras_applications.expected_by(name)
            made.said.append(f"weights of ImageNet for {name} expect {expected}")
        return made
    built = models.build_model_fn(
        name, norm=norm, projector=settings["projector"], seed=seed, **shape
    )
    more = dict(
        initial_weights=settings["initial_weights"],
        mixed_precision=settings["mixed_precision"],
        **patterns,
    )
    return adjusted.AdjustedModelFn(built, **more) if any(more.values()) else built


def of_file(path: str) -> Any:
    """Returns the `model_fn` of a file with a Keras model.

    Raises:
      SettingError: If the file cannot be read, or its model cannot be trained.
    """
    keras = importlib.import_module("keras")
    try:
        with warnings.catch_warnings():  # Nobody needs the state of its optimiser.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            return models.from_keras(keras.models.load_model(path))
    # Reading a file may raise anything, such as for the user's own layers.
    except Exception as error:  # pylint: disable=broad-except
        why = " ".join(str(error).split()) or type(error).__name__
        raise SettingError("model", path, why) from error


def begun(model_fn: Any, settings: Mapping[str, Any]) -> Any:
    """Returns a Keras model's `model_fn` with the initial weights of the settings."""
    if settings["initial_weights"] is None:
        return model_fn
    return model_fn.beginning_with(settings["initial_weights"])
