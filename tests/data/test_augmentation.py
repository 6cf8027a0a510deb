"""Augmentation: exact against NumPy, different per example, a function of the key."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance

from tff_reg.data import augmentation, keys

_KEY = keys.client_key(0, 0, "a")


def _images(shape=(12, 9, 7, 3), dtype=np.uint8):
    generator = np.random.default_rng(1)
    if dtype == np.uint8:
        return generator.integers(1, 256, shape).astype(np.uint8)
    return generator.uniform(0.5, 1.0, shape).astype(dtype)


def _windows(image, padding):
    """All crops of one padded image, by (top, left)."""
    height, width, _ = image.shape
    padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])
    return {
        (top, left): padded[top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    }


def _place(image, crop, padding):
    """Where a crop was cut; fails if it is no crop of the image."""
    found = [
        place
        for place, window in _windows(image, padding).items()
        if np.array_equal(window.astype(np.float32), crop)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("padding", [1, 4])
def test_pad_crop_cuts_each_image_at_its_own_place(channels, dtype, padding):
    images = _images((12, 9, 7, channels), dtype)
    crops = augmentation.pad_crop(padding)(images, _KEY)
    assert crops.dtype == tf.float32 and crops.shape == images.shape
    places = [
        _place(image, crop, padding) for image, crop in zip(images, crops.numpy())
    ]
    assert len(set(places)) > 3


def test_pad_crop_reaches_all_places_equally_often():
    images = np.repeat(_images((1, 4, 5, 1)), 900, axis=0)
    crops = augmentation.pad_crop(1)(images, _KEY).numpy()
    counts = collections.Counter(_place(images[0], crop, 1) for crop in crops)
    # Nine places, 100 each, standard deviation 9.
    assert len(counts) == 9
    assert min(counts.values()) > 60 and max(counts.values()) < 140


@pytest.mark.parametrize("channels", [1, 3])
def test_flip_mirrors_about_half_of_the_images_exactly(channels):
    images = _images((400, 3, 6, channels))
    flipped = augmentation.horizontal_flip()(images, _KEY).numpy()
    assert flipped.dtype == np.float32
    straight = (flipped == images).all(axis=(1, 2, 3))
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (straight ^ mirrored).all()
    # Standard deviation 10.
    assert 150 < mirrored.sum() < 250


def test_normalize_scales_then_standardises_each_channel_or_all():
    images = _images()
    mean, std = [0.5, 0.4, 0.3], [0.1, 0.2, 0.4]
    found = augmentation.normalize(mean, std)(images)
    assert found.dtype == tf.float32
    expected = (images / 255.0 - mean) / std
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    found = augmentation.normalize(0.25, 0.5, largest=16)(images, _KEY)
    expected = (images / 16.0 - 0.25) / 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def _recipe(padding=2):
    return augmentation.compose(
        augmentation.pad_crop(padding),
        augmentation.horizontal_flip(),
        augmentation.normalize([0.5] * 3, [0.25] * 3),
    )


def test_composition_applies_its_parts_in_order():
    images = _images()
    found = _recipe()(images, _KEY).numpy() * 0.25 + 0.5
    pixels = np.round(found * 255).astype(np.uint8)
    mirrored = 0
    for image, pixel in zip(images, pixels):
        crops = list(_windows(image, 2).values())
        straight = sum(np.array_equal(crop, pixel) for crop in crops)
        flipped = sum(np.array_equal(crop[:, ::-1], pixel) for crop in crops)
        assert straight + flipped == 1
        mirrored += flipped
    assert 0 < mirrored < len(images)


@pytest.mark.parametrize(
    "nothing",
    [augmentation.compose(), augmentation.pad_crop(0), augmentation.rotate(0)],
)
def test_neutral_augmentations_only_convert(nothing):
    images = _images()
    found = nothing(images, _KEY)
    assert found.dtype == tf.float32
    assert np.array_equal(found, images.astype(np.float32))


def _photographs(count=6, side=24):
    """Smooth images, as photographs are: uint8 [count, side, side, 3]."""
    generator = np.random.default_rng(2)
    small = generator.integers(0, 256, (count, 6, 6, 3), np.uint8)
    large = [Image.fromarray(image).resize((side, side)) for image in small]
    return np.stack([np.asarray(image) for image in large])


def test_rotation_is_pillows_to_the_bit():
    # Pillow is what torchvision's RandomRotation calls.
    images = _photographs(40)
    found = augmentation.rotate(10)(images, _KEY)
    assert found.dtype == tf.float32
    angles = []
    for image, turned in zip(images, found.numpy()):
        # The angle to a hundredth of a degree, then as exactly as it matters.
        candidates = np.linspace(-10, 10, 2001)
        differences = [
            (np.asarray(Image.fromarray(image).rotate(angle)) != turned).mean()
            for angle in candidates[::20]
        ]
        near = candidates[::20][np.argmin(differences)]
        differences = {
            angle: (np.asarray(Image.fromarray(image).rotate(angle)) != turned).mean()
            for angle in candidates[np.abs(candidates - near) <= 0.25]
        }
        angles.append(min(differences, key=differences.get))
        assert differences[angles[-1]] < 0.01
    # Uniform in -10 to 10: deviation 5.8.
    assert 4 < np.std(angles) < 7.5 and np.abs(angles).max() <= 10


def test_sometimes_changes_the_given_share_of_images():
    images = _images((400, 3, 4, 1))

    def darken(images, key):
        del key
        return images * 0.5

    found = augmentation.sometimes(0.25, darken)(images, _KEY).numpy()
    changed = (found == images * 0.5).all(axis=(1, 2, 3))
    assert ((found == images).all(axis=(1, 2, 3)) ^ changed).all()
    # 100 expected, standard deviation 9.
    assert 65 < changed.sum() < 135
    assert np.array_equal(augmentation.sometimes(0, darken)(images, _KEY), images)


def _boxes(least, largest, count=500, height=30, width=40):
    """(top, left, rows, columns) of crops, from images of row and column numbers."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    image = np.stack([rows, columns, rows], axis=-1)
    crop = augmentation.random_resized_crop(least, largest)
    found = crop(np.repeat(image[np.newaxis], count, axis=0), _KEY).numpy()
    assert found.shape == (count, height, width, 3)
    # In the middle of the image the numbers rise evenly.
    boxes = []
    for values, size in ((found[:, :, 0, 0], height), (found[:, 0, :, 1], width)):
        middle = size // 2
        length = (values[:, middle + 1] - values[:, middle]) * size
        start = values[:, middle] + 0.5 - (middle + 0.5) * length / size
        boxes += [start, length]
    return np.stack([boxes[0], boxes[2], boxes[1], boxes[3]], axis=1)


