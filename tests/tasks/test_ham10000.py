"""HAM10000: the table, the two folders, the split by lesion."""

import numpy as np
import pytest

from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.tasks import ham10000


def _locate(data, rows):
    """Of each image that was loaded its row in the table, training then test."""
    found = []
    images = {}
    for number, row in enumerate(rows):
        picture = layouts.random_images(1, 12, 16, 3, seed=number)[0]
        # The middle of 12x16.
        images[picture[:, 2:14].tobytes()] = row
    for part in (data.x_train, data.x_test):
        found.append([images[image.tobytes()] for image in part])
    return found


def test_lesions_are_split_with_all_of_their_images(tmp_path):
    rows = layouts.write_ham10000(tmp_path)
    data = ham10000.load(str(tmp_path), image_size=12)
    train, test = _locate(data, rows)
    assert len(train) + len(test) == len(rows)
    of_train, of_test = ({row["lesion_id"] for row in part} for part in (train, test))
    assert not of_train & of_test and len(of_test) == 6
    for part, labels in ((train, data.y_train), (test, data.y_test)):
        assert [row["dx"] for row in part] == [data.class_names[y] for y in labels]
    assert [row["dataset"] for row in train] == [
        data.domain_names[domain] for domain in data.domains
    ]
    assert data.domain_names == ("rosendahl", "vidir_modern")
    assert len(data.class_names) == ham10000.DEFAULTS.num_classes


def test_held_out_images_are_of_lesions_that_nobody_trains_on(tmp_path):
    rows = layouts.write_ham10000(tmp_path)
    settings = {"partition": "iid", "num_clients": 2, "seed": 0, "image_size": 12}
    for more in ({"validation_share": 0.2}, {"validation_share": 0.2, "scale": "0.6"}):
        data = tasks.read("ham10000", data_dir=str(tmp_path), **settings, **more).data
        train, held = _locate(data, rows)
        assert len(train) + len(held) < len(rows)
        lesions = [{row["lesion_id"] for row in part} for part in (train, held)]
        assert not lesions[0] & lesions[1] and len(lesions[1]) > 4


def test_no_client_trains_on_a_lesion_that_one_holds_out(tmp_path):
    layouts.write_ham10000(tmp_path)
    settings = {"data_dir": str(tmp_path), "partition": "iid", "num_clients": 3}
    settings |= {"seed": 0, "image_size": 12}
    found = tasks.read("ham10000", **settings)
    data, dealt = found.data, found.positions
    task = tasks.build("ham10000", **settings, client_test_share=0.2)
    tests = task.client_data.tests
    held = [*map(tests.client_positions, tests.client_ids)]
    for whole, own, trained in zip(dealt, held, task.partition):
        assert sorted([*trained, *own]) == sorted(whole) and len(own) < 0.4 * len(whole)
        assert {*data.units[trained]}.isdisjoint(data.units[np.concatenate(held)])


def test_without_sources_there_are_no_domains(tmp_path):
    layouts.write_ham10000(tmp_path, with_sources=False)
    (tmp_path / "HAM10000_metadata.csv").rename(tmp_path / "HAM10000_metadata")
    data = ham10000.load(str(tmp_path), image_size=12)
    assert data.domains is None and data.domain_names == ()
    with pytest.raises(ValueError, match="partition domain needs data with domains"):
        tasks.build(
            "ham10000",
            data_dir=str(tmp_path),
            image_size=12,
            partition="domain",
            num_clients=2,
            seed=0,
        )


def test_raises_on_missing_files(tmp_path):
    with pytest.raises(tasks.DataError, match="HAM10000_images_part_1: download https"):
        ham10000.load(str(tmp_path))
    layouts.write_ham10000(tmp_path)
    (image,) = tmp_path.rglob("ISIC_0000007.jpg")
    image.unlink()
    with pytest.raises(tasks.DataError, match="has no image ISIC_0000007.jpg"):
        ham10000.load(str(tmp_path))
    (tmp_path / "HAM10000_metadata.csv").unlink()
    with pytest.raises(tasks.DataError, match="has no HAM10000_metadata.csv"):
        ham10000.load(str(tmp_path))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda text: text.replace("dx,", "kind,", 1), "no column dx"),
        (lambda text: text[: text.rindex(",histo")] + "\n", "row without dataset"),
        (lambda text: text.splitlines()[0], "has no rows"),
    ],
)
def test_raises_on_a_damaged_table(tmp_path, change, words):
    layouts.write_ham10000(tmp_path)
    path = tmp_path / "HAM10000_metadata.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(tasks.DataError, match=words):
        ham10000.load(str(tmp_path))
