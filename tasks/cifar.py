"""What CIFAR-10 and CIFAR-100 share: their files, and their normalisation.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. Both the "python version" (pickles, read
with `tff_reg.tasks.pickles`) and the "binary version" are understood; their images are
in the same order, which is also that of torchvision and of the FedMLB authors' split
files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from tff_reg.data import augmentation
from tff_reg.lazy import np
from tff_reg.tasks import image_data, pickles, reading, tfds_data
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_PIXELS = 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class Version:
    """One form in which the data are published."""

    # What the download unpacks to.
    folder: str
    train_files: Sequence[str]
    test_file: str
    # The key of the labels in a pickle; None for the binary version.
    label_key: str | None
    # Bytes before an image's pixels, the last of which is the label.
    label_bytes: int
    # The file with the classes' names, and their key if it is a pickle.
    names_file: str
    names_key: str | None = None


def load(
    defaults: TaskDefaults,
    versions: Sequence[Version],
    data_dir: str | None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> image_data.ImageData:
    """Reads either data set.

    Args:
      defaults: Of the task.
      versions: The forms to look for.
      data_dir: A version's folder, or what holds it; None reads through TFDS.
      mean: Of each channel, of pixels scaled to [0, 1].
      std: Likewise.

    Returns:
      The data.

    Raises:
      DataError: If files are missing, cut off or damaged.
    """
    if data_dir is None:
        x_train, y_train = tfds_data.load(defaults, "train")
        x_test, y_test = tfds_data.load(defaults, "test")
        class_names = tfds_data.class_names(defaults)
    else:
        folder = reading.find_folder(data_dir, [v.folder for v in versions], defaults)
        version = next(v for v in versions if v.folder == os.path.basename(folder))
        names = [*version.train_files, version.test_file, version.names_file]
        reading.require(folder, names, defaults)
        x_train, y_train = _read(folder, version, version.train_files)
        x_test, y_test = _read(folder, version, [version.test_file])
        class_names = _class_names(os.path.join(folder, version.names_file), version)
    where = data_dir or f"TFDS's {defaults.tfds_name}"
    if len(class_names) != defaults.num_classes:
        raise DataError(
            f"{where} names {len(class_names)} classes; there should be "
            f"{defaults.num_classes}."
        )
    return image_data.ImageData(
        x_train=x_train,
        y_train=image_data.check_labels(y_train, len(class_names), where),
        x_test=x_test,
        y_test=image_data.check_labels(y_test, len(class_names), where),
        normalize_fn=augmentation.normalize(mean, std),
        class_names=class_names,
    )


def _read(
    folder: str, version: Version, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 32, 32, 3] and labels int64 [n] of some files, in order."""
    images, labels = bytearray(), []
    for name in names:
        path = os.path.join(folder, name)
        if version.label_key is None:
            planes, own = _read_binary(path, version.label_bytes)
        else:
            planes, own = _read_pickle(path, version.label_key)
        # From colour planes to pixels. Grows in place: one file at a time is there
        # twice, never all of them.
        images += planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).tobytes()
        labels.append(own)
    x = np.frombuffer(images, np.uint8).reshape(-1, 32, 32, 3)
    return x, np.concatenate(labels)


def _read_binary(path: str, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    rows = reading.read_rows(path, label_bytes + _PIXELS)
    return rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)


def _read_pickle(path: str, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    content = pickles.load(path)
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


def _class_names(path: str, version: Version) -> tuple[str, ...]:
    if version.names_key is None:
        return tuple(reading.read_lines(path))
    names = pickles.load(path).get(version.names_key)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DataError(f"{path} must hold a list of texts '{version.names_key}'.")
    return tuple(names)
