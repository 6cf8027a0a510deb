"""Augmentation: exact against NumPy, different per example, a function of the key."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.data import augmentation
from tff_reg.data import keys

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
def test_pad_crop_cuts_every_image_exactly_at_a_place_of_its_own(
    channels, dtype, padding
):
    images = _images((12, 9, 7, channels), dtype)
    crops = augmentation.pad_crop(padding)(images, _KEY)
    assert crops.dtype == tf.float32 and crops.shape == images.shape
    places = [
        _place(image, crop, padding) for image, crop in zip(images, crops.numpy())
    ]
    assert len(set(places)) > 3


def test_pad_crop_reaches_all_places_equally_often():
    images = np.repeat(_images((1, 4, 5, 1)), 3600, axis=0)
    crops = augmentation.pad_crop(1)(images, _KEY).numpy()
    counts = collections.Counter(_place(images[0], crop, 1) for crop in crops)
    # Nine places, 400 each, standard deviation 19.
    assert len(counts) == 9
    assert 320 < min(counts.values()) and max(counts.values()) < 480


def test_pad_crop_without_padding_only_converts():
    images = _images()
    crops = augmentation.pad_crop(0)(images, _KEY)
    assert crops.dtype == tf.float32
    assert np.array_equal(crops, images.astype(np.float32))


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


def test_normalize_scales_then_standardises_each_channel():
    images = _images()
    mean, std = [0.5, 0.4, 0.3], [0.1, 0.2, 0.4]
    found = augmentation.normalize(mean, std)(images)
    expected = (images / 255.0 - mean) / std
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_normalize_takes_one_number_for_all_channels_and_another_largest_pixel():
    images = _images((2, 3, 3, 1))
    found = augmentation.normalize(0.25, 0.5, largest=16)(images, _KEY)
    np.testing.assert_allclose(found, (images / 16.0 - 0.25) / 0.5, rtol=1e-5)


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


def test_parts_of_a_composition_draw_independently():
    # The same function twice: with one key for both, crops would coincide.
    images = np.repeat(_images((1, 9, 9, 1)), 50, axis=0)
    once = augmentation.compose(augmentation.pad_crop(1))(images, _KEY).numpy()
    twice = augmentation.compose(
        augmentation.pad_crop(1), augmentation.pad_crop(1)
    )(images, _KEY).numpy()
    first = [_place(images[0], crop, 1) for crop in once]
    second = []
    for crop, before in zip(twice, once):
        second.append(
            [
                place
                for place, window in _windows(before, 1).items()
                if np.array_equal(window, crop)
            ]
        )
    assert all(second)
    assert sum(one not in places for one, places in zip(first, second)) > 30


def test_an_empty_composition_only_converts():
    images = _images()
    assert np.array_equal(
        augmentation.compose()(images, _KEY), images.astype(np.float32)
    )


def test_is_a_function_of_the_key_alone():
    images = _images()
    other = keys.client_key(0, 1, "a")
    tf.random.set_seed(1)
    one = _recipe()(images, _KEY)
    tf.random.set_seed(2)
    assert np.array_equal(one, _recipe()(images, _KEY))
    assert not np.array_equal(one, _recipe()(images, other))


@pytest.mark.parametrize("known", [True, False], ids=["known shape", "unknown shape"])
def test_graph_data_set_and_tff_give_the_eager_result(known):
    images = _images()
    expected = _recipe()(images, _KEY).numpy()
    shape = images.shape if known else [None, None, None, 3]

    @tf.function(
        input_signature=[tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int64)]
    )
    def in_graph(images, key):
        return _recipe()(images, key)

    # Compilers may fuse the scaling, hence the last bit.
    close = dict(rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(in_graph(images, _KEY), expected, **close)

    dataset = tf.data.Dataset.from_tensors((images, _KEY)).map(_recipe())
    np.testing.assert_allclose(next(iter(dataset)), expected, **close)

    computation = tff.tensorflow.computation(
        _recipe(),
        [
            tff.TensorType(np.uint8, shape),
            tff.TensorType(np.int64, [2]),
        ],
    )
    assert computation.type_signature.result.dtype == np.float32


def test_takes_an_empty_batch():
    assert _recipe()(_images((0, 9, 7, 3)), _KEY).shape == (0, 9, 7, 3)


def test_raises_on_parameters_out_of_range():
    with pytest.raises(augmentation.AugmentationError, match="padding"):
        augmentation.pad_crop(-1)
    for mean, std in [
        (0.5, 0.0),
        (0.5, [0.1, -0.1]),
        (float("nan"), 1.0),
        ([0.5, 0.5], [0.1, 0.1, 0.1]),
    ]:
        with pytest.raises(augmentation.AugmentationError):
            augmentation.normalize(mean, std)
    with pytest.raises(augmentation.AugmentationError, match="largest"):
        augmentation.normalize(0.5, 0.5, largest=0)
