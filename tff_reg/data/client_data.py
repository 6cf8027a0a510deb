"""Client data whose examples are rows of shared arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.data import digests, elements, keys, partitions, rows
from tff_reg.lazy import tff
from tff_reg.settings import SettingError

# A TensorFlow graph with more bytes than this cannot be serialised.
_LARGEST_GRAPH_BYTES = 2**31 - 2**24


class ClientDataError(ValueError):
    """Raised if arrays, names or arguments do not fit together."""


class UnknownClientError(ClientDataError):
    """Raised for a client id that is not in the client data."""


# Numbers the `ArrayClientData` objects of this process.
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Origin:
    """Builds a client's data set in another process.

    The examples are the same in all rounds, so a runtime can keep them in the process
    that used them.

    Attributes:
      whose: The number of the client data in this process, and the client.
      num_bytes: Size of the examples.
      examples: Returns the examples, in this process.
      make: Builds the data set from the examples; can be pickled.
      load: Returns the examples from the files of the machine where it is called; can
        be pickled. None unless `ArrayClientData.load_by` was called.
    """

    whose: tuple[int, str]
    num_bytes: int
    examples: Callable[[], Any]
    make: Callable[[Any], tf.data.Dataset]
    load: Optional[Callable[[], Any]]

    @functools.cached_property
    def name(self) -> tuple:
        """Names the examples; arrays that were changed in place have another name."""
        arrays = tf.nest.flatten(self.examples())
        arrays = [each.reshape(-1).view(np.uint8) for each in arrays]
        return (*self.whose, *map(zlib.crc32, arrays))


class ArrayClientData(tff.simulation.datasets.ClientData):
    """Clients whose examples are rows of shared arrays.

    The arrays are never copied or converted (uint8 images stay uint8). Beside them the
    object holds one int64 per example and the clients' names, so 10,000 clients need
    hardly more memory than 10. A client's rows are gathered when they are used.

    >>> import numpy as np
    >>> from tff_reg import data
    >>> x, y = np.arange(4, dtype=np.float32), np.array([0, 1, 0, 1])
    >>> clients = data.ArrayClientData(x, y, [[0, 3], [1, 2]])
    >>> clients.client_examples("client_0000")["x"]
    array([0., 3.], dtype=float32)

    Methods with a client id raise an UnknownClientError for an unknown id. A client's
    data come in these forms:

    * `client_examples`: NumPy arrays.
    * `create_tf_dataset_for_client` and `serializable_dataset_fn`: single examples,
      TFF's own interface.
    * `whole_client_dataset`: one element with all examples and a key; the client
      computation does epochs, order, batches and augmentation itself.
    * `batched_dataset`: ordinary batches over all local epochs, the same batches in
      the same order as a client computation makes of the whole-client form with the
      same key.

    Attributes:
      tests: Examples that the same clients hold out, an `ArrayClientData`; see
        `hold_out`. None for none.
    """

    tests: Optional[ArrayClientData] = None

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        partition: Sequence[np.ndarray],
        client_ids: Sequence[str] | None = None,
    ):
        """Initialises client data with the rows of `x` and `y`.

        Args:
          x: uint8 or float32 [N, ...], or a dict or tuple of such arrays.
          y: [N] class numbers from 0, kept as int32; or other labels, float32 or int32
            [N, ...], or a dict or tuple of such arrays.
          partition: For each client an array of positions in 0 .. N - 1, which may be
            empty; clients may share positions.
          client_ids: A distinct name for each client; None takes `client_0000` and so
            on, whose alphabetical order is the partition's order.

        Raises:
          ClientDataError: If shapes, dtypes or names do not fit.
          PartitionError: If a class number is too large, or a position has no example.
        """
        super().__init__()
        if not len(partition):
            raise ClientDataError(
                "The partition has no clients; pass at least one array of positions."
            )
        for each in tf.nest.flatten(x):
            if each.dtype not in (np.uint8, np.float32):
                raise ClientDataError(
                    f"x has dtype {each.dtype}; convert it to uint8 or float32."
                )
        for each in tf.nest.flatten(y):
            if each.dtype.kind not in "biuf":
                raise ClientDataError(
                    f"y has dtype {each.dtype}; convert it to numbers."
                )
        if not rows.same_count(x, y):
            shapes = [str(each.shape) for each in tf.nest.flatten([x, y])]
            raise ClientDataError(
                f"x and y have shapes {' and '.join(shapes)}; pass as many labels as "
                "examples, at least one."
            )
        self._has_classes = rows.are_classes(y)
        if self._has_classes:
            y = partitions.check_labels(y).astype(np.int32, copy=False)
        if client_ids is None:
            client_ids = digests.client_ids(len(partition))
        self._client_ids = [str(client_id) for client_id in client_ids]
        self._rows = {name: row for row, name in enumerate(self._client_ids)}
        if len(self._client_ids) != len(partition):
            raise ClientDataError(
                f"There are {len(self._client_ids)} client ids for {len(partition)} "
                "clients; pass one for each client."
            )
        if len(self._rows) != len(partition):
            raise ClientDataError("Client ids must be distinct; some are repeated.")
        self._positions, sizes = partitions.check_positions(partition, rows.count(x))
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        self._x = x
        self._y = y
        self._number = next(_numbers)
        self._parts: Optional[ArrayClientData] = None
        self._load: Optional[tuple[bytes, dict[str, str]]] = None

    @property
    def client_ids(self) -> list[str]:
        """The clients' names, in the partition's order."""
        return list(self._client_ids)

    @property
    def client_sizes(self) -> np.ndarray:
        """int64 [clients], the number of examples of each client."""
        return np.diff(self._offsets)

    @property
    def arrays(self) -> tuple[Any, Any]:
        """The shared x and y, which positions count in."""
        return self._x, self._y

    def hold_out(
        self, share: Optional[float], seed: int, units: Optional[np.ndarray] = None
    ) -> ArrayClientData:
        """Returns the same clients, with some of their examples as their `tests`.

        An example, or unit, that several clients have is held out by all or by none.

        Args:
          share: The share of each client's examples (units), of which it has at least
            one; None for no tests.
          seed: The seed of the draw.
          units: int [N], such as each image's lesion: held out together. None for none.

        Returns:
          Client data with the same arrays.

        Raises:
          SettingError: If a client would have no other examples left.
        """
        if share is None:
            return self
        units = np.arange(rows.count(self._y)) if units is None else units
        known, units = np.unique(units, return_inverse=True)
        generator = keys.driver_generator("client_test_share", seed)
        # One order for all clients, so that those who share units hold out the same.
        units, is_held = generator.permutation(known.size)[units], np.zeros(known.size)
        parts = [self.client_positions(name) for name in self._client_ids]
        for own in (np.unique(units[each]) for each in parts):
            is_held[own[: max(1, round(share * own.size))]] = 1
        for name, own in zip(self._client_ids, parts):
            if own.size and is_held[units[own]].all():
                why = f"{name} would hold out all of its {own.size} examples."
                raise SettingError("client_test_share", share, why)
        result, result.tests = (
            ArrayClientData(self._x, self._y, each, self._client_ids)
            for each in ([p[is_held[units[p]] == n] for p in parts] for n in (0, 1))
        )
        return result

    def pooled(self) -> ArrayClientData:
        """Returns one client with all clients' examples, and these digests."""
        whole = ArrayClientData(self._x, self._y, [self._positions], ["everyone"])
        whole._parts = self
        return whole

    @property
    def classes(self) -> Optional[np.ndarray]:
        """int32, the classes of all clients' examples, ascending; None of others."""
        return np.unique(self._y[self._positions]) if self._has_classes else None

    @property
    def element_type_structure(self) -> collections.OrderedDict:
        """The type of one example: x as stored, y a class an int32 scalar."""
        whole = collections.OrderedDict(x=self._x, y=self._y)
        return tf.nest.map_structure(
            lambda each: tf.TensorSpec(each.shape[1:], tf.as_dtype(each.dtype)), whole
        )

    def client_positions(self, client_id: str) -> np.ndarray:
        """Returns the positions of a client's examples: int64 [n], a view.

        Raises:
          UnknownClientError: If there is no such client.
        """
        if client_id not in self._rows:
            raise UnknownClientError(
                f"There is no client {client_id!r} among {len(self._client_ids)} "
                f"({self._client_ids[0]!r} to {self._client_ids[-1]!r}); see "
                "client_ids."
            )
        row = self._rows[client_id]
        return self._positions[self._offsets[row] : self._offsets[row + 1]]

    def client_examples(self, client_id: str) -> collections.OrderedDict:
        """Returns a copy of a client's examples: x [n, ...] and y [n, ...]."""
        whole = collections.OrderedDict(x=self._x, y=self._y)
        return rows.take(whole, self.client_positions(client_id))

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """Returns a client's single examples, in the order of its positions.

        The data set holds this client's examples only, unlike that of
        `serializable_dataset_fn`.
        """
        return tf.data.Dataset.from_tensor_slices(self.client_examples(client_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        """A function from a client id (tensor or string) to its single examples.

        It works inside `tf.function` and TFF computations (`dataset_computation`,
        `create_tf_dataset_from_all_clients`, `preprocess`), but makes the arrays of
        *all* clients constants of the graph. TFF's C++ worker takes at most 100 MB, and
        no graph can hold 2 GB; larger data need the other methods.

        An unknown id raises an `InvalidArgumentError` when the data set is built.

        Raises:
          ClientDataError: When called, if the arrays are too large for a graph.
        """
        return self._examples_in_graph

    def _examples_in_graph(self, client_id) -> tf.data.Dataset:
        whole = collections.OrderedDict(x=self._x, y=self._y)
        size = sum(each.nbytes for each in tf.nest.flatten(whole))
        if size > _LARGEST_GRAPH_BYTES:
            raise ClientDataError(
                f"The arrays have {size:,} bytes, more than a TensorFlow graph can "
                "hold; use create_tf_dataset_for_client."
            )
        found = tf.where(tf.equal(tf.constant(self._client_ids), client_id))
        known = tf.debugging.assert_equal(
            tf.size(found), 1, message="There is no such client in this ClientData."
        )
        # In eager mode the assertion has already run, and there is no operation.
        with tf.control_dependencies([] if known is None else [known]):
            row = tf.identity(found[0, 0])
        offsets = tf.constant(self._offsets)
        positions = tf.constant(self._positions)[offsets[row] : offsets[row + 1]]
        own = tf.nest.map_structure(
            lambda each: tf.gather(tf.constant(each), positions), whole
        )
        return tf.data.Dataset.from_tensor_slices(own)

    def whole_client_dataset(
        self, client_id: str, key: np.ndarray, **told: float
    ) -> tf.data.Dataset:
        """Returns a client's data as one element.

        Args:
          client_id: The client.
          key: int64 [2], see `keys.client_key`.
          **told: What the data say of the client, see `training.WholeClientData.told`.

        Returns:
          A data set of one `OrderedDict(x=[n, ...], y=[n, ...], key=int64 [2])`,
          with x as stored, even if n is 0, and with what is `told`. Its attribute
          `origin` is its `Origin`.
        """
        make = functools.partial(elements.whole_client, np.asarray(key, np.int64), told)
        examples = self.client_examples(client_id)
        dataset = make(examples)
        dataset.origin = Origin(
            whose=(self._number, client_id),
            num_bytes=sum(array.nbytes for array in tf.nest.flatten(examples)),
            examples=functools.partial(self.client_examples, client_id),
            make=make,
            load=self._load and functools.partial(_loaded, *self._load, client_id),
        )
        return dataset

    def load_by(self, build: Callable[[], ArrayClientData]) -> None:
        """Sets the function that builds the same client data on another machine.

        Args:
          build: The function, which can be pickled. The digests of its result are
            compared with these client data's.
        """
        self._load = (pickle.dumps(build), self.digests)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the examples, as they are now, and of their split."""
        if self._parts is not None:
            return self._parts.digests
        sets = [self]
        if self.tests is not None and self.tests.arrays[1] is not self._y:
            sets.append(self.tests)  # Else it follows from the settings.
        names = self._client_ids
        positions = [each.client_positions(name) for each in sets for name in names]
        return {
            digests.EXAMPLES: digests.of_examples(self._x, self._y),
            digests.SPLIT: digests.of_split(self._client_ids, positions),
        }

    def batched_dataset(
        self,
        client_id: str,
        key: np.ndarray,
        batch_size: int,
        local_epochs: int = 1,
        augment_fn: Callable | None = None,
        *,
        include_key: bool = False,
    ) -> tf.data.Dataset:
        """Returns a client's data as ordinary batches of all local epochs.

        Each epoch has the order `keys.epoch_order(key, epoch, n)` and is cut into
        separate batches, of which the last may be smaller. Batch s, counted over all
        epochs, is augmented with `keys.step_key(key, s)`. Every iteration of the data
        set gives the same batches.

        Args:
          client_id: The client.
          key: int64 [2], see `keys.client_key`.
          batch_size: Examples per batch, at least 1.
          local_epochs: Number of epochs, at least 1.
          augment_fn: (images, key) -> float32 images; None only converts to float32.
          include_key: Whether batches include their step's key.

        Returns:
          A data set of `OrderedDict(x=float32 [b, ...], y=[b, ...])`, and with
          `include_key` also `key=int64 [2]`; empty for a client without examples.
        """
        examples = self.client_examples(client_id)
        count = rows.count(examples)
        x, y = (
            tf.nest.map_structure(tf.constant, examples[name]) for name in ("x", "y")
        )
        key = tf.constant(key, tf.int64)

        def epoch_batches(epoch):
            order = keys.epoch_order(key, epoch, count)
            return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

        def fill(step, positions):
            step_key = keys.step_key(key, step)
            own, labels = tf.nest.map_structure(
                lambda each: tf.gather(each, positions), (x, y)
            )
            if augment_fn is None:
                own = tf.nest.map_structure(lambda each: tf.cast(each, tf.float32), own)
            else:
                own = augment_fn(own, step_key)
            batch = collections.OrderedDict(x=own, y=labels)
            if include_key:
                batch["key"] = step_key
            return batch

        epochs = tf.data.Dataset.range(local_epochs)
        return epochs.flat_map(epoch_batches).enumerate().map(fill)


def _loaded(
    build: bytes, expected: Mapping[str, str], client_id: str
) -> collections.OrderedDict:
    """Loads a client's examples on another machine; see `ArrayClientData.load_by`."""
    client_data, found = _built(build)
    if found != expected:
        raise ClientDataError(
            "This machine's files have other examples than those of the machine that"
            " started the run; copy the files, or leave data_on_nodes out."
        )
    return client_data.client_examples(client_id)


@functools.lru_cache(maxsize=1)
def _built(build: bytes) -> tuple[ArrayClientData, dict[str, str]]:
    built = pickle.loads(build)()
    return built, built.digests
