"""Resized images and channel counts against the authors' code of GradAug."""

import re

import numpy as np
import tensorflow as tf

from tests.golden import replay
from tff_reg import models
from tff_reg.models import layers


class Results:
    """The arrays of a file by their names, and which were compared.

    These small files hold one run, in float64, and may leave out the `f64.`.
    """

    def __init__(self, name: str, case: replay.Case):
        self._case = case
        with np.load(replay.FOLDER / f"{name}.npz") as file:
            self.left = {
                key.replace("f64.", "", 1)
                for key in file.files
                if key != "config" and not key.startswith("f32.")
            }

    def __call__(self, key: str) -> np.ndarray:
        self.left.discard(key)
        return self._case.result(key) if key in self._case else self._case.plain(key)

    def check(self, key: str, value):
        expected = self(key)
        tolerance = 1e-12 if self._case.dtype == "float64" else 1e-5
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            expected,
            rtol=tolerance,
            atol=tolerance * np.abs(expected).max(),
            err_msg=key,
        )


def _resize(images, size):
    """Images in the file's order of axes, resized."""
    resized = models.resize_bilinear(images, size, size)
    return np.transpose(resized, (0, 3, 1, 2))


@replay.parametrize("B_unit_*")
def test_resized_images_and_channel_counts(name, dtype):
    case = replay.Case(name, dtype)
    results = Results(name, case)

    widths, channels = results("width"), results("channels")
    counts = results("channels_at_width")
    at_tensor_width = tf.function(
        lambda width: tf.stack(
            [layers.channels_at_width(int(c), width) for c in channels]
        )
    )
    for width, expected in zip(widths, counts):
        got = [layers.channels_at_width(int(c), float(width)) for c in channels]
        np.testing.assert_array_equal(got, expected, err_msg=f"width {width}")
        got = at_tensor_width(tf.constant(width, tf.float64))
        np.testing.assert_array_equal(got, expected, err_msg=f"width {width}")

    small = np.transpose(results("small_in"), (0, 2, 3, 1)).astype(dtype)
    for key in sorted(results.left):
        if match := re.fullmatch(r"small_out_(\d+)", key):
            results.check(key, _resize(small, int(match[1])))

    first, last, *shape = map(
        int,
        re.fullmatch(
            r"examples (\d+) and (\d+), (\d+)x(\d+)x(\d+)", case.config["images"]
        ).groups(),
    )
    # The labels of the batch are not looked at.
    case.config.update(first_example=first, batch=last - first + 1, num_classes=1)
    images = case.batch(shape=tuple(shape))["x"]
    entries = {
        r"first_row_example(\d+)_channel(\d+)": lambda image: image[0],
        r"diagonal_example(\d+)_channel(\d+)": np.diagonal,
    }
    for key in sorted(results.left):
        if not (match := re.fullmatch(r"resized_(\d+)\.(.*)", key)):
            continue
        resized = _resize(images, int(match[1]))
        if match[2] == "sum":
            # The sum is small beside its parts.
            expected = results(key)
            tolerance = 1e-12 if dtype == "float64" else 1e-5
            assert abs(resized.sum() - expected) <= tolerance * np.abs(resized).sum()
        elif match[2] == "norm":
            results.check(key, np.linalg.norm(resized))
        else:
            for pattern, take in entries.items():
                if part := re.fullmatch(pattern, match[2]):
                    example, channel = int(part[1]) - first, int(part[2])
                    results.check(key, take(resized[example, channel]))
    assert not results.left, f"not replayed: {results.left}"
    case.check_all_read()
