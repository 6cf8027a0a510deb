"""Tiny-ImageNet: 100,000 training photographs of 64x64 pixels, 200 classes.

Source: Y. Le, X. Yang, "Tiny ImageNet Visual Recognition Challenge", CS 231N, 2015.
The test examples are the 10,000 of `val`, as in the papers, because those of `test`
have no labels. Normalised with the FedMLB authors' numbers; pad-crop by 4 pixels and
flip, as in FedMLB's and MAN's code without their additions (`augmentation`).

Classes are in the order of their WordNet ids, images in the order of their names. The
FedMLB authors' split files for this data set follow the order in which their disk
listed the folders, which cannot be reconstructed.
"""

from __future__ import annotations

import os

from tff_reg.data import augmentation
from tff_reg.lazy import np
from tff_reg.tasks import data_sets, images, reading
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2770, 0.2691, 0.2821)

_SIDE = 64
_FOLDER = "tiny-imagenet-200"

DEFAULTS = TaskDefaults(
    name="tiny_imagenet",
    summary="Tiny-ImageNet, 110,000 photographs of 64x64 pixels",
    model="resnet18",
    norm="group",
    augmentation="crop_flip",
    image_shape=(_SIDE, _SIDE, 3),
    num_classes=200,
    num_train_examples=100_000,
    options=("data_dir",),
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    layout=f"the folder that holds {_FOLDER}",
)


def load(data_dir: str) -> data_sets.Examples:
    """Reads the folder `tiny-imagenet-200` at or in `data_dir`.

    Raises:
      DataError: If files are missing or damaged.
    """
    folder = reading.find_folder(data_dir, [_FOLDER], DEFAULTS)
    names = ["train", "val/images", "val/val_annotations.txt"]
    reading.require(folder, names, DEFAULTS)
    train = os.path.join(folder, "train")
    class_names = reading.folders_in(train)
    if not class_names:
        raise DEFAULTS.missing(f"{train} has no folders of classes")
    paths, y_train = images.read_classes(train, class_names, below="images")
    test_paths, y_test = _annotated(os.path.join(folder, "val"), class_names)
    return data_sets.of_parts(
        (_read(paths), y_train),
        (_read(test_paths), y_test),
        class_names,
        train,
        f"{folder}/val",
        normalize_fn=augmentation.normalize(MEAN, STD),
    )


def _read(paths: list[str]) -> np.ndarray:
    pixels = images.read(paths, None)
    if pixels.shape[1:] != DEFAULTS.image_shape:
        raise DataError(
            f"{paths[0]} has {pixels.shape[1]}x{pixels.shape[2]} pixels; "
            f"Tiny-ImageNet's images have {_SIDE}x{_SIDE}."
        )
    return pixels


def _annotated(folder: str, class_names: list[str]) -> tuple[list[str], np.ndarray]:
    """Returns paths in `val/images` and labels, in the order of the annotations."""
    path = os.path.join(folder, "val_annotations.txt")
    numbers = {name: label for label, name in enumerate(class_names)}
    paths, labels = [], []
    for line in reading.read_lines(path):
        name, _, rest = line.partition("\t")
        label = numbers.get(rest.partition("\t")[0])
        if label is None:
            raise DataError(
                f"{path} has the line {line!r}, which names no image and class of "
                "train."
            )
        paths.append(os.path.join(folder, "images", name))
        labels.append(label)
    if not paths:
        raise DataError(f"{path} is empty; unpack the download again.")
    return paths, np.array(labels, dtype=np.int64)
