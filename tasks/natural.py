"""Clients that come with the data: their numbers, names and test examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg.data import partitions
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.lazy import np
from tff_reg.settings import SettingError
from tff_reg.tasks.data_sets import Examples

NAME = partitions.natural.__name__


def numbered(
    train: np.ndarray,
    test: np.ndarray | None = None,
    *,
    clients: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Returns the fields of `Examples` that say which client has each example.

    `train` and `test` have a number or text for each example. Clients are sorted by
    name, by default those with training examples; -1 is a test example of another
    client.
    """
    names = np.unique(train if clients is None else np.array(clients))
    found: dict[str, Any] = {"client_names": tuple(map(str, names))}
    found["clients"] = np.searchsorted(names, train).astype(np.int32)
    if test is not None:
        place = np.minimum(np.searchsorted(names, test), len(names) - 1)
        found["test_clients"] = np.where(names[place] == test, place, -1)
    return found


def named(data: Examples, settings: TaskSettings) -> tuple[list[str], list | None]:
    """Returns the names of the clients that take part, and their test positions.

    Raises:
      SettingError: If clients that have test examples should hold out others.
    """
    count, seed = settings.num_clients, settings.seed_of_split
    chosen = partitions.drawn(len(data.client_names), count, seed)
    names = [data.client_names[client] for client in chosen]
    if data.test_clients is None or not np.isin(data.test_clients, chosen).any():
        return names, None
    if settings.client_test_share is not None:
        why = "leave it out: the clients have test examples of their own."
        raise SettingError("client_test_share", settings.client_test_share, why)
    order = np.argsort(data.test_clients, kind="stable")
    owners = data.test_clients[order]
    ends = (np.searchsorted(owners, chosen, side) for side in ("left", "right"))
    return names, [order[start:end] for start, end in zip(*ends)]
