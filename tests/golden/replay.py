"""What the replays of the golden cases share: files, weights, images, tolerances.

The cases and their formulae are described in cases/README.md. All parameters come
from the files; every file of a letter that is in the folder is replayed. The folder
is `TFF_REG_GOLDEN`, or the copy beside this file.
"""

from __future__ import annotations

import json
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models

FOLDER = pathlib.Path(
    os.environ.get("TFF_REG_GOLDEN") or pathlib.Path(__file__).parent / "cases"
)
# What a float32 port can be expected to meet, and how much worse each later step of a
# case gets (cases/README.md, "Tolerances").
FLOAT32_GROWTH_PER_STEP = 10.0


def names(pattern: str) -> list[str]:
    """The files that match, without their endings."""
    return sorted(path.stem for path in FOLDER.glob(f"{pattern}.npz"))


def parametrize(pattern: str):
    """Runs a test for all files that match, in float64 and in float32."""

    def decorate(test):
        test = pytest.mark.parametrize("dtype", ["float64", "float32"])(test)
        test = pytest.mark.parametrize("name", names(pattern))(test)
        return pytest.mark.golden(test)

    return decorate


class Case:
    """One file.

    Args:
      name: Its name without the ending.
      dtype: As below.
      folder: Where it is.

    Attributes:
      config: Its settings.
      dtype: The data type of the replay.
    """

    def __init__(self, name: str, dtype: str, folder: pathlib.Path = FOLDER):
        with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
            self._values = {key: file[key] for key in file.files}
        self.dtype = dtype
        self.config = json.loads(str(self._values["config"]))
        self._unread = {key for key in self._values if key.startswith("f64.")}

    def __contains__(self, key: str) -> bool:
        return f"f64.{key}" in self._values

    def plain(self, key: str) -> np.ndarray:
        """An array that is not a result."""
        return self._values[key]

    def result(self, key: str) -> np.ndarray:
        """A result of the authors' code in float64."""
        self._unread.discard(f"f64.{key}")
        return self._values[f"f64.{key}"]

    def has_prefix(self, prefix: str) -> bool:
        return any(key.startswith(f"f64.{prefix}") for key in self._values)

    def keys_below(self, prefix: str) -> list[str]:
        """What follows `prefix.` in the keys of results."""
        start = f"f64.{prefix}."
        return [k[len(start) :] for k in self._values if k.startswith(start)]

    def prefixes(self, pattern: str) -> list[str]:
        """The first parts of result keys that match."""
        matches = (re.match(rf"f64\.({pattern})\.", key) for key in self._values)
        return sorted({match[1] for match in matches if match})

    def check_all_read(self, *exempt: str):
        """Fails if a result was not compared, unless it matches an exemption."""
        left = [
            key
            for key in sorted(self._unread)
            if not any(re.fullmatch(pattern, key[len("f64.") :]) for pattern in exempt)
        ]
        assert not left, f"not replayed: {left}"

    def check(self, key: str, value, *, rtol64=1e-9, rtol32=1e-5, step=1, atol=0.0):
        """Compares a value with the file's."""
        expected = self.result(key)
        rtol = rtol64
        if self.dtype == "float32":
            rtol = rtol32 * FLOAT32_GROWTH_PER_STEP ** (step - 1)
        scale = np.max(np.abs(expected)) if expected.size else 0.0
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            expected,
            rtol=rtol,
            atol=max(rtol * scale, atol),
            err_msg=key,
        )

    def check_summary(self, key: str, values, *, step=1, weights=None):
        """Compares per-tensor norms, sums and first entries, and the total norm.

        Args:
          key: The key without `.norm` and so on.
          values: Arrays in the file's order and layout.
          step: Which step of the case this is.
          weights: For an update: the weights before it, whose rounding limits a
            float32 update.
        """
        if self.dtype == "float64":
            norm_rtol, entry_rtol, sum_rtol = 1e-8, 1e-8, 1e-8
        else:
            growth = FLOAT32_GROWTH_PER_STEP ** (step - 1)
            norm_rtol, entry_rtol, sum_rtol = 5e-3, 5e-2, 5e-2
            if weights is not None:
                norm_rtol = 1e-2
            norm_rtol, entry_rtol, sum_rtol = (
                r * growth for r in (norm_rtol, entry_rtol, sum_rtol)
            )
        norms, sums = self.result(f"{key}.norm"), self.result(f"{key}.sum")
        first16 = self.result(f"{key}.first16")
        assert len(values) == len(norms)
        for i, value in enumerate(values):
            value = np.asarray(value, np.float64)
            where = f"{key}[{i}]"
            rounding = 0.0
            if weights is not None and self.dtype == "float32":
                rounding = 6e-8 * np.abs(np.asarray(weights[i], np.float64)).max()
            spread = rounding * np.sqrt(value.size)
            entry = entry_rtol * norms[i]
            if self.dtype == "float32":
                entry /= np.sqrt(value.size)
            np.testing.assert_allclose(
                np.linalg.norm(value),
                norms[i],
                rtol=norm_rtol,
                atol=spread,
                err_msg=where,
            )
            np.testing.assert_allclose(
                value.sum(),
                sums[i],
                rtol=0,
                atol=sum_rtol * norms[i] + rounding * value.size,
                err_msg=where,
            )
            count = min(16, value.size)
            np.testing.assert_allclose(
                value.ravel()[:count],
                first16[i, :count],
                rtol=0,
                atol=entry + 2 * rounding,
                err_msg=where,
            )
        np.testing.assert_allclose(
            np.sqrt(sum(np.sum(np.square(np.asarray(v, np.float64))) for v in values)),
            self.result(f"{key}.total_norm"),
            rtol=norm_rtol,
            err_msg=key,
        )

    # Weights and inputs by formula.

    def _wave(self, index: int, size: int, phase: float) -> np.ndarray:
        k = np.arange(size, dtype=np.int64)
        chirp = 2 * np.pi * ((131 * k * k) % 10007) / 10007
        return np.sin(0.7 * k + 0.3 * index + 0.1 + phase + chirp)

    def weights(self, phase: float, perturbation_phase=None) -> dict[str, np.ndarray]:
        """Weights by their PyTorch names, in PyTorch's layout, float32.

        Args:
          phase: p of the formula.
          perturbation_phase: q of `value(p) + 0.01 * wave(q)`, or None.
        """
        result = {}
        for i, name in enumerate(self.plain("param_names")):
            shape = [int(s) for s in self.plain("param_shapes")[i] if s]
            size = int(np.prod(shape))
            value = self.plain("param_offset")[i] + self.plain("param_amp")[
                i
            ] * self._wave(i, size, phase)
            if perturbation_phase is not None:
                value = value + 0.01 * self._wave(i, size, perturbation_phase)
            result[str(name)] = value.astype(np.float32).reshape(shape)
        return result

    def batch(self, number: int = 0, shape=(3, 32, 32)):
        """Images [batch, height, width, channels] and labels [batch] of a batch."""
        size = self.config["batch"]
        first = self.config["first_example"] + number * size
        channels, height, width = shape
        j, c, h, w = np.meshgrid(
            np.arange(first, first + size, dtype=np.int64),
            np.arange(channels),
            np.arange(height),
            np.arange(width),
            indexing="ij",
        )
        k = j * channels * height * width + c * height * width + h * width + w
        x = 0.5 * np.sin(2 * np.pi * ((17 * k * k + 5 * k) % 9973) / 9973 + 0.5)
        x += 0.8 * np.sin(
            0.9 * j + 0.5 * c + 0.15 * h * (1 + j % 3) + 0.1 * w * (1 + j % 4)
        )
        images = x.astype(np.float32).transpose(0, 2, 3, 1).astype(self.dtype)
        labels = (7 * np.arange(first, first + size) + 3) % self.config["num_classes"]
        return dict(x=tf.constant(images), y=tf.constant(labels.astype(np.int32)))

    def in_order(self, by_name: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [by_name[str(name)] for name in self.plain("param_names")]


# Between PyTorch's names and ours, for the residual networks.

_STAGE = re.compile(r"layer(\d+)\.(\d+)\.(.*)")
_NORM_PARTS = {"weight": "gamma", "bias": "beta"}
_PROJECTOR = {"p1": "projector/dense1", "p2": "projector/dense2"}
_STATISTICS = {"running_mean": "moving_mean", "running_var": "moving_variance"}


def our_name(torch_name: str) -> str:
    """The name of a ResNet's variable here, given its name in PyTorch."""
    name = torch_name.replace(".bn.", ".")
    prefix = "stem/"
    stage = _STAGE.fullmatch(name)
    if stage:
        prefix = f"stage{stage[1]}/unit{int(stage[2]) + 1}/"
        name = stage[3]
    layer, _, part = name.rpartition(".")
    part = {**_NORM_PARTS, **_STATISTICS}.get(part, part)
    linear = {"fc": "dense", "linear": "dense", **_PROJECTOR}.get(layer)
    if linear:
        kind = {"gamma": "kernel", "beta": "bias"}[part]
        return f"classifier/{linear}/{kind}"
    if layer in ("downsample.0", "shortcut.0"):
        return f"{prefix}shortcut_conv/kernel"
    if layer in ("downsample.1", "shortcut.1"):
        return f"{prefix}shortcut_norm/{part}"
    kind, number = re.fullmatch(r"(conv|bn)(\d+)", layer).groups()
    number = "" if prefix == "stem/" else number
    if kind == "conv":
        return f"{prefix}conv{number}/kernel"
    return f"{prefix}norm{number}/{part}"


def _to_torch(array) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1)
    return array.T


