"""Partitions of a task's examples across clients. No TensorFlow here."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_reg.data import keys, partitions
from tff_reg.experiment.config import scale as scale_lib
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import np
from tff_reg.settings import SettingError
from tff_reg.tasks import data_sets, natural, reduced_data, splits
from tff_reg.tasks.data_sets import Examples


@dataclasses.dataclass(frozen=True)
class Dealt:
    """A task's examples, and which clients have which.

    Attributes:
      data: The examples.
      positions: Each client's positions in the training examples.
      names: The clients' names; None for `client_0000` and so on.
      tests: The examples x and y of which clients have test examples of their own, and
        each client's positions in them; None if they have none.
    """

    data: Examples
    positions: list[np.ndarray]
    names: Optional[list[str]] = None
    tests: Optional[tuple[Any, Any, list[np.ndarray]]] = None

    def for_model(self, model_fn: Any, whose: str) -> Dealt:
        """Returns the examples and labels as the user's model takes them."""
        data, tests = self.data, self.tests
        train = model_fn.adapted(data.x_train, data.y_train, whose)
        test = model_fn.adapted(data.x_test, data.y_test, f"{whose} (tests)")
        if tests is not None:
            of_tests = train if tests[1] is data.y_train else test
            tests = (*of_tests, tests[2])
        names = ("x_train", "y_train", "x_test", "y_test")
        changes: dict[str, Any] = dict(zip(names, (*train, *test)))
        if not model_fn.is_classifier:
            changes["class_names"] = ()
        data = dataclasses.replace(data, **changes)
        return dataclasses.replace(self, data=data, tests=tests)


def deal(data: Examples, settings: TaskSettings) -> Dealt:
    """Partitions a task's training examples across clients.

    Args:
      data: The task's data.
      settings: The partition, the number of clients and other settings of the split.

    Returns:
      The clients' parts. With a `validation_share`, held out training examples replace
      the test examples; with `test_domains` all examples of these do.

    Raises:
      SettingError: If nothing is left to train on, or of a class, there is no such
        domain, or clients that have test examples should hold out others.
      PartitionError: If the partition does not fit the data.
    """
    seed, is_natural = settings.seed_of_split, settings.partition == natural.NAME
    scale = None if settings.scale is None else scale_lib.parse(settings.scale)
    # Random images are as few as that already.
    if not (scale is None or is_natural or settings.synthetic_data):
        data = reduced_data.subset(data, scale)
    if settings.test_domains:
        data = _without_domains(data, settings.test_domains)
    if settings.validation_share is not None:
        data = _with_validation(data, settings.validation_share, seed)
    if settings.imbalance_factor is not None:
        data = _with_tail(data, settings.imbalance_factor, seed, settings.scale)
    positions = partitions.partition(
        settings.partition,
        data.groups,
        settings.num_clients,
        seed=seed,
        num_examples=data.num_train,
        concentration=settings.concentration,
        classes_per_client=settings.classes_per_client,
        domains=data.domains,
        clients=data.clients,
        num_owners=len(data.client_names) or None,
        split_file=settings.split_file,
    )
    if path := settings.split_file:
        held, names = partitions.held_out(path), partitions.clients_in(path)
        if held and settings.client_test_share is not None:
            why = "leave it out: the clients of the split file have tests of their own."
            raise SettingError("client_test_share", settings.client_test_share, why)
        of_tests = None if held is None else (data.x_train, data.y_train, held)
        return Dealt(data, positions, names, of_tests)
    if not is_natural:
        return Dealt(data, positions)
    names, tests = natural.named(data, settings)
    if scale is not None:
        data, positions = reduced_data.of_clients(data, positions, tests, scale)
        names, tests = natural.named(data, settings)
    of_tests = None if tests is None else (data.x_test, data.y_test, tests)
    return Dealt(data, positions, names, of_tests)


def _with_validation(data: Examples, share: float, seed: int) -> Examples:
    """Replaces the test examples by a share of the training examples."""
    units = np.arange(data.num_train) if data.units is None else data.units
    count = max(1, round(share * np.unique(units).size))
    key = int(keys.driver_generator("validation", seed).integers(2**63))
    if count == np.unique(units).size:
        raise SettingError("validation_share", share, "it leaves nothing to train on.")
    train, held = splits.by_share(data.strata(), count, seed=key, units=units)
    return data.train_part(train, **data.as_test(held))


def _without_domains(data: Examples, names: tuple[str, ...]) -> Examples:
    """Takes domains out of the training examples; they become the test examples."""
    known = data.domain_names
    for name in names:
        if name not in known:
            there = (
                f"the domains are {', '.join(known)}" if known else "the data have none"
            )
            raise SettingError("test_domains", names, f"there is no {name}; {there}.")
    numbers = [known.index(name) for name in names]
    is_out = np.isin(np.asarray(data.domains), numbers)
    if is_out.all():
        raise SettingError("test_domains", names, "it leaves nothing to train on.")
    test = data.as_test(np.flatnonzero(is_out))
    if data.test_domains is not None:
        others = data.test_part(np.flatnonzero(np.isin(data.test_domains, numbers)))
        test = {
            name: np.concatenate([each, others[name]]) if name in others else None
            for name, each in test.items()
        }
    train = data.train_part(np.flatnonzero(~is_out), **test)
    if not data.is_normalized_by_own:
        return train
    normalize_fn = data_sets.normalization_of(train.x_train)
    return dataclasses.replace(train, normalize_fn=normalize_fn)


def _with_tail(data: Examples, factor: float, seed: int, scale: str | None) -> Examples:
    """Keeps n * factor^(-c / (C - 1)) training examples of the c-th of C classes.

    Source: Y. Cui et al., "Class-Balanced Loss Based on Effective Number of Samples",
    CVPR 2019, Section 5.1, rounded down as in LDAM's code. n is the size of the largest
    class; a class that has fewer keeps all. A scaled-down class keeps at least one.
    """
    if not data.class_names:
        raise SettingError("imbalance_factor", factor, "the labels are no classes.")
    classes, sizes = np.unique(data.y_train, return_counts=True)
    exponents = -np.arange(classes.size) / max(1, classes.size - 1)
    # 1e-9: not one less for the rounding of the power.
    wanted = np.floor(sizes.max() * factor**exponents + 1e-9).astype(np.int64)
    if scale is not None:
        wanted = np.maximum(1, wanted)
    if not wanted.all():
        why = (
            f"the last class would have no training example; give at most"
            f" {sizes.max()}, the size of the largest class."
        )
        raise SettingError("imbalance_factor", factor, why)
    order = keys.driver_generator("imbalance_factor", seed).permutation(sizes.sum())
    kept = [
        order[data.y_train[order] == label][:count]
        for label, count in zip(classes, wanted)
    ]
    return data.train_part(np.sort(np.concatenate(kept)))
