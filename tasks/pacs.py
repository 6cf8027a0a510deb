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

from tff_reg.tasks import arrays, data_sets, domain_folders, reading
from tff_reg.tasks.task_defaults import PROTOCOL_BY_DOMAIN, DataError, TaskDefaults

_FOLDER = "PACS"

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
    image_size=domain_folders.IMAGE_SIZE,
    source="https://domaingeneralization.github.io (PACS)",
    layout=f"the folder that holds {_FOLDER}/<domain>/<class>/, or an .npz file",
)


def load(
    data_dir: str, image_size: int = domain_folders.IMAGE_SIZE
) -> data_sets.Examples:
    """Reads the folder `PACS` at or in `data_dir`, or an .npz file without resizing.

    Raises:
      DataError: If files are missing or damaged.
    """
    if os.path.isfile(data_dir):
        return domain_folders.split(_read_arrays(data_dir), data_dir)
    folder = reading.find_folder(data_dir, [_FOLDER], DEFAULTS)
    if (count := len(reading.folders_in(folder))) != DEFAULTS.num_domains:
        raise DEFAULTS.missing(f"{folder} has {count} folders of domains instead of 4")
    found = domain_folders.read(folder, image_size, DEFAULTS)
    return domain_folders.split(found, data_dir)


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
    return x, y, domains, class_names, domain_names
