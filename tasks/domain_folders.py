"""Your own photographs of several domains: `<domain>/<class>/*.jpg`.

The layout of OfficeHome, PACS, VLCS and DomainNet, as DomainBed has them. As in `pacs`,
the test examples are a tenth of each class in each domain, always the same ones;
normalised with the training images' own mean and deviation; pad-crop by 4 pixels and
flip.
"""

from __future__ import annotations

import os

from tff_reg.lazy import np
from tff_reg.tasks import data_sets, images, reading, splits
from tff_reg.tasks.task_defaults import PROTOCOL_BY_DOMAIN, TaskDefaults

TEST_SHARE = 0.1
IMAGE_SIZE = 64
_SPLIT_SEED = 9991

DEFAULTS = TaskDefaults(
    name="domain_folders",
    summary="your own image files, in folders by domain and class (OfficeHome)",
    model="resnet18_no_maxpool",
    norm="batch",
    augmentation="crop_flip",
    num_domains=None,
    protocol=PROTOCOL_BY_DOMAIN,
    options=("data_dir", "image_size"),
    image_size=IMAGE_SIZE,
    layout="the folder that holds <domain>/<class>/ with .jpg or .png",
)


def load(data_dir: str, image_size: int = IMAGE_SIZE) -> data_sets.Examples:
    """Reads all folders of `data_dir`, each a domain.

    Raises:
      DataError: If there are no images, a domain lacks a class of another, or an image
        is damaged.
    """
    return split(read(data_dir, image_size, DEFAULTS), data_dir)


def read(folder: str, image_size: int, defaults: TaskDefaults) -> tuple:
    """Returns images, labels, domains, and the names of classes and of domains."""
    domain_names = reading.folders_in(folder)
    parts = [os.path.join(folder, name) for name in domain_names]
    class_names = sorted({name for part in parts for name in reading.folders_in(part)})
    if not class_names:
        raise defaults.missing(f"{folder} has no folders of classes in its domains")
    found = [images.read_classes(part, class_names) for part in parts]
    y = [labels for _, labels in found]
    return (
        images.read([path for paths, _ in found for path in paths], image_size),
        np.concatenate(y),
        np.repeat(np.arange(len(parts)), [*map(len, y)]),
        class_names,
        domain_names,
    )


def split(examples: tuple, where: str) -> data_sets.Examples:
    """Holds out the test examples of what `read` returns."""
    x, y, domains, class_names, domain_names = examples
    y = data_sets.check_labels(y, len(class_names), where)
    domains = data_sets.check_labels(domains, len(domain_names), where)
    groups = domains * len(class_names) + y
    train, test = splits.by_share(groups, round(y.size * TEST_SHARE), seed=_SPLIT_SEED)
    return data_sets.of_parts(
        (x[train], y[train]),
        (x[test], y[test]),
        class_names,
        where,
        domains=domains[train],
        test_domains=domains[test],
        domain_names=tuple(map(str, domain_names)),
    )
