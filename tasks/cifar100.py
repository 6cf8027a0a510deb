"""CIFAR-100: 60,000 photographs of 32x32 pixels, 100 (fine) classes.

Source and forms: `tff_reg.tasks.cifar`. Normalised with the FedAlign authors' numbers,
which are those of its training images; pad-crop by 4 pixels and flip. (The FedMLB
authors' code normalises CIFAR-100 with CIFAR-10's numbers.)
"""

from __future__ import annotations

from tff_reg.tasks import cifar
from tff_reg.tasks.image_data import ImageData
from tff_reg.tasks.task_defaults import TaskDefaults

MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)

DEFAULTS = TaskDefaults(
    name="cifar100",
    summary="CIFAR-100, 60,000 photographs of 32x32 pixels",
    model="resnet56",
    norm="batch",
    augmentation="crop_flip",
    image_shape=(32, 32, 3),
    num_classes=100,
    num_train_examples=50_000,
    options=("data_dir",),
    source="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    layout="the folder that holds cifar-100-python (or cifar-100-binary)",
    tfds_name="cifar100",
)

VERSIONS = (
    cifar.Version(
        folder="cifar-100-python",
        train_files=("train",),
        test_file="test",
        label_key="fine_labels",
        label_bytes=0,
        names_file="meta",
        names_key="fine_label_names",
    ),
    cifar.Version(
        folder="cifar-100-binary",
        train_files=("train.bin",),
        test_file="test.bin",
        label_key=None,
        label_bytes=2,  # The coarse label, then the fine one.
        names_file="fine_label_names.txt",
    ),
)


def load(data_dir: str | None = None) -> ImageData:
    """Reads the images from files, or through TFDS; see `cifar.load`."""
    return cifar.load(DEFAULTS, VERSIONS, data_dir, mean=MEAN, std=STD)