def test_resized_crops_have_the_areas_shapes_and_places_of_torchvisions():
    boxes = _boxes(0.2, 0.9)
    np.testing.assert_allclose(boxes, np.round(boxes), atol=2e-3)
    top, left, rows, columns = np.round(boxes).T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + rows <= 30).all() and (left + columns <= 40).all()
    areas = rows * columns / 1200
    assert 0.18 < areas.min() < 0.25 and 0.7 < areas.max() < 0.95
    ratios = columns / rows
    assert 0.7 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.45
    assert abs(np.log(ratios).mean()) < 0.05
    # Anywhere that they fit.
    free = rows < 30
    places = top[free] / (30 - rows[free])
    assert places.min() == 0 and places.max() == 1 and abs(places.mean() - 0.5) < 0.06


@pytest.mark.parametrize("start, length", [(3, 20), (0, 32), (9, 4)])
def test_a_box_is_resized_as_by_pillow(start, length):
    (image,) = _photographs(1, 32)
    weights = augmentation._resizing(
        tf.constant([float(start)]), tf.constant([float(length)]), 32
    )[0].numpy()
    found = np.einsum("ih,jw,hwc->ijc", weights, weights, image)
    # Cut out first, as torchvision does: nothing of its neighbours comes in.
    box = Image.fromarray(image).crop((start, start, start + length, start + length))
    expected = box.resize((32, 32), Image.Resampling.BILINEAR)
    # Pillow rounds twice.
    np.testing.assert_allclose(found, np.asarray(expected), atol=1.01)


