"""Resized images and channel counts against the authors' code of GradAug."""

import re

import numpy as np
import tensorflow as tf

from tests.golden import replay
from tff_reg import models
from tff_reg.models import forward


def _resize(images, size):
    """Images in the file's order of axes, resized."""
    resized = models.resize_bilinear(images, size, size)
    return np.transpose(resized, (0, 3, 1, 2))


@replay.parametrize("B_*", has_model=False)
def test_resized_images_and_channel_counts(name, dtype):
    case = replay.Case(name, dtype)

    def check(key, value):
        case.check(key, value, rtol64=1e-12)

    widths, channels = case.result("width"), case.result("channels")
    counts = case.result("channels_at_width")
    at_tensor_width = tf.function(
        lambda width: tf.stack(
            [forward.channels_at_width(int(c), width) for c in channels]
        )
    )
    for width, expected in zip(widths, counts):
        got = [forward.channels_at_width(int(c), float(width)) for c in channels]
        np.testing.assert_array_equal(got, expected, err_msg=f"width {width}")
        got = at_tensor_width(tf.constant(width, tf.float64))
        np.testing.assert_array_equal(got, expected, err_msg=f"width {width}")

    small = np.transpose(case.floats("small_in"), (0, 2, 3, 1))
    first, last, *image = map(
        int,
        re.fullmatch(
            r"examples (\d+) and (\d+), (\d+)x(\d+)x(\d+)", case.config["images"]
        ).groups(),
    )
    # The labels of the batch are not looked at.
    case.config.update(
        first_example=first, batch=last - first + 1, image=image, num_classes=1
    )
    images = case.batch()["x"]
    for key in case.keys():  # noqa: SIM118 (a method of ours)
        if match := re.fullmatch(r"small_out_(\d+)", key):
            check(key, _resize(small, int(match[1])))
        match = re.fullmatch(r"resized_(\d+)\.(.*)", key)
        if not match:
            continue
        resized = _resize(images, int(match[1]))
        entries = r"(first_row|diagonal)_example(\d+)_channel(\d+)"
        if match[2] == "sum":
            # The sum is small beside its parts.
            tolerance = 1e-12 if dtype == "float64" else 1e-5
            off = abs(resized.sum() - case.result(key))
            assert off <= tolerance * np.abs(resized).sum()
        elif match[2] == "norm":
            check(key, np.linalg.norm(resized))
        elif part := re.fullmatch(entries, match[2]):
            image = resized[int(part[2]) - first, int(part[3])]
            check(key, image[0] if part[1] == "first_row" else np.diagonal(image))
    case.check_all_read()
