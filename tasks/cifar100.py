"""CIFAR-100: 60,000 photographs of 32x32 pixels, 100 (fine) classes.

Source and file formats: `tff_reg.tasks.cifar`. Normalised with the FedAlign authors'
mean and deviation, which are those of its training images; pad-crop by 4 pixels and
flip. (The FedMLB authors' code normalises CIFAR-100 with CIFAR-10's numbers.)
"""

from __future__ import annotations

from tff_reg.tasks import cifar
from tff_reg.tasks.data_sets import Examples

MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)

FILES = cifar.Files(
    folders=("cifar-100-python", "cifar-100-binary"),
    train=["train"],
    test="test",
    names=("meta", "fine_label_names.txt"),
    label_key="fine_labels",
    names_key="fine_label_names",
    label_bytes=2,  # The coarse label, then the fine one.
)
DEFAULTS = cifar.defaults(100, FILES)


def load(data_dir: str | None = None) -> Examples:
    """Reads the images from files, or through TFDS; see `cifar.load`."""
    return cifar.load(DEFAULTS, FILES, data_dir, mean=MEAN, std=STD)
