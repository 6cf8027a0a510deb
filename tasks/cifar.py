"""The shared part of CIFAR-10 and CIFAR-100: their files and normalisation.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. Both the "python version" (pickles, read
with `tff_reg.data.pickles`) and the "binary version" are read. Both have the order of
images of torchvision and of the FedMLB authors' split files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tff_reg.data import augmentation, pickles
from tff_reg.lazy import np
from tff_reg.tasks import data_sets, reading, tfds_data
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_PIXELS = 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of a data set, as pickles and in the binary version."""

    # The folders of the unpacked downloads: pickles, then the binary version.
    folders: tuple[str, str]
    # Names of files, without the ending .bin of the binary version.
    train: Sequence[str]
    test: str
    # The files with the classes' names: pickle, text.
    names: tuple[str, str]
    # In the pickles: the keys of the labels and of the classes' names.
    label_key: str
    names_key: str
    # Number of bytes before an image's pixels; the last of them is the label.
    label_bytes: int


def defaults(num_classes: int, files: Files) -> TaskDefaults:
    """Returns the defaults of either task."""
    return TaskDefaults(
        name=f"cifar{num_classes}",
        summary=f"CIFAR-{num_classes}, 60,000 photographs of 32x32 pixels",
        model="resnet56",
        norm="batch",
        augmentation="crop_flip",
        image_shape=(32, 32, 3),
        num_classes=num_classes,
        num_train_examples=50_000,
        options=("data_dir",),
        source=f"https://www.cs.toronto.edu/~kriz/cifar-{num_classes}-python.tar.gz",
        layout="the folder that holds {} (or {})".format(*files.folders),
        tfds_name=f"cifar{num_classes}",
    )


def load(
    defaults: TaskDefaults,
    files: Files,
    data_dir: str | None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> data_sets.Examples:
    """Reads either data set.

    Args:
      defaults: The task's description.
      files: The data set's files.
      data_dir: One of the data set's folders, or its parent; None reads through TFDS.
      mean: The mean of each channel for pixels scaled to [0, 1].
      std: The standard deviation of each channel for such pixels.

    Returns:
      The data.

    Raises:
      DataError: If files are missing, cut off or damaged.
    """

    def read(data_dir):
        folder = reading.find_folder(data_dir, files.folders, defaults)
        is_binary = os.path.basename(folder) == files.folders[1]
        ending = ".bin" if is_binary else ""
        train, test = (
            [os.path.join(folder, name + ending) for name in names]
            for names in (files.train, [files.test])
        )
        path = os.path.join(folder, files.names[is_binary])
        reading.require(folder, map(os.path.basename, [*train, *test, path]), defaults)
        parts = _read(train, files, is_binary), _read(test, files, is_binary)
        if is_binary:
            return *parts, reading.read_lines(path)
        return *parts, _names_in_pickle(path, files.names_key)

    normalize_fn = augmentation.normalize(mean, std)
    return tfds_data.load_or_read(defaults, data_dir, read, normalize_fn=normalize_fn)


def _read(
    paths: Sequence[str], files: Files, is_binary: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Reads images uint8 [n, 32, 32, 3] and labels int64 [n] from files, in order."""
    images, labels = bytearray(), []
    for path in paths:
        if is_binary:
            rows = reading.read_rows(path, files.label_bytes + _PIXELS)
            planes = rows[:, files.label_bytes :]
            own = rows[:, files.label_bytes - 1].astype(np.int64)
        else:
            planes, own = _read_pickle(path, files.label_key)
        # From colour planes to pixels. The array grows in place, so only one file at a
        # time is in memory twice.
        images += planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).tobytes()
        labels.append(own)
    x = np.frombuffer(images, np.uint8).reshape(-1, 32, 32, 3)
    return x, np.concatenate(labels)


def _read_pickle(path: str, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    content = _dict_in(path)
    planes, labels = content.get("data"), content.get(label_key)
    if (
        not isinstance(planes, np.ndarray)
        or planes.dtype != np.uint8
        or planes.shape[1:] != (_PIXELS,)
        or not isinstance(labels, list)
        or len(labels) != len(planes)
        or not all(type(label) is int and 0 <= label < 2**31 for label in labels)
    ):
        raise DataError(
            f"{path} must hold uint8 'data' of {_PIXELS} columns and as many "
            f"'{label_key}' as rows."
        )
    return planes, np.array(labels, dtype=np.int64)


def _dict_in(path: str) -> dict[str, Any]:
    try:
        content = pickles.load(path)
    except pickles.PickleError as error:
        raise DataError(str(error)) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not the pickled dict that it should be.")
    return content


def _names_in_pickle(path: str, key: str) -> list[str]:
    names = _dict_in(path).get(key)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DataError(f"{path} must hold a list of texts '{key}'.")
    return names
