"""Handwritten digits that ship with scikit-learn: 1,797 images of 8x8 pixels.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository, 1998 (its test part), as `sklearn.datasets.load_digits`
packs it. Pixels are counts of inked points in 4x4 squares, 0 to 16, kept as uint8.

The split is fixed: 1,437 training and 360 test images, every digit with its share of
both. It depends on no library's splitter: within each digit, images are ordered by
raw words of a PCG64 generator, whose stream NumPy promises never to change.

Augmentation: pad by one pixel and crop; no flip, because a mirrored digit is another
sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.task_defaults import TaskDefaults
from tasks.task_defaults import TaskError
from tff_reg.data import augmentation
from tff_reg.lazy import np

if TYPE_CHECKING:
    from tasks.task import ImageData

# Of the training images' pixels divided by LARGEST_PIXEL.
MEAN = 0.3052
STD = 0.3759
LARGEST_PIXEL = 16

NUM_TEST = 360
_SPLIT_SEED = 1797

# Every setting of FedAlign's paper suits the task, so there are no overrides: 16
# clients hold about 90 images each, two batches an epoch. What differs is the network,
# ResNet-8 for ResNet-56: on a busy 2-core machine a round of FedAlign took 71 s with
# ResNet-56 and 4 to 13 s with ResNet-8. Not `cnn`, which FedAlign cannot cut to a
# fraction of its width. BatchNorm is what the FedAlign paper trains with; after 25
# rounds of FedAlign it gave 97.5 to 98.1 % (three runs), GroupNorm 96.4 % (one run).
DEFAULTS = TaskDefaults(
    name="digits",
    summary="1,797 handwritten digits of 8x8 pixels that ship with scikit-learn",
    model="resnet8",
    norm="batch",
    image_shape=(8, 8, 1),
    num_classes=10,
    num_train_examples=1437,
)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fixed split into training and test positions.

    The test set gets `NUM_TEST` images, shared out over the digits in proportion to
    their numbers by largest remainders.

    Args:
      labels: int [1797], in scikit-learn's order.

    Returns:
      Two ascending int64 arrays, [1437] and [360], that together are all positions.
    """
    counts = np.bincount(labels)
    exact = counts * NUM_TEST / labels.size
    shares = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(shares - exact, kind="stable")
    shares[by_remainder[: NUM_TEST - shares.sum()]] += 1
    words = np.random.PCG64(_SPLIT_SEED).random_raw(labels.size)
    order = np.argsort(words, kind="stable")
    is_test = np.zeros(labels.size, dtype=bool)
    for digit, share in enumerate(shares):
        is_test[order[labels[order] == digit][:share]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def load(data_dir: str | None = None) -> ImageData:
    """Reads the images.

    Args:
      data_dir: Must be None; the images come with scikit-learn.

    Returns:
      The data and their augmentation.

    Raises:
      TaskError: If `data_dir` is given.
    """
    if data_dir is not None:
        raise TaskError(
            f"The digits task takes no data_dir (it was {data_dir!r}): its images "
            "come with scikit-learn; leave it out."
        )
    from sklearn import datasets

    from tasks.task import ImageData

    digits = datasets.load_digits()
    images = digits.images.astype(np.uint8)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    train, test = split(labels)
    normalize = augmentation.normalize(MEAN, STD, largest=LARGEST_PIXEL)
    return ImageData(
        x_train=images[train],
        y_train=labels[train],
        x_test=images[test],
        y_test=labels[test],
        augment_fn=augmentation.compose(augmentation.pad_crop(1), normalize),
        normalize_fn=normalize,
    )
