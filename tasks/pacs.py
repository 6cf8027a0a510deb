"""PACS: 9,991 pictures of 7 classes in 4 domains (photo, art, cartoon, sketch).

Source: D. Li, Y. Yang, Y.-Z. Song, T. M. Hospedales, "Deeper, Broader and Artier
Domain Generalization", ICCV 2017. Read from DomainBed's layout
`PACS/<domain>/<class>/*.jpg`, or from an .npz of `x` (uint8 [n, height, width, 3]),
`y`, `domain`, `class_names` and `domain_names`.

The data set has no split. Here the test examples are a tenth of each class in each
domain (UniVarFL, Section 4, "90-10"), always the same ones. UniVarFL does not give the
size of its images; here it is 64x64. Normalised with the training images' own mean and
deviation; pad-crop by 4 pixels and flip.
"""

from __future__ import annotations

import os

from tff_reg.lazy import np
from tff_reg.tasks import arrays, image_data, images, reading, splits
from tff_reg.tasks.task_defaults import PROTOCOL_BY_DOMAIN, DataError, TaskDefaults

TEST_SHARE = 0.1
_SPLIT_SEED = 9991
_FOLDER = "PACS"
_IMAGE_SIZE = 64

DEFAULTS = TaskDefaults(
    name="pacs",
    summary="PACS, 9,991 pictures in 4 domains",
    model="resnet18_no_maxpool",
    norm="batch",
    augmentation="crop_flip",
    image_shape=(64, 64, 3),
    num_classes=7,
    num_train_examples=8992,
    num_domains=4,
    protocol=PROTOCOL_BY_DOMAIN,
    options=("data_dir", "image_size"),
    image_size=_IMAGE_SIZE,
    source="https://domaingeneralization.github.io (PACS)",
    layout=f"the folder that holds {_FOLDER}/<domain>/<class>/, or an .npz file",
)


def load(data_dir: str, image_size: int = _IMAGE_SIZE) -> image_data.ImageData:
    """Reads the folder `PACS` at or in `data_dir`, or an .npz file without resizing.

    Raises:
      DataError: If files are missing or damaged.
    """
    if os.path.isfile(data_dir):
        x, y, domains, class_names, domain_names = _read_arrays(data_dir)
    else:
        x, y, domains, class_names, domain_names = _read_folders(data_dir, image_size)
    y = image_data.check_labels(y, len(class_names), data_dir)
    domains = image_data.check_labels(domains, len(domain_names), data_dir)
    groups = domains * len(class_names) + y
    train, test = splits.by_share(groups, round(y.size * TEST_SHARE), seed=_SPLIT_SEED)
    return image_data.of_parts(
        (x[train], y[train]),
        (x[test], y[test]),
        class_names,
        data_dir,
        domains=domains[train],
        test_domains=domains[test],
        domain_names=domain_names,
    )


def _read_folders(data_dir: str, image_size: int) -> tuple:
    folder = reading.find_folder(data_dir, [_FOLDER], DEFAULTS)
    domain_names = reading.folders_in(folder)
    if len(domain_names) != DEFAULTS.num_domains:
        raise DEFAULTS.missing(
            f"{folder} has {len(domain_names)} folders of domains instead of 4"
        )
    class_names = reading.folders_in(os.path.join(folder, domain_names[0]))
    if not class_names:
        raise DEFAULTS.missing(f"{folder}/{domain_names[0]} has no folders of classes")
    paths, labels, domains = [], [], []
    for number, name in enumerate(domain_names):
        own, y = images.read_classes(os.path.join(folder, name), class_names)
        paths += own
        labels.append(y)
        domains.append(np.full(y.size, number))
    return (
        images.read(paths, image_size),
        np.concatenate(labels),
        np.concatenate(domains),
        class_names,
        tuple(domain_names),
    )


def _read_arrays(path: str) -> tuple:
    names = ("x", "y", "domain", "class_names", "domain_names")
    content = arrays.read_npz(path, names)
    x, y, domains, class_names, domain_names = (content[name] for name in names)
    x = arrays.check_images(x, f"x in {path}")
    if not len(x) == len(y) == len(domains):
        raise DataError(
            f"{path} has {len(x)} images, {len(y)} labels and {len(domains)} domains; "
            "all three numbers must be equal."
        )
    return x, y, domains, class_names, tuple(map(str, domain_names))
