"""Handwritten digits that ship with scikit-learn: 1,797 images of 8x8 pixels.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository, 1998 (its test part), as `sklearn.datasets.load_digits`
packs it. Pixels are counts of inked points in 4x4 squares, 0 to 16, kept as uint8.

The split is fixed: 1,437 training and 360 test images, with equal shares of each digit
in both parts (`splits.by_share`).

Augmentation: pad by one pixel and crop; no flip, because a mirrored digit is no digit.
"""

from __future__ import annotations

import importlib.metadata

from tff_reg.data import augmentation
from tff_reg.lazy import np
from tff_reg.tasks import data_sets, splits
from tff_reg.tasks.task_defaults import PROTOCOL, TaskDefaults

# Mean and deviation of the training images' pixels divided by LARGEST_PIXEL.
MEAN = 0.3052
STD = 0.3759
LARGEST_PIXEL = 16

NUM_TEST = 360
_SPLIT_SEED = 1797

# ResNet-8 instead of the ResNet-56 of FedAlign's paper: on a busy 2-core machine a
# round of FedAlign took 71 s with ResNet-56 and 4 to 13 s with ResNet-8. `cnn` cannot
# run at a fraction of its width, which FedAlign needs. BatchNorm is the norm of the
# paper; after 25 rounds of FedAlign it gave 97.5 to 98.1 % (three runs), GroupNorm
# 96.4 % (one run).
DEFAULTS = TaskDefaults(
    name="digits",
    summary="1,797 handwritten digits of 8x8 pixels that ship with scikit-learn",
    model="resnet8",
    norm="batch",
    augmentation="shift",
    image_shape=(8, 8, 1),
    num_classes=10,
    num_train_examples=1437,
    # 72 images per client, four batches per epoch.
    protocol={
        **PROTOCOL,
        "total_rounds": 20,
        "batch_size": 20,
        "client_weight_decay": 1e-4,
    },
)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the fixed split's training and test positions in scikit-learn's order."""
    return splits.by_share(labels, NUM_TEST, seed=_SPLIT_SEED)


def load() -> data_sets.Examples:
    """Reads the images."""
    # Importing scikit-learn takes longer than a round.
    files = importlib.metadata.distribution("scikit-learn")
    path = files.locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(path), np.uint8, delimiter=",")
    images, labels = rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
    train, test = split(labels)
    return data_sets.of_parts(
        (images[train], labels[train]),
        (images[test], labels[test]),
        range(10),
        "scikit-learn's data set",
        normalize_fn=augmentation.normalize(MEAN, STD, largest=LARGEST_PIXEL),
        largest_of_uint8=LARGEST_PIXEL,
    )
