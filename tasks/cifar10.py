"""CIFAR-10: 60,000 photographs of 32x32 pixels, 10 classes.

Source and file formats: `tff_reg.tasks.cifar`. Normalised with the mean and deviation
of its training images, as in the FedAlign authors' code; pad-crop by 4 pixels and flip,
as their paper says.
"""

from __future__ import annotations

from tff_reg.tasks import cifar
from tff_reg.tasks.data_sets import Examples

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

FILES = cifar.Files(
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    train=[f"data_batch_{number}" for number in range(1, 6)],
    test="test_batch",
    names=("batches.meta", "batches.meta.txt"),
    label_key="labels",
    names_key="label_names",
    label_bytes=1,
)
DEFAULTS = cifar.defaults(10, FILES)


def load(data_dir: str | None = None) -> Examples:
    """Reads the images from files, or through TFDS; see `cifar.load`."""
    return cifar.load(DEFAULTS, FILES, data_dir, mean=MEAN, std=STD)
