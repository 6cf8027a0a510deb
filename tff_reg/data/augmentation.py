"""Image augmentation as pure functions of a batch and a key.

Every function of this module returns a function from images, uint8 or float32 [batch,
height, width, channels], and a key, int64 [2], to augmented images, float32 [batch,
height, width, channels]. It draws separately for each example, from the key alone: the
same images and key give the same result in eager mode, in `tf.data`, inside a TFF
computation, on CPU and on GPU. Stored images stay uint8; these functions convert them
to float32.

`compose` applies several functions one after another. `build` makes the papers'
compositions by name (`NAMES`):

| name             | augmentation                                                     |
|------------------|------------------------------------------------------------------|
| none             | normalisation only                                               |
| shift            | for digits: padding by 1 and cropping                            |
| crop_flip        | FedAlign on CIFAR: padding by 4 and cropping, flipping           |
| rotate_crop_flip | the FedMLB authors' code (not the paper): `crop_flip` after a    |
|                  | rotation by at most 10 degrees                                   |
| half_crop_flip   | the MAN authors' code: normalisation, flipping, and for half of  |
|                  | the images padding by 4 and cropping                             |
| resized_crop     | the FedAlign authors' code on ImageNet-200: crops of 8 to 100 %  |
|                  | of the area with ratios 3:4 to 4:3, resized to the whole size;   |
|                  | colour jitter of 0.4; flipping                                   |

The UniVarFL paper does not mention augmentation; FedUV's code, which it follows, has
`crop_flip` for STL-10 and `none` for CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tff_reg.data import dtypes, keys
from tff_reg.lazy import np, tf

AugmentFn = Callable[..., Any]  # (images, key) -> float32 images

# The parts of each of them, given the normalisation and the largest value of a pixel.
_NAMED: Mapping[str, Callable[[AugmentFn, Any], Sequence[AugmentFn]]] = {
    "none": lambda normal, _: [normal],
    "shift": lambda normal, _: [pad_crop(1), normal],
    "crop_flip": lambda normal, _: [pad_crop(4), horizontal_flip(), normal],
    "rotate_crop_flip": lambda normal, _: [
        *(rotate(10), pad_crop(4), horizontal_flip(), normal)
    ],
    "half_crop_flip": lambda normal, _: [
        *(normal, horizontal_flip(), sometimes(0.5, pad_crop(4)))
    ],
    "resized_crop": lambda normal, largest: [
        random_resized_crop(0.08, 1.0),
        color_jitter(brightness=0.4, contrast=0.4, saturation=0.4, largest=largest),
        horizontal_flip(),
        normal,
    ],
}
NAMES = tuple(_NAMED)

# Weights of red, green and blue in the brightness of a pixel (ITU-R 601, as Pillow's).
_LUMA = (0.299, 0.587, 0.114)
# Draws of a box with the wanted area and ratio before the whole image is taken.
_BOX_DRAWS = 10


class AugmentationError(ValueError):
    """Raised for arguments out of range, or images that an augmentation cannot take."""


def compose(*functions: AugmentFn) -> AugmentFn:
    """Applies functions one after another, each with its own key.

    Without functions the result only converts images to float32.

    >>> import numpy as np
    >>> from tff_reg import data
    >>> from tff_reg.data import augmentation
    >>> augment = augmentation.compose(
    ...     augmentation.pad_crop(1), augmentation.normalize(0.5, 0.5)
    ... )
    >>> augment(np.zeros([2, 8, 8, 3], np.uint8), data.client_key(0, 1, "a")).shape
    TensorShape([2, 8, 8, 3])
    """

    def composed(images, key):
        # The user's model may take several arrays.
        images = tf.nest.map_structure(lambda each: tf.cast(each, tf.float32), images)
        for position, function in enumerate(functions):
            applied = dtypes.converted(function)
            images = applied(images, keys.fold_in(key, position))
        return images

    return composed


def build(name: str, normalize_fn: AugmentFn, *, largest: float | None) -> AugmentFn:
    """Builds the augmentation of a paper; see the module's docstring.

    >>> import numpy as np
    >>> from tff_reg import data
    >>> from tff_reg.data import augmentation
    >>> normalize = augmentation.normalize(0.5, 0.5)
    >>> augment = augmentation.build("crop_flip", normalize, largest=255)
    >>> augment(np.zeros([2, 8, 8, 3], np.uint8), data.client_key(0, 1, "a")).dtype
    tf.float32

    Args:
      name: One of `NAMES`.
      normalize_fn: Converts stored pixels to the model's input.
      largest: The largest value of stored pixels, such as 255; None for pixels without
        a fixed range, such as images that are normalised already.

    Returns:
      The batch function.

    Raises:
      AugmentationError: If the name is unknown, or needs pixels with a fixed range.
    """
    if name not in _NAMED:
        raise AugmentationError(
            f"There is no augmentation named {name!r}; use one of {', '.join(NAMES)}."
        )
    if name == "resized_crop" and largest is None:
        raise AugmentationError(
            f"The augmentation {name} varies colours and needs pixels with a fixed"
            " range (uint8), not float32: choose another, or pass uint8 images."
        )
    return compose(*_NAMED[name](normalize_fn, largest))


def sometimes(probability: float, function: AugmentFn) -> AugmentFn:
    """Applies a function to each image with a probability.

    Args:
      probability: From 0 to 1.
      function: A batch function that keeps the images' size.
    """

    def apply(images, key):
        images = tf.cast(images, tf.float32)
        numbers = _uniform([tf.shape(images)[0], 1, 1, 1], keys.fold_in(key, 0))
        changed = dtypes.converted(function)(images, keys.fold_in(key, 1))
        return tf.where(numbers < probability, changed, images)

    return apply


def pad_crop(padding: int) -> AugmentFn:
    """Pads with zeros on all sides and cuts the original size at a random place.

    The "random crop" of the CIFAR recipes (`padding` 4 in FedAlign, FedMLB and MAN).
    All (2 * padding + 1)**2 places are equally likely. Put it before `normalize`, as
    the papers' code does, for black borders.

    Args:
      padding: Pixels on each side; 0 changes nothing.
    """

    def crop(images, key):
        images = tf.cast(images, tf.float32)
        if padding == 0:
            return images
        batch, height, width, channels = _sizes(images)
        padded_height, padded_width = height + 2 * padding, width + 2 * padding
        corners = _uniform([2, batch], key, 0, 2 * padding + 1, "int32")
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
        numbers = _uniform([batch, 1], key)
        columns = tf.range(width)[tf.newaxis, :]
        columns = tf.where(numbers < 0.5, width - 1 - columns, columns)
        # One gather of pixels: half the time of a reversed copy and a choice.
        rows = tf.reshape(tf.range(batch * height), [batch, height])
        pixels = rows[:, :, tf.newaxis] * width + columns[:, tf.newaxis, :]
        return tf.gather(tf.reshape(images, [-1, channels]), pixels)

    return flip


def rotate(degrees: float) -> AugmentFn:
    """Rotates each image about its centre by a random angle.

    Pixels are those of the nearest neighbour, and 0 outside the image, as in
    torchvision's RandomRotation, which FedMLB's code uses. A pixel exactly between two
    others depends on the last bit of a cosine, which may differ between devices.

    Args:
      degrees: Largest angle; angles are uniform from -degrees to degrees.
    """

    def turn(images, key):
        images = tf.cast(images, tf.float32)
        batch, height, width, channels = _sizes(images)
        largest = math.radians(degrees)
        angles = _uniform([batch, 1, 1], key, -largest, largest)
        cosines, sines = tf.cos(angles), tf.sin(angles)
        # Offsets of a pixel's centre from the image's centre, and the rotated offsets.
        y = tf.range(height, dtype=tf.float32) - (tf.cast(height, tf.float32) - 1) / 2
        x = tf.range(width, dtype=tf.float32) - (tf.cast(width, tf.float32) - 1) / 2
        y, x = y[tf.newaxis, :, tf.newaxis], x[tf.newaxis, tf.newaxis, :]
        rows = cosines * y + sines * x + tf.cast(height, tf.float32) / 2
        columns = cosines * x - sines * y + tf.cast(width, tf.float32) / 2
        rows = tf.cast(tf.floor(rows), tf.int32)
        columns = tf.cast(tf.floor(columns), tf.int32)
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        first = height * tf.range(batch)[:, tf.newaxis, tf.newaxis]
        pixels = (first + rows) * width + columns
        found = tf.gather(
            tf.reshape(images, [-1, channels]), tf.where(inside, pixels, 0)
        )
        return tf.where(inside[..., tf.newaxis], found, 0.0)

    return turn


def random_resized_crop(least_area: float, largest_area: float) -> AugmentFn:
    """Crops a random box of each image and resizes it to the image's size.

    As in torchvision's RandomResizedCrop, the area is uniform, and so is the logarithm
    of width / height from log(3/4) to log(4/3). A box that does not fit is drawn again,
    up to ten times, before the whole image is taken. The resizing is bilinear, with a
    wider filter if it reduces the size, as in Pillow.

    Args:
      least_area: Smallest area of a box, as a share of the image's.
      largest_area: Largest area of a box.
    """

    def crop(images, key):
        images = tf.cast(images, tf.float32)
        batch, height, width, _ = _sizes(images)
        tall, wide = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
        numbers = _uniform([4, batch, _BOX_DRAWS], key)
        area = least_area + (largest_area - least_area) * numbers[0]
        ratio = tf.exp((2 * numbers[1] - 1) * math.log(4 / 3))
        rows = tf.round(tf.sqrt(area * tall * wide / ratio))
        columns = tf.round(tf.sqrt(area * tall * wide * ratio))
        fits = (rows >= 1) & (rows <= tall) & (columns >= 1) & (columns <= wide)
        # The first box that fits; argmax of all False is 0, which is replaced below.
        chosen = tf.argmax(tf.cast(fits, tf.int32), axis=1)
        some = tf.reduce_any(fits, axis=1)
        pick = functools.partial(tf.gather, indices=chosen, batch_dims=1)
        rows = tf.where(some, pick(rows), tall)
        columns = tf.where(some, pick(columns), wide)
        top = tf.floor(pick(numbers[2]) * (tall - rows + 1))
        left = tf.floor(pick(numbers[3]) * (wide - columns + 1))
        images = tf.einsum("bih,bhwc->biwc", _resizing(top, rows, height), images)
        return tf.einsum("bjw,biwc->bijc", _resizing(left, columns, width), images)

    return crop


def _resizing(start, length, size):
    """Weights that resize `length` pixels from `start` to `size`: [batch, size, size].

    Args:
      start: float32 [batch], the first pixel.
      length: float32 [batch], number of pixels.
      size: Number of pixels of the whole image and of the result.
    """
    scale = length[:, tf.newaxis, tf.newaxis] / tf.cast(size, tf.float32)
    start, length = start[:, tf.newaxis, tf.newaxis], length[:, tf.newaxis, tf.newaxis]
    places = tf.range(size, dtype=tf.float32) + 0.5
    centres = start + places[tf.newaxis, :, tf.newaxis] * scale
    pixels = places[tf.newaxis, tf.newaxis, :]
    weights = tf.nn.relu(1.0 - tf.abs(pixels - centres) / tf.maximum(scale, 1.0))
    weights *= tf.cast((pixels > start) & (pixels < start + length), tf.float32)
    return weights / tf.reduce_sum(weights, axis=-1, keepdims=True)


def color_jitter(
    *, brightness: float, contrast: float, saturation: float, largest: float = 255.0
) -> AugmentFn:
    """Varies the brightness, then the contrast, then the saturation of each image.

    Each factor is uniform from 1 - strength to 1 + strength: contrast blends with the
    mean grey of the image, saturation with each pixel's own grey. (torchvision's
    ColorJitter, which FedAlign's code uses on ImageNet-200, applies the three in a
    random order.)

    Args:
      brightness: Strength of the brightness, from 0 to 1.
      contrast: Strength of the contrast.
      saturation: Strength of the saturation.
      largest: Largest value of a pixel; results are clipped to 0 .. `largest`.

    Returns:
      The batch function, which raises an AugmentationError for images that do not have
      three channels.
    """
    strengths = (brightness, contrast, saturation)

    def jitter(images, key):
        images = tf.cast(images, tf.float32)
        batch, _, _, channels = _sizes(images)
        if channels != 3:
            raise AugmentationError(
                f"Colour jitter needs 3 channels, but the images have {channels}; "
                "choose another augmentation."
            )
        numbers = _uniform([3, batch, 1, 1, 1], key, -1.0, 1.0)
        factors = [1 + strength * numbers[i] for i, strength in enumerate(strengths)]
        images = tf.clip_by_value(images * factors[0], 0.0, largest)
        mean_grey = tf.reduce_mean(_grey(images), [1, 2], True)
        images = _blend(mean_grey, images, factors[1], largest)
        return _blend(_grey(images), images, factors[2], largest)

    return jitter


def _grey(images):
    return tf.reduce_sum(images * tf.constant(_LUMA), axis=-1, keepdims=True)


def _blend(base, images, factor, largest):
    """Interpolates from `base` (factor 0) to the images (1) and beyond, clipped."""
    return tf.clip_by_value(base + factor * (images - base), 0.0, largest)


@dataclasses.dataclass(frozen=True)
class Normalization:
    """A batch function that returns (pixels / largest - mean) / std.

    It ignores the key, so that evaluation can use it too.

    Attributes:
      mean: One number, or one per channel.
      std: One number, or one per channel.
      largest: The stored value that becomes 1.0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    largest: float

    def __call__(self, images, key=None):
        """Normalises images [..., channels] to float32."""
        del key
        images = tf.cast(images, tf.float32)
        factor = tf.constant([1.0 / (self.largest * s) for s in self.std], tf.float32)
        shifts = [-m / s for m, s in zip(self.mean, self.std)]
        shift = tf.constant(shifts, tf.float32)
        # Broadcasts to a whole image first: along a short last axis it would be slow.
        size = tf.shape(images)[1:]
        return images * tf.broadcast_to(factor, size) + tf.broadcast_to(shift, size)


def normalize(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    largest: float = 255.0,
) -> Normalization:
    """Scales pixels to [0, 1], subtracts the mean and divides by the deviation.

    >>> import numpy as np
    >>> from tff_reg.data import augmentation
    >>> normalize = augmentation.normalize(mean=0.5, std=0.25)
    >>> normalize(np.full([1, 1, 1, 1], 255, np.uint8)).numpy().item()
    2.0

    Args:
      mean: One number, or one per channel, of pixels scaled to [0, 1].
      std: Standard deviation, in the same form.
      largest: The stored value that becomes 1.0 (255 for uint8 photographs).

    Returns:
      The batch function.
    """
    means, stds = (np.atleast_1d(each).astype(float).tolist() for each in (mean, std))
    return Normalization(tuple(means), tuple(stds), float(largest))


def _uniform(shape, key, minimum=0.0, maximum=1.0, dtype="float32"):
    """Draws numbers in [minimum, maximum) that depend on the key alone."""
    return tf.random.stateless_uniform(
        shape, key, minimum, maximum, dtype, alg="philox"
    )


def _sizes(images) -> list:
    """Returns the four sizes of images: static if known, else tensors."""
    dynamic = tf.shape(images)
    static = images.shape.as_list()
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]
