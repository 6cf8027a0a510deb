"""HAM10000: 10,015 dermatoscopic images of 7 kinds of skin lesions.

Source: P. Tschandl, C. Rosendahl, H. Kittler, "The HAM10000 dataset, a large
collection of multi-source dermatoscopic images of common pigmented skin lesions",
Scientific Data 5, 2018. Read from its Dataverse files: the table `HAM10000_metadata`
(.csv or without an ending) and the folders `HAM10000_images_part_1` and `_2`.

Domains are the table's column `dataset`, the four sources of the images. Kaggle's copy
of the table lacks it; without it there are no domains.

The data set has no split. Here the test examples are all images of a tenth of the
lesions of each kind and source (UniVarFL, Section 4, "90-10"). They are always the same
lesions, and no lesion is in two parts, held-out training images included. UniVarFL does
not give the size of its images; here it is 64x64, the middle of the 600x450 pixels.
Normalised with the training images' own mean and deviation; pad-crop by 4 pixels and
flip.
"""

from __future__ import annotations

import csv
import os

from tff_reg.lazy import np
from tff_reg.tasks import data_sets, images, reading, splits
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

TEST_SHARE = 0.1
_SPLIT_SEED = 10015
_TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata")
_PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")
_IMAGE_SIZE = 64

DEFAULTS = TaskDefaults(
    name="ham10000",
    summary="HAM10000, 10,015 images of skin lesions",
    model="resnet18_no_maxpool",
    norm="batch",
    augmentation="crop_flip",
    image_shape=(64, 64, 3),
    num_classes=7,
    # Not fixed: lesions are split, and a lesion has one to six images.
    num_train_examples=None,
    num_domains=None,
    options=("data_dir", "image_size"),
    image_size=_IMAGE_SIZE,
    source="https://doi.org/10.7910/DVN/DBW86T",
    layout=f"the folder that holds {_TABLES[0]}, {_PARTS[0]}/ and {_PARTS[1]}/",
)


def load(data_dir: str, image_size: int = _IMAGE_SIZE) -> data_sets.Examples:
    """Reads the table and the two folders in `data_dir`.

    Raises:
      DataError: If files are missing or damaged.
    """
    reading.require(data_dir, _PARTS, DEFAULTS)
    tables = [os.path.join(data_dir, name) for name in _TABLES]
    table = next(filter(os.path.exists, tables), None)
    if table is None:
        raise DEFAULTS.missing(f"{data_dir} has no {_TABLES[0]}")
    rows = _read_table(table)
    paths = _find(data_dir, [row["image_id"] for row in rows])
    class_names, y = np.unique([row["dx"] for row in rows], return_inverse=True)
    sources, domains = np.unique([row["dataset"] for row in rows], return_inverse=True)
    names, lesions = np.unique([row["lesion_id"] for row in rows], return_inverse=True)
    groups, num_test = domains * class_names.size + y, round(names.size * TEST_SHARE)
    train, test = splits.by_share(groups, num_test, seed=_SPLIT_SEED, units=lesions)
    return data_sets.of_parts(
        (_read(paths, train, image_size), y[train]),
        (_read(paths, test, image_size), y[test]),
        class_names,
        table,
        domains=domains[train].astype(np.int32) if sources[0] else None,
        test_domains=domains[test].astype(np.int32) if sources[0] else None,
        domain_names=tuple(map(str, sources)) if sources[0] else (),
        units=lesions[train],
    )


def _read(paths: list[str], chosen: np.ndarray, image_size: int) -> np.ndarray:
    if not chosen.size:
        raise DataError("The table of HAM10000 has too few lesions to split.")
    return images.read([paths[row] for row in chosen], image_size)


def _read_table(path: str) -> list[dict]:
    """Reads the rows, sorted by image id; `dataset` is empty without such a column."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = reader.fieldnames or [], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table ({error}).") from error
    for column in ("lesion_id", "image_id", "dx"):
        if column not in columns:
            raise DataError(f"{path} has no column {column}; download it again.")
        if not all(row[column] for row in rows):
            raise DataError(f"{path} has a row without {column}; it is cut off.")
    if "dataset" in columns and not all(row["dataset"] for row in rows):
        raise DataError(f"{path} has a row without dataset; it is cut off.")
    if not rows:
        raise DataError(f"{path} has no rows.")
    for row in rows:
        row.setdefault("dataset", "")
    return sorted(rows, key=lambda row: row["image_id"])


def _find(data_dir: str, image_ids: list[str]) -> list[str]:
    """Returns each image's path in one of the two folders."""
    found = {}
    for part in _PARTS:
        for path in images.list_folder(os.path.join(data_dir, part)):
            found[os.path.splitext(os.path.basename(path))[0]] = path
    for image_id in image_ids:
        if image_id not in found:
            raise DEFAULTS.missing(f"{data_dir} has no image {image_id}.jpg")
    return [found[image_id] for image_id in image_ids]
