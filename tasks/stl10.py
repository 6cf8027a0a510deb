"""STL-10: 5,000 training and 8,000 test photographs of 96x96 pixels, 10 classes.

Source: A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single Layer Networks in
Unsupervised Feature Learning", AISTATS 2011, https://cs.stanford.edu/~acoates/stl10/.
The unlabelled images are not read. Normalised with the training images' own mean and
deviation. The UniVarFL paper uses the data but does not mention augmentation; here it
is pad-crop by 4 pixels and flip, as in the code of FedUV, which that paper follows.
(FedUV normalises by 0.5: --pixel_mean=0.5 --pixel_std=0.5.)

TFDS shuffles the examples and does not number them, so positions in a split file refer
to the order of the official files only with `data_dir`.
"""

from __future__ import annotations

import os

from tff_reg.lazy import np
from tff_reg.tasks import data_sets, reading, tfds_data
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_SIDE = 96
_FOLDER = "stl10_binary"

DEFAULTS = TaskDefaults(
    name="stl10",
    summary="STL-10, 13,000 photographs of 96x96 pixels",
    model="univarfl_cnn",
    norm="none",
    augmentation="crop_flip",
    image_shape=(_SIDE, _SIDE, 3),
    num_classes=10,
    num_train_examples=5000,
    options=("data_dir",),
    source="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    layout=f"the folder that holds {_FOLDER}",
    tfds_name="stl10",
)


def load(data_dir: str | None = None) -> data_sets.Examples:
    """Reads `stl10_binary`, at or in `data_dir`; None reads through TFDS.

    Raises:
      DataError: If files are missing, cut off or damaged.
    """
    return tfds_data.load_or_read(DEFAULTS, data_dir, _read_files)


def _read_files(data_dir: str) -> tuple:
    folder = reading.find_folder(data_dir, [_FOLDER], DEFAULTS)
    names = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"]
    reading.require(folder, [*names, "class_names.txt"], DEFAULTS)
    *paths, class_names = (
        os.path.join(folder, name) for name in [*names, "class_names.txt"]
    )
    return _read(*paths[:2]), _read(*paths[2:]), reading.read_lines(class_names)


def _read(images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads images uint8 [n, 96, 96, 3] and labels int64 [n] from 0."""
    # Colour planes, each stored column by column.
    planes = reading.read_rows(images, 3 * _SIDE * _SIDE).reshape(-1, 3, _SIDE, _SIDE)
    numbers = reading.read_rows(labels, 1)[:, 0].astype(np.int64) - 1
    if len(numbers) != len(planes):
        raise DataError(
            f"{labels} has {len(numbers)} labels for {len(planes)} images; unpack the "
            "download again."
        )
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1)), numbers
