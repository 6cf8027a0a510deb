"""CIFAR-10: 60,000 photographs of 32x32 pixels, 10 classes.

Source and forms: `tff_reg.tasks.cifar`. Normalised with the mean and deviation of its
training images, as in the FedAlign authors' code; pad-crop by 4 pixels and flip, as
their paper says.
"""

from __future__ import annotations

from tff_reg.tasks import cifar
from tff_reg.tasks.image_data import ImageData
from tff_reg.tasks.task_defaults import TaskDefaults

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

DEFAULTS = TaskDefaults(
    name="cifar10",
    summary="CIFAR-10, 60,000 photographs of 32x32 pixels",
    model="resnet56",
    norm="batch",
    augmentation="crop_flip",
    image_shape=(32, 32, 3),
    num_classes=10,
    num_train_examples=50_000,
    options=("data_dir",),
    source="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    layout="the folder that holds cifar-10-batches-py (or cifar-10-batches-bin)",
    tfds_name="cifar10",
)

VERSIONS = (
    cifar.Version(
        folder="cifar-10-batches-py",
        train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test_file="test_batch",
        label_key="labels",
        label_bytes=0,
        names_file="batches.meta",
        names_key="label_names",
    ),
    cifar.Version(
        folder="cifar-10-batches-bin",
        train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test_file="test_batch.bin",
        label_key=None,
        label_bytes=1,
        names_file="batches.meta.txt",
    ),
)


def load(data_dir: str | None = None) -> ImageData:
    """Reads the images from files, or through TFDS; see `cifar.load`."""
    return cifar.load(DEFAULTS, VERSIONS, data_dir, mean=MEAN, std=STD)