def _from_torch(array: np.ndarray) -> np.ndarray:
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


class Replayed:
    """Our model with the weights of a case.

    Attributes:
      model: The `LearningModel`.
    """

    def __init__(self, case: Case, model_name: str, norm: str, **options):
        self._case = case
        self.model = models.build_model_fn(
            model_name,
            image_shape=(32, 32, 3),
            num_classes=case.config["num_classes"],
            norm=norm,
            dtype=case.dtype,
            **options,
        )()

    def _variable(self, torch_name: str) -> tf.Variable:
        by_name = {
            v.name.rpartition(":")[0]: v
            for v in (
                *self.model.trainable_variables,
                *self.model.non_trainable_variables,
            )
        }
        return by_name[our_name(torch_name)]

    def set_weights(self, by_name: dict[str, np.ndarray]):
        assert len(by_name) == len(self.model.trainable_variables)
        for name, value in by_name.items():
            self._variable(name).assign(_from_torch(value).astype(self._case.dtype))

    def reset_statistics(self):
        for variable in self.model.non_trainable_variables:
            fill = tf.ones_like if "variance" in variable.name else tf.zeros_like
            variable.assign(fill(variable))

    def in_torch_order(self, tensors) -> list[np.ndarray]:
        """Tensors in the order of our trainable variables, to the file's order."""
        positions = {
            v.name.rpartition(":")[0]: i
            for i, v in enumerate(self.model.trainable_variables)
        }
        return [
            _to_torch(tensors[positions[our_name(str(name))]])
            for name in self._case.plain("param_names")
        ]

    def weights_in_torch_order(self) -> list[np.ndarray]:
        return self.in_torch_order(self.model.trainable_variables)

    def statistics(self, part: str) -> list[np.ndarray]:
        return [
            self._variable(f"{name}.{part}").numpy()
            for name in self._case.plain("bn_names")
        ]
