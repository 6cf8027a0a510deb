"""MNIST: 70,000 handwritten digits of 28x28 pixels; and what Fashion-MNIST shares.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-Based Learning Applied to
Document Recognition", Proceedings of the IEEE, 1998. The official IDX files are read,
packed or unpacked, also as torchvision keeps them. Normalised with the training images'
own mean and deviation.
"""

from __future__ import annotations

import gzip
import os

from tff_reg.lazy import np
from tff_reg.tasks import data_sets, tfds_data
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

_SIDE = 28
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
# The bytes before the first image or label: a number for the kind, then the sizes,
# each of four bytes.
_HEADERS = {_IMAGES: 16, _LABELS: 8}


def described(name: str, folder: str, summary: str, source: str) -> TaskDefaults:
    """Returns the defaults of a data set of MNIST's form.

    Args:
      name: The task's name, and the data set's in TFDS.
      folder: The folder that torchvision makes.
      summary: One line for --help.
      source: The folder to download the files from.

    Returns:
      The description.
    """
    return TaskDefaults(
        name=name,
        summary=summary,
        model="cnn",
        norm="group",
        augmentation="none",
        image_shape=(_SIDE, _SIDE, 1),
        num_classes=10,
        num_train_examples=60_000,
        options=("data_dir",),
        source=f"{source}train-{_IMAGES}.gz",
        layout=(
            f"the folder of train-{_IMAGES}, train-{_LABELS} and both of t10k, packed"
            f" or not, or that of torchvision's {folder}"
        ),
        tfds_name=name,
    )


def load_files(
    defaults: TaskDefaults, data_dir: str | None, folder: str, names: tuple[str, ...]
) -> data_sets.Examples:
    """Reads a data set of MNIST's form; None reads it through TFDS.

    Raises:
      DataError: If files are missing, cut off or damaged.
    """

    def read(data_dir: str) -> tuple:
        inner = os.path.join(data_dir, folder, "raw")
        where = inner if os.path.isdir(inner) else data_dir
        train, test = (
            tuple(_read(where, f"{part}-{kind}", defaults) for kind in _HEADERS)
            for part in ("train", "t10k")
        )
        for images, labels in (train, test):
            if len(images) != len(labels):
                raise DataError(
                    f"{where} has {len(labels)} labels for {len(images)} images;"
                    " download the files again."
                )
        return train, test, names

    return tfds_data.load_or_read(defaults, data_dir, read)


def _read(folder: str, name: str, defaults: TaskDefaults) -> np.ndarray:
    """Reads a file of images, uint8 [n, 28, 28, 1], or of labels, uint8 [n]."""
    path = os.path.join(folder, name)
    path = path if os.path.exists(path) else f"{path}.gz"
    if not os.path.exists(path):
        raise defaults.missing(f"{folder} has no {name} and no {name}.gz")
    open_file = gzip.open if path.endswith(".gz") else open
    try:
        with open_file(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:  # A file that is cut off, or no gzip file.
        raise DataError(f"{path} cannot be read ({error}).") from error
    is_images = name.endswith(_IMAGES)
    length = _HEADERS[_IMAGES if is_images else _LABELS]
    row = (_SIDE, _SIDE, 1) if is_images else ()
    count = (len(content) - length) // int(np.prod(row))
    sizes = [2051, count, _SIDE, _SIDE] if is_images else [2049, count]
    begins_right = content[:length] == np.array(sizes, ">i4").tobytes()
    if not begins_right or len(content) - length != count * int(np.prod(row)):
        raise DataError(
            f"{path} is cut off, or no file of {'images' if is_images else 'labels'} as"
            " MNIST has them: download it again."
        )
    return np.frombuffer(content, np.uint8, offset=length).reshape(count, *row)


_FOLDER = "MNIST"
DEFAULTS = described(
    "mnist",
    _FOLDER,
    "MNIST, 70,000 handwritten digits of 28x28 pixels",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


def load(data_dir: str | None = None) -> data_sets.Examples:
    """Reads the images from files, or through TFDS; see `load_files`."""
    return load_files(DEFAULTS, data_dir, _FOLDER, tuple("0123456789"))
