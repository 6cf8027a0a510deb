"""A seeded, resumable source of client data for TFF's programs.

`tff.program.DatasetDataSource` draws clients from Python's global generator, so a
restarted program trains other clients than an uninterrupted one. Here round r of a seed
always has the same cohort and keys as round r of that seed in `tff_reg.experiment`,
even if the program was stopped before.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.data import digests, keys, sampling
from tff_reg.lazy import tff


class DataSourceError(ValueError):
    """Clients or saved bytes that a data source cannot use."""


class SeededDataSource(tff.program.FederatedDataSource):
    """A data source for `tff.learning.programs.train_model` and similar programs.

    Every iterator begins at round 1, so an evaluation of every model, such as
    `tff.learning.programs.EvaluationManager`'s, uses the same clients each time.

    >>> import numpy as np
    >>> from tff_reg import data
    >>> x, y = np.eye(4, dtype=np.float32), np.arange(4)
    >>> clients = data.ArrayClientData(x, y, [[0, 1], [2], [3]])
    >>> len(data.SeededDataSource(clients, seed=7).iterator().select(2))
    2
    """

    def __init__(
        self,
        client_data: Any,
        *,
        seed: int,
        client_dataset_fn: Optional[
            Callable[[str, np.ndarray], tf.data.Dataset]
        ] = None,
    ):
        """Initialises a source of all clients of `client_data`.

        Args:
          client_data: An object with `client_ids` and `whole_client_dataset(client_id,
            key)`, such as a `tff_reg.data.ArrayClientData`.
          seed: Seed of the sampling and of the clients' keys.
          client_dataset_fn: Returns a client's `tf.data.Dataset`, given the client's id
            and key (int64 [2]); None for `client_data.whole_client_dataset`.

        Raises:
          DataSourceError: If there are no clients.
          TypeError: If `seed` is not an integer.
        """
        self._client_ids = list(client_data.client_ids)
        if not self._client_ids:
            raise DataSourceError("There are no clients; pass at least one.")
        self._seed = operator.index(seed)
        self._client_data = client_data
        self._client_dataset_fn = client_dataset_fn or client_data.whole_client_dataset

        # TFF's program state managers restore an iterator from its class and its bytes
        # alone, so the class must refer to the data source.
        class Iterator(SeededDataSourceIterator):
            _source = self

        self._iterator_class = Iterator

    @functools.cached_property
    def federated_type(self) -> tff.FederatedType:
        """The type of the result of `select`: sequences placed at clients.

        It is computed at first use from every client's data set. A dimension that
        differs between clients is unknown in it.

        Raises:
          DataSourceError: If clients' data sets differ in more than dimensions.
        """
        specs = [
            self._client_dataset_fn(name, np.zeros([2], np.int64)).element_spec
            for name in self._client_ids
        ]

        def common(spec: tf.TensorSpec, *others: tf.TensorSpec) -> tf.TensorSpec:
            found = spec.most_specific_common_supertype(others)
            if found is None:
                raise DataSourceError(
                    "Clients' data sets differ in more than sizes: one has"
                    f" {spec}, others {sorted({*map(repr, others)} - {repr(spec)})}."
                )
            return found

        element = tff.types.tensorflow_to_type(tf.nest.map_structure(common, *specs))
        return tff.FederatedType(tff.SequenceType(element), tff.CLIENTS)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """JSON values that are equal for two sources which sample the same clients.

        These are the seed, and the digests of the examples and of their split. Client
        data without digests are identified by their clients' names.
        """
        found = getattr(self._client_data, "digests", None) or {
            digests.SPLIT: digests.of_split(self._client_ids, [])
        }
        return {
            "seed": self._seed,
            "clients": found[digests.SPLIT],
            "examples": found.get(digests.EXAMPLES),
        }

    def iterator(self) -> SeededDataSourceIterator:
        """Returns a new iterator, at round 1."""
        return self._iterator_class(0)

    def select(self, round_num: int, k: Optional[int] = None) -> list[tf.data.Dataset]:
        """Returns the data sets of one round's cohort.

        Args:
          round_num: The round, from 1.
          k: Number of clients; None for all.

        Returns:
          One data set for each client of the cohort, in the order of `client_ids`.

        Raises:
          SamplingError: If `k` is not between 1 and the number of clients.
        """
        cohort = sampling.sample_clients(
            self._client_ids,
            len(self._client_ids) if k is None else k,
            seed=self._seed,
            round_num=round_num,
        )
        return [
            self._client_dataset_fn(name, keys.client_key(self._seed, round_num, name))
            for name in cohort
        ]


class SeededDataSourceIterator(tff.program.FederatedDataSourceIterator):
    """Draws round after round; built by `SeededDataSource.iterator`.

    `to_bytes` stores the seed, digests of the clients and the number of rounds drawn,
    but no data. Each source has its own sub-class.
    """

    _source: SeededDataSource

    def __init__(self, rounds_drawn: int):
        """Initialises an iterator after `rounds_drawn` rounds."""
        self._rounds_drawn = rounds_drawn

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of the result of `select`."""
        return self._source.federated_type

    def select(self, k: Optional[int] = None) -> list[tf.data.Dataset]:
        """Returns the data sets of the next round's cohort; see the source's `select`.

        If the source raises, no round counts as drawn.
        """
        selected = self._source.select(self._rounds_drawn + 1, k)
        self._rounds_drawn += 1
        return selected

    def to_bytes(self) -> bytes:
        """Returns the iterator's position, for `from_bytes` of the same source."""
        state = {**self._source.identity, "rounds_drawn": self._rounds_drawn}
        return json.dumps(state, sort_keys=True).encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes) -> SeededDataSourceIterator:
        """Returns an iterator at a saved position."""
        own = cls._source.identity
        try:
            state = json.loads(data)
            found = {name: state[name] for name in own}
            rounds_drawn = operator.index(state["rounds_drawn"])
        except (ValueError, TypeError, KeyError):
            raise DataSourceError(
                "These bytes are not of a SeededDataSource's iterator; did the program"
                " begin with another data source?"
            ) from None
        if found["seed"] != own["seed"]:
            raise DataSourceError(
                f"The program was begun with seed {found['seed']}, and the seed is now"
                f" {own['seed']}: use that seed, or another directory."
            )
        for name, others in (
            ("clients", "clients, or with other examples at the clients"),
            ("examples", "examples"),
        ):
            if found[name] != own[name]:
                raise DataSourceError(
                    f"The program was begun with other {others}: use those, or another"
                    " directory."
                )
        return cls(rounds_drawn)
