"""Skews of clients' examples, against NumPy."""

import numpy as np
import pytest

from tff_reg import data, settings
from tff_reg.data import skews

X = np.full([900, 8, 8, 3], (150, 110, 90), np.uint8)
X[:, 0] = (90, 160, 30)
Y = np.arange(900, dtype=np.int32) % 5
PARTS = np.split(np.arange(900), 3)


def skewed(held_out=None, x=X, parts=PARTS, seed=0, num_classes=5, **given):
    clients = data.ArrayClientData(x, Y, parts).hold_out(held_out, 1)
    largest = 255.0 if x.dtype == np.uint8 else None
    options = dict(seed=seed, num_classes=num_classes, largest=largest)
    return skews.apply(clients, given, **options)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_noise_has_the_deviation_of_the_clients_number(kind):
    x = X if kind == np.uint8 else (X / 255).astype(np.float32)
    (found, _), scale = skewed(x=x, feature_noise=0.06).arrays, x.max() / 160
    noise = (found.astype(float) - x) / (255 * scale)
    assert found.dtype == kind
    for number, own in enumerate(PARTS, start=1):
        assert noise[own].std() == pytest.approx(0.06 * number / 3, rel=0.02)
        assert abs(noise[own].mean()) < 1e-3
    again, _ = skewed(x=x, feature_noise=0.06, held_out=0.2).arrays
    assert np.array_equal(again, found)
    assert not np.array_equal(skewed(x=x, feature_noise=0.06, seed=1).arrays[0], found)
    bright = np.full_like(X, 255)
    assert skewed(x=bright, feature_noise=0.5).arrays[0].max() == 255


def test_images_are_rotated_and_hues_are_channels_that_change_places():
    found, labels = skewed(rotations=(0, 90, 180), hues=(120, 240)).arrays
    one, two, three = PARTS
    assert np.array_equal(found[one], np.roll(X[one], 1, axis=-1))  # Red to green.
    assert np.array_equal(found[two], np.roll(np.rot90(X[two], 1, (1, 2)), 2, axis=-1))
    assert np.array_equal(found[three], np.roll(X[three, ::-1, ::-1], 1, axis=-1))
    assert np.array_equal(labels, Y)


def test_tests_in_other_arrays_have_their_clients_images_and_right_labels():
    clients = data.ArrayClientData(X, Y, PARTS)
    clients.tests = data.ArrayClientData(X[:3], Y[:3], [[0], [2], []])
    given = dict(rotations=(0, 90), label_noise=(0.5,))
    tests = skews.apply(clients, given, seed=0, num_classes=5, largest=255.0).tests
    assert np.array_equal(tests.client_examples("client_0000")["x"], X[:1])
    turned = np.rot90(X[2:3], 1, (1, 2))
    assert np.array_equal(tests.client_examples("client_0001")["x"], turned)
    assert np.array_equal(tests.arrays[1], Y[:3])


def test_exactly_the_share_of_labels_is_wrong_and_held_out_ones_are_right():
    clients = skewed(label_noise=(0.0, 0.35), held_out=0.2)
    x, labels = clients.arrays
    shares = []
    for name in clients.client_ids:
        own = clients.client_positions(name)
        shares.append(np.mean(labels[own] != Y[own]))
        held = clients.tests.client_positions(name)
        assert (
            np.array_equal(clients.tests.arrays[1][held], Y[held]) and held.size == 60
        )
    assert shares == [0, 0.35, 0] and np.array_equal(x, X)
    wrong = np.flatnonzero(labels != Y)
    counts = np.bincount((labels[wrong] - Y[wrong]) % 5, minlength=5)
    assert counts[0] == 0 and counts[1:].min() > 10


@pytest.mark.parametrize(
    "given, words",
    [
        (dict(hues=(9.0,), x=X[..., :1]), "hues=9.0: it needs uint8 images with three"),
        (dict(rotations=(90,), x=X[:, :7]), "rotations=90: it needs square images"),
        (dict(label_noise=(0.1,), parts=[PARTS[0]] * 2), "client_0001 shares examples"),
        (dict(label_noise=(0.1,), num_classes=1), "noise=0.1: the data have no two cl"),
    ],
)
def test_raises_on_examples_that_cannot_be_skewed(given, words):
    with pytest.raises(settings.SettingError, match=words):
        skewed(**given)
