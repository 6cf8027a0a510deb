"""Networks of `keras.applications` with a classifier, by their names."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tff_reg import seam
from tff_reg.lazy import np
from tff_reg.models import adjusted, keras_models
from tff_reg.settings import SettingError


def build_model_fn(
    name: str,
    *,
    image_shape: Sequence[int],
    num_classes: int,
    seed: int,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
) -> keras_models.KerasModelFn:
    """Returns the `model_fn` of a network without its top, a pooling and a classifier.

    Raises:
      SettingError: If the network takes no such images, or a pattern matches nothing.
    """
    keras = _keras()
    build_base = getattr(keras.applications, name.partition(":")[2])
    shape = tuple(image_shape)
    try:
        with _seeded(seed):
            base = build_base(
                include_top=False, weights=None, input_shape=shape, pooling="avg"
            )
            dense = keras.layers.Dense(num_classes, name="classifier")
            model = keras.Model(base.inputs, dense(base.outputs[0]))
    except ValueError as error:
        raise SettingError("model", name, f"{error}".splitlines()[0]) from error
    adjusted.freeze_keras(model, train, freeze)
    return keras_models.from_keras(model)


def expected_by(name: str) -> str:
    """Returns the settings with which images are as `preprocess_input` makes them."""
    build = getattr(_keras().applications, name.partition(":")[2])
    preprocess = importlib.import_module(build.__module__).preprocess_input
    low, high, red = preprocess(np.array([[0.0] * 3, [255.0] * 3, [255.0, 0, 0]]))
    order = 1 if red[0] == high[0] else -1  # -1: blue first.
    std = 1 / (high - low)[::order]
    mean = 0 - low[::order] * std
    mean, std = (",".join(f"{each:.6g}" for each in given) for given in (mean, std))
    more = "" if order == 1 else ", and blue before red, which no setting gives"
    return f"--pixel_mean={mean} --pixel_std={std}{more}"


def _keras() -> Any:
    """Returns Keras 3 if it is installed, else Keras 2."""
    if importlib.util.find_spec("keras") is not None:
        keras = importlib.import_module("keras")
        if keras.__version__ >= "3":
            return keras
    return seam.keras()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds Python's generator, from which Keras's initialisers draw, for a while."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
