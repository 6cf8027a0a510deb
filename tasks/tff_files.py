"""TFF's federated data sets on the disk: SQLite files of `tf.train.Example` by client.

`tff.simulation.datasets` downloads them into its `cache_dir` and unpacks them there.
Only the examples of the clients that take part are read.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tff_reg.lazy import np, protobuf_message, tf
from tff_reg.tasks import data_sets, natural, reading
from tff_reg.tasks.task_defaults import DataError, Override, TaskDefaults

_SITE = "https://storage.googleapis.com/tff-datasets-public/"
_CLIENTS = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?"
_EXAMPLES = """SELECT examples.client_id, serialized_example_proto
FROM examples JOIN chosen ON examples.client_id = chosen.client_id
WHERE split_name = ? ORDER BY examples.client_id, examples.rowid"""


class File:
    """A data set's file.

    Attributes:
      name: Its name.
      defaults: The description of its task.
    """

    def __init__(
        self,
        name: str,
        task: str,
        summary: str,
        splits: Sequence[str] = ("train", "test"),
        **fields: Any,
    ):
        """Describes the task; `fields` are those of `TaskDefaults`."""
        self.name, self._splits = name, splits
        values = {"partition": natural.NAME, "concentration": None}
        why = "the data come with clients"
        self.defaults = TaskDefaults(
            name=task,
            summary=f"{summary}, from TFF's file",
            augmentation="none",
            source=f"{_SITE}{name}.lzma",
            layout=f"the folder with {name} (the cache_dir of TFF)",
            overrides={key: Override(value, why) for key, value in values.items()},
            **fields,
        )

    @contextlib.contextmanager
    def _opened(self, data_dir: str) -> Iterator[sqlite3.Connection]:
        reading.require(data_dir, [self.name], self.defaults)
        path = os.path.join(os.path.abspath(data_dir), self.name)
        uri = f"{pathlib.Path(path).as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
                yield base
        except (sqlite3.Error, protobuf_message.DecodeError) as error:
            raise DataError(
                f"{path} is damaged or no file of TFF ({error})."
            ) from error

    def clients(self, data_dir: str, **_: Any) -> list[str]:
        """Returns the sorted names of the clients with training examples."""
        with self._opened(data_dir) as base:
            return sorted(row[0] for row in base.execute(_CLIENTS, self._splits[:1]))

    def stored(
        self, data_dir: str, split: str, clients: Sequence[str] | None
    ) -> Iterator[tuple[str, Any]]:
        """Yields the client and the features of each example; None is all clients."""
        names = self.clients(data_dir) if clients is None else clients
        with self._opened(data_dir) as base:
            base.execute("CREATE TEMP TABLE chosen (client_id TEXT PRIMARY KEY)")
            base.executemany("INSERT INTO chosen VALUES (?)", zip(names))
            for name, content in base.execute(_EXAMPLES, [split]):
                yield name, tf.train.Example.FromString(content).features.feature

    def load(
        self,
        data_dir: str,
        clients: Sequence[str] | None,
        convert: Callable[[Any], tuple[np.ndarray, np.ndarray]],
        class_names: Sequence[str],
        **fields: Any,
    ) -> data_sets.Examples:
        """Reads the training and the test examples of clients.

        Args:
          data_dir: The file's folder.
          clients: Their names; None for all clients.
          convert: From a stored example's features to examples [n, ...] and labels [n].
          class_names: A name for each class.
          **fields: Other fields of `Examples`.

        Raises:
          DataError: If the file is missing, damaged or of another data set.
        """
        parts, owners = [], []
        for split in self._splits:
            found, own = [], []
            for name, feature in self.stored(data_dir, split, clients):
                found.append(convert(feature))
                own += [name] * len(found[-1][1])
            if not own:
                raise DataError(f"{self.name} in {data_dir} has no {split} examples.")
            parts.append(tuple(map(np.concatenate, zip(*found))))
            owners.append(np.array(own))
        # Also those whose examples are too short for one window.
        names = clients or self.clients(data_dir)
        fields |= natural.numbered(*owners, clients=names)
        train, test = parts
        return data_sets.of_parts(train, test, class_names, data_dir, **fields)


def values_of(feature: Any, name: str) -> Any:
    """Returns the values of a stored example's feature.

    Raises:
      DataError: If the example has none.
    """
    kind = feature[name].WhichOneof("kind")
    if kind is None:
        raise DataError(f"An example has no {name}; the file is of another data set.")
    return getattr(feature[name], kind).value


def text_of(feature: Any, name: str) -> str:
    """Returns a feature's text."""
    return values_of(feature, name)[0].decode("utf-8", "replace")


def windows(
    tokens: np.ndarray, length: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `length` tokens before each known token, and the token's class.

    >>> import numpy as np
    >>> windows(np.array([5, 6, 1, 7]), 2, first=5)
    (array([[0, 5],
           [6, 1]]), array([1, 2]))

    Args:
      tokens: [n]; the first one is no class, and is known to the others.
      length: The number of tokens before; token 0 pads.
      first: The token of class 0; smaller ones are no classes.
    """
    padded = np.concatenate([np.zeros(length, tokens.dtype), tokens[:-1]])
    x, y = np.lib.stride_tricks.sliding_window_view(padded, length)[1:], tokens[1:]
    return x[y >= first], y[y >= first].astype(np.int64) - first
