"""What the replays of the golden cases share: files, weights, images, tolerances.

The cases and their formulae are described in cases/README.md and, those of the later
methods, in cases/README_later.md and cases/README_newest.md. Settings, networks and
shapes come from the files; every file of a letter that is in the folder is replayed.
The folder is `TFF_REG_GOLDEN`, or the copy beside this file. What a test does not know
of a file is reported by name: see `not_compared`.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import warnings
from collections.abc import Iterable
from typing import Optional

import numpy as np
import pytest
import tensorflow as tf

from tff_reg.training import optimizers

OWN_FOLDER = pathlib.Path(__file__).parent / "cases"
FOLDER = pathlib.Path(os.environ.get("TFF_REG_GOLDEN") or OWN_FOLDER)
# The first letters of the files that the tests know.
LETTERS = "ABCDEFGHIJKLMZ"
DTYPES = ("float64", "float32")
# What a float32 port can be expected to meet, and how much worse each later step of a
# case gets (cases/README.md, "Tolerances").
FLOAT32_GROWTH_PER_STEP = 10.0
# From more tensors on a network is deep.
_DEEP = 100
# What weights are made from.
_WEIGHTS = ("param_names", "param_shapes", "param_offset", "param_amp", "param_kind")


def not_compared(name: str, what: Iterable[str]):
    """Reports what of a file was not compared.

    With `--strict-golden`, and for our own files always, the warning is an error
    (tests/conftest.py).
    """
    warnings.warn(f"not compared: {name}: {', '.join(what)}", stacklevel=3)


def names(pattern: str, has_model: Optional[bool] = None) -> list[str]:
    """The files that match, without their endings."""
    result = []
    for path in sorted(FOLDER.glob(f"{pattern}.npz")):
        with np.load(path, allow_pickle=False) as file:
            if has_model in (None, "param_names" in file.files):
                result.append(path.stem)
    return result


def parametrize(pattern: str, has_model: Optional[bool] = None, slow: str = ""):
    """Runs a test for all files that match, in float64 and in float32."""

    def decorate(test):
        dtypes = [
            pytest.param(dtype, marks=[pytest.mark.slow] if dtype == slow else [])
            for dtype in DTYPES
        ]
        test = pytest.mark.parametrize("dtype", dtypes)(test)
        test = pytest.mark.parametrize("name", names(pattern, has_model))(test)
        return pytest.mark.golden(test)

    return decorate


def parametrize_variants(variants: dict[str, Iterable[str]], default: str):
    """Runs a test for all variants, in float64 and in float32."""
    params = [
        pytest.param(name, variant, dtype, marks=[pytest.mark.slow] * is_slow)
        for name, of_file in variants.items()
        for variant in of_file
        for dtype in DTYPES
        for is_slow in [dtype != "float64" or not re.fullmatch(default, variant)]
    ]

    def decorate(test):
        test = pytest.mark.parametrize("name, variant, dtype", params)(test)
        return pytest.mark.golden(test)

    return decorate


def others(variant: Optional[str], variants: Iterable[str]) -> list[str]:
    """Patterns of the keys of all variants but one."""
    return [rf"{re.escape(one)}\..*" for one in variants if one != variant]


class Case:
    """One file.

    Attributes:
      name: The name.
      config: Its settings.
      dtype: The data type of the replay.
    """

    def __init__(self, name: str, dtype: str, folder: pathlib.Path = FOLDER):
        with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
            self._values = {
                key: file[key] for key in file.files if not key.startswith("f32.")
            }
        self.name, self.dtype = name, dtype
        self.config = json.loads(str(self._values.pop("config")))
        self._unread = {*self._values}.difference(_WEIGHTS, ["bn_names"])

    def __contains__(self, key: str) -> bool:
        return self._key(key) in self._values

    def _key(self, key: str) -> str:
        """Files of one run only may leave out the precision."""
        return f"f64.{key}" if f"f64.{key}" in self._values else key

    def plain(self, key: str) -> np.ndarray:
        """An array that is not a result."""
        self._unread.discard(key)
        return self._values[key]

    def floats(self, key: str) -> np.ndarray:
        """An array that is not a result, in the data type of the replay."""
        return self.plain(key).astype(self.dtype)

    def result(self, key: str) -> np.ndarray:
        """A result of the authors' code in float64."""
        return self.plain(self._key(key))

    def keys(self, prefix: str = "") -> list[str]:
        """What follows `prefix` in the keys of results."""
        keys = (re.sub(r"^f64\.", "", key) for key in self._values)
        return [key[len(prefix) :] for key in keys if key.startswith(prefix)]

    def prefixes(self, pattern: str) -> list[str]:
        """The first parts of result keys that match."""
        matches = (re.match(rf"({pattern})\.", key) for key in self.keys())
        return sorted({match[1] for match in matches if match})

    def check_all_read(self, *exempt: str):
        """Reports what was not compared and does not match an exemption."""
        left = [
            key
            for key in sorted(self._unread)
            if not any(re.fullmatch(rf"(f64\.)?({pattern})", key) for pattern in exempt)
        ]
        if left:
            not_compared(self.name, left)

    def check(self, key: str, value, *, rtol64=1e-9, rtol32=1e-5, step=1, atol=0.0):
        """Compares a value with the file's, if the file has one."""
        if key not in self:
            return
        expected = self.result(key)
        assert np.shape(value) == expected.shape, key
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
        """Compares per-tensor norms, sums and first entries, and the total norm."""
        if not any(f"{key}.{kind}" in self for kind in ("norm", "sum", "first16")):
            return
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
        ratios, own_norms = [], []
        for i, value in enumerate(values):
            value = np.ravel(value).astype(np.float64)
            rounding = 0.0
            if weights is not None and self.dtype == "float32":
                rounding = 6e-8 * np.abs(np.asarray(weights[i], np.float64)).max()
            entry = entry_rtol * norms[i]
            if self.dtype == "float32":
                entry /= np.sqrt(value.size)
            count = min(16, value.size)
            first = value[:count] - first16[i, :count]
            own_norms.append(np.linalg.norm(value))
            differences = [
                own_norms[i] - norms[i],
                value.sum() - sums[i],
                np.abs(first).max(),
            ]
            tolerances = [
                norm_rtol * norms[i] + rounding * np.sqrt(value.size),
                sum_rtol * norms[i] + rounding * value.size,
                entry + 2 * rounding,
            ]
            ratios.append(_ratios(differences, tolerances))
        for kind, of_tensors in zip(("norm", "sum", "first16"), np.transpose(ratios)):
            self._check_ratios(f"{key}.{kind}", of_tensors)
        np.testing.assert_allclose(
            np.linalg.norm(own_norms),
            self.result(f"{key}.total_norm"),
            rtol=norm_rtol,
            err_msg=key,
        )

    def _check_ratios(self, key: str, ratios: np.ndarray):
        """Holds each tensor's difference, in tolerances, against 1.

        In float32 single ReLUs of a deep network change side of zero with the CPU's
        kernels, which moves one tensor's gradient by some tolerances and most others'
        by nothing: there the root of the mean square over all tensors is held against
        1. float64 holds each.
        """
        worst = int(np.argmax(ratios))
        ratio = ratios[worst]
        if self.dtype == "float32" and len(ratios) > _DEEP:
            ratio = np.sqrt(np.mean(np.square(ratios)))
        assert ratio <= 1.0, f"{key}: {ratio:.2g} tolerances off, most in [{worst}]"

    # Weights and inputs by formula.

    def _wave(self, index: int, size: int, phase: float) -> np.ndarray:
        k = np.arange(size, dtype=np.int64)
        chirp = 2 * np.pi * ((131 * k * k) % 10007) / 10007
        return np.sin(0.7 * k + 0.3 * index + 0.1 + phase + chirp)

    def weights(self, phase: float, perturbation_phase=None) -> dict[str, np.ndarray]:
        """Weights by their PyTorch names, in PyTorch's layout, float32."""
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

    def local_weights(self) -> dict[str, np.ndarray]:
        """The weights that `config` writes as value(p=...)+0.01*wave(q=...)."""
        phases = re.fullmatch(
            r"value\(p=(-?[\d.]+)\)\+0.01\*wave\(q=(-?[\d.]+)\)", self.config["local"]
        )
        return self.weights(float(phases[1]), float(phases[2]))

    @property
    def image(self) -> list[int]:
        """Channels, height and width of the images; files of CIFAR's leave it out."""
        return self.config.get("image", [3, 32, 32])

    def batch(self, number: int = 0):
        """Images [batch, height, width, channels] and labels [batch] of a batch."""
        size = self.config["batch"]
        first = self.config["first_example"] + number * size
        channels, height, width = self.image
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

    def optimizer(self):
        """The authors' SGD."""
        return optimizers.build_sgd(
            self.config["lr"],
            self.config.get("momentum", 0.0),
            nesterov=self.config.get("nesterov", False),
            weight_decay=self.config["weight_decay"],
        )


def _ratios(differences, tolerances) -> np.ndarray:
    """How many tolerances each difference is; no difference is 0 of any tolerance."""
    differences, tolerances = np.abs(differences), np.asarray(tolerances)
    off = np.where(differences > 0.0, np.inf, 0.0)
    return np.divide(differences, tolerances, out=off, where=tolerances > 0.0)
