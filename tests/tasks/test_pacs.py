"""PACS: folders and arrays, domains, the fixed split."""

import numpy as np
import pytest

from tests.tasks import layouts
from tff_reg import settings, tasks
from tff_reg.tasks import domain_folders, pacs

DOMAINS = ["art_painting", "cartoon", "photo", "sketch"]
CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pacs")
    for number, domain in enumerate(DOMAINS):
        layouts.write_class_folders(
            folder / "PACS" / domain, CLASSES, 10, 9, 9, seed=number
        )
    return folder


@pytest.mark.parametrize("inside", [False, True])
def test_reads_folders_and_holds_out_a_tenth_of_each_class_and_domain(folder, inside):
    data = pacs.load(str(folder / "PACS" if inside else folder), image_size=9)
    assert data.x_train.shape == (252, 9, 9, 3) and data.x_test.shape == (28, 9, 9, 3)
    assert data.class_names == tuple(CLASSES) and data.domain_names == tuple(DOMAINS)
    table = np.zeros((4, 7), int)
    np.add.at(table, (data.domains, data.y_train), 1)
    assert (table == 9).all()
    assert np.array_equal(np.bincount(data.y_test), [4] * 7)
    # Every image is where its label and domain say.
    for row in range(0, 252, 17):
        images = layouts.random_images(70, 9, 9, 3, seed=int(data.domains[row]))
        own = images.reshape(7, 10, 9, 9, 3)[data.y_train[row]]
        assert (own == data.x_train[row]).all((1, 2, 3)).any()


def test_held_out_pictures_are_a_share_of_each_class_and_domain(folder):
    settings = {"partition": "domain", "num_clients": 4, "seed": 0}
    settings |= {"image_size": 9, "validation_share": 1 / 9}
    data = tasks.read("pacs", data_dir=str(folder), **settings).data
    table = np.zeros((4, 7), int)
    np.add.at(table, (data.domains, data.y_train), 1)
    assert (table == 8).all() and len(data.y_test) == 28


def test_any_folders_of_domains_are_read_likewise(folder, tmp_path):
    found = domain_folders.load(str(folder / "PACS"), image_size=9)
    data = pacs.load(str(folder), image_size=9)
    for name in ("x_train", "y_train", "domains", "x_test", "test_domains"):
        assert np.array_equal(getattr(found, name), getattr(data, name))
    layouts.write_class_folders(tmp_path / "a", ["dog"], 1, 4, 4)
    layouts.write_class_folders(tmp_path / "b", ["cat"], 1, 4, 4)
    with pytest.raises(tasks.DataError, match="a/cat cannot be read"):
        domain_folders.load(str(tmp_path))


def test_domains_are_left_out_of_training_and_are_the_test_set(folder):
    given = dict(data_dir=str(folder), image_size=9, partition="domain", num_clients=2)
    found = tasks.read("pacs", test_domains=("sketch", "cartoon"), **given)
    data, dealt = found.data, found.positions
    assert {*data.domains} == {0, 2} and {*data.test_domains} == {1, 3}
    assert len(data.y_train) == 126 and len(data.y_test) == 140
    written = [x for n in (1, 3) for x in layouts.random_images(70, 9, 9, 3, seed=n)]
    assert {x.tobytes() for x in data.x_test} == {x.tobytes() for x in written}
    assert [{*data.domains[own]} for own in dealt] == [{0}, {2}]
    pixels = data.x_train / 255
    expected = (pixels[:1] - pixels.mean((0, 1, 2))) / pixels.std((0, 1, 2))
    np.testing.assert_allclose(data.normalize_fn(data.x_train[:1]), expected, atol=1e-4)
    with pytest.raises(settings.SettingError, match="there is no Sketch; the domains"):
        tasks.read("pacs", test_domains=("Sketch",), **given)


@pytest.mark.skipif(
    not layouts.SHARED.exists(), reason="../shared/data with PACS is not there"
)
def test_reads_all_of_pacs_from_arrays():
    data = pacs.load(str(layouts.SHARED / "pacs_48.npz"))
    assert data.x_train.shape == (8992, 48, 48, 3) and len(data.x_test) == 999
    assert len(data.x_train) == pacs.DEFAULTS.num_train_examples
    assert len(data.domain_names) == pacs.DEFAULTS.num_domains
    assert np.bincount(data.domains).tolist() == [1503, 1844, 2109, 3536]
    with np.load(layouts.SHARED / "pacs_48.npz") as content:
        groups = content["domain"] * 7 + content["y"]
    exact = np.bincount(groups) * 0.9
    counts = np.bincount(data.domains * 7 + data.y_train)
    assert (np.abs(counts - exact) < 1).all()


def test_raises_on_missing_folders(tmp_path):
    with pytest.raises(tasks.DataError, match="no PACS in .*download https"):
        pacs.load(str(tmp_path))
    (tmp_path / "PACS" / "photo").mkdir(parents=True)
    with pytest.raises(tasks.DataError, match="1 folders of domains instead of 4"):
        pacs.load(str(tmp_path))
    for domain in DOMAINS:
        (tmp_path / "PACS" / domain).mkdir(exist_ok=True)
    with pytest.raises(tasks.DataError, match="no folders of classes"):
        pacs.load(str(tmp_path))
    layouts.write_class_folders(tmp_path / "PACS" / DOMAINS[0], ["dog"], 1, 4, 4)
    with pytest.raises(tasks.DataError, match="dog cannot be read"):
        pacs.load(str(tmp_path))


def test_raises_on_arrays_that_do_not_fit(tmp_path):
    arrays = dict(
        x=np.zeros((3, 4, 4, 3), np.uint8),
        y=np.array([0, 1, 0]),
        domain=np.array([0, 1]),
        class_names=np.array(["a", "b"]),
        domain_names=np.array(["c", "d"]),
    )
    for changes, words in (
        ({}, "3 images, 3 labels and 2 domains"),
        ({"domain": np.array([0, 1, 2])}, "labels from 0 to 2"),
    ):
        np.savez(tmp_path / "p.npz", **{**arrays, **changes})
        with pytest.raises(tasks.DataError, match=words):
            pacs.load(str(tmp_path / "p.npz"))
