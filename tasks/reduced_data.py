"""Subsets of a task's data, and random images instead of them. No TensorFlow here.

Both are for quick trials; the accuracy of a model trained on them means nothing.
"""

from __future__ import annotations

import dataclasses
import math

from tff_reg.data import augmentation, rows
from tff_reg.experiment.config import scale as scale_lib
from tff_reg.lazy import np
from tff_reg.tasks import splits
from tff_reg.tasks.data_sets import Examples
from tff_reg.tasks.task_defaults import TaskDefaults, TaskError

_SEED = 2718
# Minimum number of examples per class and domain; with fewer examples there are fewer
# classes. Partitions by class cannot divide a single example of each class.
_LEAST_OF_A_CLASS = 4
# Random images of a whole ImageNet would be 39 GB.
_MOST_BYTES = 2**32
# For tasks whose numbers depend on the user's data.
_NUM_EXAMPLES = 10_000
_NUM_DOMAINS = 4


def subset(data: Examples, scale: scale_lib.Scale) -> Examples:
    """Returns a part of the examples, always the same part.

    Args:
      data: All examples.
      scale: The share of the training and of the test examples.

    Returns:
      The part, with every domain and class in proportion. If a class and domain would
      have fewer than four examples, only the first classes appear.
    """
    num_domains = len(data.domain_names) or 1
    num_test = rows.count(data.y_test)
    counts = scale("train_examples", data.num_train), scale("test_examples", num_test)
    labels = [data.y_train, data.y_test]
    if not data.class_names:  # As if of one class.
        labels = [np.zeros(each, int) for each in (data.num_train, num_test)]
    num_classes = _num_classes(len(data.class_names) or 1, counts[0], num_domains)
    groups = (data.strata(), labels[1])
    train, test = (
        _chosen(of, y < num_classes, count)
        for of, y, count in zip(groups, labels, counts)
    )
    return data.train_part(train, **data.test_part(test))


def of_clients(
    data: Examples,
    positions: list[np.ndarray],
    tests: list[np.ndarray] | None,
    scale: scale_lib.Scale,
) -> tuple[Examples, list[np.ndarray]]:
    """Returns a part of the test examples, and with `tiny` of each client's, too.

    The clients, of which there are fewer already, keep their own test examples (with
    `tiny` a share, of each at least one); others are added up to the scaled number.
    """
    count = scale("test_examples", rows.count(data.y_test))
    tests = [] if tests is None else tests
    if scale.fraction is None:
        most = scale("train_examples", data.num_train) // len(positions)
        positions = [own[: max(1, most)] for own in positions]
        share = min(1, count / max(1, sum(map(len, tests))))
        tests = [own[: max(1, round(share * len(own)))] for own in tests]
    kept = np.concatenate([np.zeros(0, int), *tests])
    rest = np.setdiff1d(np.arange(rows.count(data.y_test)), kept)
    more = np.linspace(0, rest.size - 1, max(0, count - kept.size)).astype(int)
    chosen = np.sort(np.concatenate([kept, rest[more]]))
    return dataclasses.replace(data, **data.test_part(chosen)), positions


def _num_classes(num_classes: int, num_examples: int, num_domains: int) -> int:
    return max(1, min(num_classes, num_examples // (_LEAST_OF_A_CLASS * num_domains)))


def _chosen(groups: np.ndarray, is_wanted: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` of the wanted positions, or all if there are fewer."""
    wanted = np.flatnonzero(is_wanted)
    if count >= wanted.size:
        return wanted
    _, chosen = splits.by_share(groups[wanted], count, seed=_SEED)
    return wanted[chosen]


def synthetic(
    defaults: TaskDefaults, scale: scale_lib.Scale, image_size: int | None = None
) -> Examples:
    """Makes random images of a task's image shape and number of examples.

    Args:
      defaults: The task's description. Numbers that depend on the user's data become
        10,000 training examples and 4 domains.
      scale: The share of the training examples, and of 10,000 test examples.
      image_size: Height and width, if not the task's own.

    Returns:
      Images of independent pixels; labels and domains follow in cycles, so all are
      equally frequent. With few examples only the first classes appear, as in `subset`.

    Raises:
      TaskError: If the shape of the examples depends on the user's data, or the images
        would take more than 4 GiB.
    """
    if defaults.image_shape is None or defaults.num_classes is None:
        raise TaskError(
            f"There is no synthetic data for the task {defaults.name}: the shape of"
            " its examples depends on your data; choose another task."
        )
    height, width, channels = defaults.image_shape
    shape = (image_size or height, image_size or width, channels)
    num_domains = _NUM_DOMAINS if defaults.num_domains is None else defaults.num_domains
    num_train = scale("train_examples", defaults.num_train_examples or _NUM_EXAMPLES)
    num_test = scale("test_examples", _NUM_EXAMPLES)
    num_bytes = (num_train + num_test) * math.prod(shape)
    if num_bytes > _MOST_BYTES:
        raise TaskError(
            f"{num_train} random images for the task {defaults.name} would take"
            f" {num_bytes / 1e9:.0f} GB; give a smaller scale."
        )
    generator = np.random.default_rng(_SEED)
    turn = np.arange(num_train, dtype=np.int32)
    num_classes = _num_classes(defaults.num_classes, num_train, num_domains or 1)

    def images(count: int) -> np.ndarray:
        return generator.integers(0, 256, (count, *shape), dtype=np.uint8)

    return Examples(
        x_train=images(num_train),
        y_train=turn // (num_domains or 1) % num_classes,
        x_test=images(num_test),
        y_test=np.arange(num_test, dtype=np.int32) % num_classes,
        normalize_fn=augmentation.normalize(0.5, 0.29),
        class_names=tuple(map(str, range(defaults.num_classes))),
        domains=turn % num_domains if num_domains else None,
        domain_names=tuple(map(str, range(num_domains))),
    )
