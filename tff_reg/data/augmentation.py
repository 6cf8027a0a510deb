"""Image augmentation as pure functions of a batch and a key.

Every function made here has the form

    images: uint8 or float32 [batch, height, width, channels], key: int64 [2]
      -> float32 [batch, height, width, channels]

It draws separately for each example, from `key` alone: the same images and key give
the same result in eager mode, in `tf.data`, inside a TFF computation, on CPU and on
GPU. Stored images stay uint8; the conversion to float32 happens here.

A recipe is a composition, in the order in which it is written:

    augment = compose(pad_crop(4), horizontal_flip(), normalize(MEAN, STD))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from tff_reg.data import keys
from tff_reg.lazy import tf

AugmentFn = Callable  # (images, key) -> float32 images


class AugmentationError(ValueError):
    """An augmentation with parameters out of range."""


def compose(*functions: AugmentFn) -> AugmentFn:
    """Applies functions one after the other, each with a key of its own.

    With no function, the result only converts to float32.
    """

    def composed(images, key):
        images = tf.cast(images, tf.float32)
        for position, function in enumerate(functions):
            images = function(images, keys.fold_in(key, position))
        return images

    return composed


def pad_crop(padding: int) -> AugmentFn:
    """Pads with zeros on all sides and cuts the original size at a random place.

    The "random crop" of the CIFAR recipes (`padding` 4 in FedAlign, FedMLB and MAN).
    All (2 * padding + 1)**2 places are equally likely. Put it before `normalize`, as
    the papers' code does, for black borders.

    Args:
      padding: Pixels on each side; 0 changes nothing.

    Returns:
      The batch function.

    Raises:
      AugmentationError: If `padding` is negative.
    """
    padding = operator.index(padding)
    if padding < 0:
        raise AugmentationError(f"padding is {padding}; it must be at least 0.")

    def crop(images, key):
        images = tf.cast(images, tf.float32)
        if padding == 0:
            return images
        batch, height, width, channels = _sizes(images)
        padded_height, padded_width = height + 2 * padding, width + 2 * padding
        corners = tf.random.stateless_uniform(
            [2, batch],
            seed=key,
            minval=0,
            maxval=2 * padding + 1,
            dtype=tf.int32,
            alg="philox",
        )
        rows = corners[0][:, tf.newaxis] + tf.range(height)
        columns = corners[1][:, tf.newaxis] + tf.range(width)
        rows += padded_height * tf.range(batch)[:, tf.newaxis]
        pixels = rows[:, :, tf.newaxis] * padded_width + columns[:, tf.newaxis, :]
        sides = [padding, padding]
        padded = tf.pad(images, [[0, 0], sides, sides, [0, 0]])
        return tf.gather(tf.reshape(padded, [-1, channels]), pixels)

    return crop


def horizontal_flip() -> AugmentFn:
    """Mirrors each image left to right with probability 1/2."""

    def flip(images, key):
        images = tf.cast(images, tf.float32)
        batch, height, width, channels = _sizes(images)
        numbers = tf.random.stateless_uniform([batch, 1], seed=key, alg="philox")
        columns = tf.range(width)[tf.newaxis, :]
        columns = tf.where(numbers < 0.5, width - 1 - columns, columns)
        # One gather of pixels: half the time of a reversed copy and a choice.
        rows = tf.reshape(tf.range(batch * height), [batch, height])
        pixels = rows[:, :, tf.newaxis] * width + columns[:, tf.newaxis, :]
        return tf.gather(tf.reshape(images, [-1, channels]), pixels)

    return flip


def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    largest: float = 255.0,
) -> AugmentFn:
    """Scales pixels to [0, 1], then subtracts the mean and divides by the deviation.

    Draws nothing; the key may be None, so that the same function serves evaluation.

    Args:
      mean: One number, or one for each channel, of pixels scaled to [0, 1].
      std: Likewise.
      largest: The stored value that becomes 1.0 (255 for uint8 photographs).

    Returns:
      The batch function.

    Raises:
      AugmentationError: If a deviation or `largest` is not above 0, or a number is
        not finite.
    """
    means = _numbers(mean)
    stds = _numbers(std)
    if not all(map(math.isfinite, means + stds)):
        raise AugmentationError(f"mean {mean} and std {std} must be finite.")
    if min(stds) <= 0 or not largest > 0:
        raise AugmentationError(
            f"std is {std} and largest is {largest}; all must be above 0."
        )
    if len(means) != len(stds):
        raise AugmentationError(
            f"mean has {len(means)} numbers and std {len(stds)}; give one each or "
            "one for each channel."
        )

    def scale(images, key=None):
        del key
        images = tf.cast(images, tf.float32)
        factor = tf.constant([1.0 / (largest * one) for one in stds], tf.float32)
        shift = tf.constant([-m / s for m, s in zip(means, stds)], tf.float32)
        # Spread over a whole image first: broadcasting along so short an axis is slow.
        size = tf.shape(images)[1:]
        return images * tf.broadcast_to(factor, size) + tf.broadcast_to(shift, size)

    return scale


def _numbers(value: float | Sequence[float]) -> list[float]:
    try:
        return [float(one) for one in value]
    except TypeError:
        return [float(value)]


def _sizes(images) -> list:
    """The four sizes, static where they are known."""
    dynamic = tf.shape(images)
    static = images.shape.as_list()
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]
