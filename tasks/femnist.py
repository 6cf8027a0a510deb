"""FEMNIST: handwritten digits and letters of 28x28 pixels, by writer.

Source: S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, as
`tff.simulation.datasets.emnist` packs it: 3,400 writers, each with training and test
examples; 62 classes. The paper is 255, the ink 0. Normalised with the training images'
own mean and deviation.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tff_reg.lazy import np
from tff_reg.tasks import data_sets, tff_files

_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_FILE = tff_files.File(
    "emnist_all.sqlite",
    "femnist",
    "handwritten digits and letters by writer",
    splits=("all_train", "all_test"),
    model="cnn",
    norm="group",
    image_shape=(28, 28, 1),
    num_classes=len(_CLASSES),
    options=("data_dir",),
)
DEFAULTS, clients = _FILE.defaults, _FILE.clients


def load(data_dir: str, clients: Sequence[str] | None = None) -> data_sets.Examples:
    """Reads the images of some writers, or of all; see `tff_files.File.load`."""
    return _FILE.load(data_dir, clients, _convert, _CLASSES)


def _convert(feature: Any) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.array(tff_files.values_of(feature, "pixels"), np.float32)
    image = np.rint(255 * pixels).astype(np.uint8).reshape(1, 28, 28, 1)
    return image, np.array(tff_files.values_of(feature, "label"), np.int64)
