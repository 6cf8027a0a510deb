"""The source of all random numbers of a run.

A run has one seed. Each draw is a pure function of the seed and the draw's purpose
(the round, the client's name, the epoch, the step). So a resumed run draws the same
numbers as an uninterrupted run, the order in which clients are computed does not
matter, and two runs in one process do not disturb each other.

There are two kinds of keys:

* On the driver, `client_key` (the key that travels with a client's data in one
  round) and `driver_generator` (NumPy generators for partitions and client
  sampling). Both hash their arguments with SHA-256, so that they are the same in every
  process and on every platform, unlike Python's own `hash`.
* In TensorFlow, `epoch_order` and `step_key` derive the order of the examples in an
  epoch and the key of one step from a client's key. The whole-client loop and the
  batched data sets of `ArrayClientData` both call them, and so see the same batches.

The generator is always Philox, named explicitly, so that CPU and GPU agree.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable
from typing import Any, Union

from tff_reg.lazy import np, tf

# The largest seed: JSON and int64 keys hold it exactly.
LARGEST_SEED = 2**53 - 1
# Step keys live under a branch of the client's key that no epoch can have.
_STEPS_BRANCH = 2**31 - 1


def _digest(purpose: str, parts: Iterable[Union[int, str]]) -> bytes:
    """Returns the SHA-256 of an unambiguous text form of `purpose` and `parts`."""
    plain: list[Union[int, str]] = [purpose]
    for part in parts:
        plain.append(part if isinstance(part, str) else operator.index(part))
    return hashlib.sha256(json.dumps(plain).encode("utf-8")).digest()


def client_key(seed: int, round_num: int, client_id: str) -> np.ndarray:
    """Returns the key of one client in one round.

    >>> from tff_reg import data
    >>> data.client_key(seed=3, round_num=17, client_id="client_0004")
    array([-4970384453049134167, -3430817352026502600])

    Args:
      seed: The run's seed, any Python or NumPy integer.
      round_num: The round, any integer.
      client_id: The client's name.

    Returns:
      int64 [2], the same for the same arguments in every process and on every
      platform.

    Raises:
      TypeError: If `seed` or `round_num` is not an integer.
    """
    digest = _digest("client", (seed, round_num, str(client_id)))
    return np.frombuffer(digest[:16], dtype="<i8").astype(np.int64)


def driver_generator(purpose: str, *parts: Union[int, str]) -> np.random.Generator:
    """Returns a NumPy generator that depends on `purpose` and `parts` alone."""
    entropy = int.from_bytes(_digest(purpose, parts), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def fold_in(key: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns a new key from a key and an integer: int64 [2], int -> int64 [2]."""
    return tf.random.experimental.stateless_fold_in(
        tf.cast(key, tf.int64), tf.cast(data, tf.int64), alg="philox"
    )


def uniform(shape: Any, key: tf.Tensor) -> tf.Tensor:
    """Returns uniform float64 samples in [0, 1), identical with and without XLA.

    Without XLA they are those of `tf.random.stateless_uniform`, algorithm Philox. XLA
    draws the same integers there, but turns them into other floats.
    """
    words = tf.random.stateless_uniform(
        [*shape, 2], key, None, None, tf.uint32, alg="philox"
    )
    high, low = (tf.cast(each, tf.float64) for each in tf.unstack(words, axis=-1))
    return tf.math.floormod(high, 2.0**20) * 2.0**-20 + low * 2.0**-52


def epoch_order(key: tf.Tensor, epoch: Any, num_examples: Any) -> tf.Tensor:
    """Returns the order in which a client's examples are visited in one epoch.

    It sorts 64-bit random numbers instead of calling `stateless_shuffle`, whose result
    may change between versions of TensorFlow and devices.
    """
    numbers = tf.random.stateless_uniform(
        [num_examples],
        seed=fold_in(key, epoch),
        minval=None,
        maxval=None,
        dtype=tf.int64,
        alg="philox",
    )
    return tf.argsort(numbers, stable=True)


def of_content(values: Any, *numbers: Any) -> tf.Tensor:
    """Returns the key of a structure of tensors and of integers, int64 [2]."""
    key = tf.zeros([2], tf.int64)
    for each in tf.nest.flatten(values):
        digest = tf.bitcast(tf.fingerprint(tf.reshape(each, [1, -1])), tf.int64)
        key = fold_in(key, digest[0])
    for number in numbers:
        key = fold_in(key, number)
    return key


def step_key(key: tf.Tensor, step: Any) -> tf.Tensor:
    """Returns the key of one local step: augmentation, dropout, mixing and the like."""
    return fold_in(fold_in(key, _STEPS_BRANCH), step)


def part_key(key: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the key of one part of a step, so that parts never share their draws."""
    return fold_in(key, int.from_bytes(_digest("part", (name,))[:7], "little"))
