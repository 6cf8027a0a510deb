"""Fashion-MNIST: 70,000 pictures of clothes of 28x28 pixels, 10 classes.

Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms", 2017, arXiv:1708.07747. The files have the
names and the form of MNIST's; see `tff_reg.tasks.mnist`.
"""

from __future__ import annotations

from tff_reg.tasks import data_sets, mnist

_FOLDER = "FashionMNIST"
_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DEFAULTS = mnist.described(
    "fashion_mnist",
    _FOLDER,
    "Fashion-MNIST, 70,000 pictures of clothes of 28x28 pixels",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)


def load(data_dir: str | None = None) -> data_sets.Examples:
    """Reads the images from files, or through TFDS; see `mnist.load_files`."""
    return mnist.load_files(DEFAULTS, data_dir, _FOLDER, _CLASSES)
