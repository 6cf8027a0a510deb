"""ImageNet-200: 200 classes of ImageNet-1k with 500 training photographs each.

Source: O. Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge",
IJCV 2015, https://image-net.org. The classes are those of M. Mendieta et al.
(FedAlign), CVPR 2022, Section 4.1, "we randomly sample 200 classes": their code draws
them with NumPy's legacy generator and a fixed seed from the sorted names. NumPy has
frozen that generator, so this module draws the same classes. A class list replaces
them; in both cases the run's config.json names the classes. The authors' code then
draws 500 of a class's training images in the order in which the disk lists them; here
they are drawn from the sorted names. The test examples are all of `val`.

The layout is the usual one, `train/<class>/*.JPEG` and `val/<class>/*.JPEG`; the
official archive of `val` has no folders of classes and must be sorted into them first.

Images are brought to 224x224 as in the authors' code for testing: the shorter side is
resized to 256, and the middle is cut out. (Large JPEGs are decoded at a fraction of
their size, with at least 512 pixels on the shorter side.) Training crops are taken from
these squares; the authors take them from the whole image. The 110,000 images are 16.6
GB in memory, or 1.4 GB with --image_size=64.
"""

from __future__ import annotations

import os

from tff_reg.data import augmentation
from tff_reg.lazy import np
from tff_reg.tasks import data_sets, images, reading
from tff_reg.tasks.task_defaults import DataError, TaskDefaults

# Mean and deviation of ImageNet's training images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

NUM_CLASSES = 200
IMAGES_PER_CLASS = 500
# The FedAlign authors' seed.
SEED = 1993
_IMAGE_SIZE = 224

DEFAULTS = TaskDefaults(
    name="imagenet200",
    summary="200 classes of ImageNet-1k, 110,000 photographs of 224x224 pixels",
    model="resnet18_imagenet",
    norm="batch",
    augmentation="resized_crop",
    image_shape=(224, 224, 3),
    num_classes=NUM_CLASSES,
    num_train_examples=NUM_CLASSES * IMAGES_PER_CLASS,
    options=("data_dir", "image_size", "class_list"),
    image_size=_IMAGE_SIZE,
    source="https://image-net.org/download (ILSVRC2012)",
    layout="the folder that holds train/<class>/ and val/<class>/",
)


def choose_classes(names: list[str]) -> list[str]:
    """Draws the authors' 200 classes from the 1,000 sorted names, and sorts them."""
    chosen = np.random.RandomState(SEED).choice(names, NUM_CLASSES, replace=False)
    return sorted(map(str, chosen))


def load(
    data_dir: str, image_size: int = _IMAGE_SIZE, class_list: str | None = None
) -> data_sets.Examples:
    """Reads `train` and `val` in `data_dir`.

    A class list is a text file with one class per line, such as n01440764. Without a
    list the classes are drawn.

    Raises:
      DataError: If files are missing or damaged, there are too few classes, or the
        arrays would not fit into memory.
    """
    reading.require(data_dir, ["train", "val"], DEFAULTS)
    train, val = (os.path.join(data_dir, part) for part in ("train", "val"))
    known = reading.folders_in(train)
    if class_list is not None:
        class_names = sorted(_listed(class_list, known, train))
    elif len(known) < NUM_CLASSES:
        raise DataError(
            f"{train} has {len(known)} classes; {NUM_CLASSES} are drawn from all "
            "1,000, or give class_list=FILE."
        )
    else:
        class_names = choose_classes(known)
    if not reading.folders_in(val):
        raise DataError(
            f"{val} has no folders of classes; sort its images into val/<class>/ first."
        )
    paths, y_train = images.read_classes(train, class_names, choose=_some)
    test_paths, y_test = images.read_classes(val, class_names)
    needed = 3 * image_size**2 * (len(paths) + len(test_paths))
    available = _available_memory()
    if needed > available:
        raise DataError(
            f"{len(paths) + len(test_paths):,} images of {image_size}x{image_size} "
            f"need {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; give "
            "a smaller image_size."
        )
    margin = images.IMAGENET_MARGIN
    return data_sets.of_parts(
        (images.read(paths, image_size, margin=margin), y_train),
        (images.read(test_paths, image_size, margin=margin), y_test),
        class_names,
        train,
        val,
        normalize_fn=augmentation.normalize(MEAN, STD),
    )


def _listed(class_list: str, known: list[str], train: str) -> list[str]:
    names = reading.read_lines(class_list)
    if not names or len(set(names)) < len(names):
        raise DataError(f"{class_list} must name each class once, one class per line.")
    for name in names:
        if name not in known:
            raise DataError(f"{class_list} names the class {name!r}; {train} has none.")
    return names


def _some(paths: list[str]) -> list[str]:
    """Draws `IMAGES_PER_CLASS` paths with a seed that depends on the folder's name."""
    if len(paths) <= IMAGES_PER_CLASS:
        return paths
    words = np.random.PCG64(
        [SEED, *os.path.basename(os.path.dirname(paths[0])).encode()]
    ).random_raw(len(paths))
    chosen = np.argsort(words, kind="stable")[:IMAGES_PER_CLASS]
    return [paths[row] for row in np.sort(chosen)]


def _available_memory() -> int:
    """Returns the bytes that Linux has for new arrays, caches included."""
    with open("/proc/meminfo", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
