"""Your own photographs in folders: `train/<class>/*.jpg` and `test/<class>/*.jpg`.

TFDS's ImageFolder reads this layout, in an order that depends only on the names. With
`train/<client>/<class>/*.jpg` the photographs have clients, for the partition
`natural`; then `test` has either layout.
Normalised with the training images' own mean and deviation; pad-crop by 4 pixels and
flip. Without an `image_size` all images must have the same size.
"""

from __future__ import annotations

import os
from typing import Any

from tff_reg.lazy import np, tfds
from tff_reg.tasks import data_sets, images, natural, reading
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

DEFAULTS = TaskDefaults(
    name="image_folder",
    summary="your own image files, in a folder for each class",
    model="resnet20",
    norm="group",
    augmentation="crop_flip",
    options=("data_dir", "image_size"),
    layout="the folder that holds train/<class>/ and test/<class>/ with .jpg or .png,"
    " or train/<client>/<class>/",
)


def load(data_dir: str, image_size: int | None = None) -> data_sets.Examples:
    """Reads `train` and `test` in `data_dir`; images keep their size by default.

    Raises:
      DataError: If a class has no images in a part, or one is damaged, of another size
        or of a kind that is not read.
    """
    folders = [os.path.join(data_dir, part) for part in ("train", "test")]
    if clients(data_dir):  # Which looks for both folders.
        return _of_clients(data_dir, folders, image_size)
    for folder in folders:
        # TFDS reads the files later, but says less about unreadable files, and nothing
        # about files that it skips.
        known = reading.folders_in(folder)
        if not known:
            raise DEFAULTS.missing(f"{folder} has no images in class folders")
        for name in known:
            images.list_folder(os.path.join(folder, name))
    builder = tfds.folder_dataset.ImageFolder(data_dir)
    class_names = tuple(builder.info.features["label"].names)
    for folder in folders:
        for name in sorted(set(class_names).difference(reading.folders_in(folder))):
            raise DataError(
                f"{folder} has no images of the class {name}, a folder elsewhere in "
                f"{data_dir}; add some, or move that folder away."
            )
    train = _read(builder, "train", image_size)
    test = _read(builder, "test", image_size)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"{data_dir}: images of train and test have different sizes; give "
            "image_size=N to bring all to one size."
        )
    return data_sets.of_parts(train, test, class_names, data_dir)


def clients(data_dir: str, **_: Any) -> list[str]:
    """Returns the names of the clients' folders; none if those are of classes."""
    reading.require(data_dir, ["train", "test"], DEFAULTS)
    folder = os.path.join(data_dir, "train")
    names = reading.folders_in(folder)
    with_folders = [n for n in names if reading.folders_in(os.path.join(folder, n))]
    return names if len(with_folders) == len(names) else []


def _of_clients(
    data_dir: str, folders: list[str], image_size: int | None
) -> data_sets.Examples:
    """Reads the photographs of clients; a client need not have all classes."""
    parts: list[Any] = []
    for folder in folders:
        found = []  # Paths with their class and client.
        for first in reading.folders_in(folder):
            below = reading.folders_in(os.path.join(folder, first))
            for name in below or [""]:
                own = images.list_folder(os.path.normpath(f"{folder}/{first}/{name}"))
                row = (name, first) if below else (first, "")
                found += [(path, *row) for path in own]
        if not found:
            raise DEFAULTS.missing(f"{folder} has no images in class folders")
        parts.append(tuple(np.array(each) for each in zip(*found)))
    paths, names = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    class_names, labels = np.unique(names, return_inverse=True)
    x = images.read(paths.tolist(), image_size)
    train, test = zip(*(np.split(each, [len(parts[0][0])]) for each in (x, labels)))
    owners = parts[1][2] if parts[1][2].any() else None
    return data_sets.of_parts(
        train, test, class_names, data_dir, **natural.numbered(parts[0][2], owners)
    )


def _read(builder, part: str, image_size: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Reads one split: uint8 [n, height, width, 3] and int64 [n]."""
    dataset = builder.as_dataset(
        split=part, decoders={"image": tfds.decode.SkipDecoding()}
    )
    labels = []

    def encoded():
        for example in dataset.as_numpy_iterator():
            labels.append(example["label"])
            yield os.fsdecode(example["image/filename"]), example["image"]

    count = builder.info.splits[part].num_examples
    pixels = images.decode_all(encoded(), count, image_size)
    return pixels, np.array(labels, dtype=np.int64)