def test_jitter_is_pillows_with_factors_around_1():
    images = np.maximum(_photographs(100), 1)
    found = augmentation.color_jitter(brightness=0.4, contrast=0.0, saturation=0.0)(
        images, _KEY
    ).numpy()
    factors = found[:, 0, 0, 0] / images[:, 0, 0, 0]
    unclipped = images[:, 0, 0, 0] * 1.4 < 255
    expected = np.minimum(images * factors[:, None, None, None], 255)
    np.testing.assert_allclose(found[unclipped], expected[unclipped], rtol=1e-4)
    assert 0.6 <= factors[unclipped].min() < 0.65
    assert 1.35 < factors[unclipped].max() <= 1.4 and found.max() == 255
    for name, enhance in (
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ):
        strengths = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, name: 0.4}
        found = augmentation.color_jitter(**strengths)(images, _KEY).numpy()
        best = []
        for image, changed in zip(images[:20], found):
            enhancer = enhance(Image.fromarray(image))
            differences = {
                factor: np.abs(np.asarray(enhancer.enhance(factor)) - changed).mean()
                for factor in np.linspace(0.6, 1.4, 81)
            }
            best.append(min(differences, key=differences.get))
            # Rounding, and half a step of the factor.
            assert differences[best[-1]] < 1.2
        assert max(best) - min(best) > 0.4


def test_jitter_of_images_without_a_range_is_refused():
    """Jitter cuts negative pixels off, in training and not in testing."""
    normalize = augmentation.normalize(0.0, 1.0, largest=1.0)
    with pytest.raises(augmentation.AugmentationError, match="resized_crop .*float32"):
        augmentation.build("resized_crop", normalize, largest=None)


def _named(name):
    normalize = augmentation.normalize([0.5] * 3, [0.25] * 3)
    return augmentation.build(name, normalize, largest=255)


@pytest.mark.parametrize("name", augmentation.NAMES)
def test_every_recipe_is_the_same_in_a_graph_and_another_with_another_key(name):
    images = _photographs()
    tf.random.set_seed(1)
    expected = _named(name)(images, _KEY).numpy()
    # A function of the key alone.
    tf.random.set_seed(2)
    assert np.array_equal(_named(name)(images, _KEY), expected)
    assert expected.dtype == np.float32 and expected.shape == images.shape
    assert np.isfinite(expected).all() and np.abs(expected).max() <= 2

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None, 3], tf.uint8),
            tf.TensorSpec([2], tf.int64),
        ]
    )
    def in_graph(images, key):
        return _named(name)(images, key)

    np.testing.assert_allclose(in_graph(images, _KEY), expected, rtol=1e-4, atol=1e-4)
    assert in_graph(images[:0], _KEY).shape == (0, 24, 24, 3)
    other = _named(name)(images, keys.client_key(0, 1, "a")).numpy()
    assert np.array_equal(other, expected) == (name == "none")


def test_crops_are_padded_before_or_after_normalising():
    images = np.full((200, 9, 9, 1), 51, np.uint8)
    normalize = augmentation.normalize(0.6, 0.2)
    for name, pixels in (("half_crop_flip", [-2, 0]), ("crop_flip", [-3, -2])):
        found = augmentation.build(name, normalize, largest=255)(images, _KEY)
        np.testing.assert_allclose(np.unique(found.numpy().round(4)), pixels)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(augmentation.AugmentationError, match="crop_flip"):
        _named("flop")
