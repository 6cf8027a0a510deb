"""Where every random number of a run comes from.

A run has one seed. Nothing else is random: each draw is a pure function of the
seed and of *what the draw is for* (the round, the client's name, the epoch, the
step). So a run that is resumed draws what the unbroken run would have drawn, the
order in which clients are computed does not matter, and two runs in one process
do not disturb each other.

Two kinds of keys:

* On the driver, `client_key` (the key that travels with a client's data in one
  round) and `driver_generator` (NumPy generators for partitions and client
  sampling). Both hash their arguments with SHA-256, so they are the same in every
  process and on every platform; Python's own `hash` is not.
* In TensorFlow, `epoch_order` and `step_key` turn a client's key into the order of
  the examples in an epoch and into the key of one step. The whole-client loop and
  the batched data sets of `ArrayClientData` both call these two functions, which is
  why they see the same batches.

The generator is always Philox, named explicitly, so that CPU and GPU agree.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable
from typing import Any, Union

from tff_reg.lazy import np, tf

# What a seed is at most: files of JSON and keys of int64 hold it as it is.
LARGEST_SEED = 2**53 - 1
# Step keys live under a branch of the client's key that no epoch can have.
_STEPS_BRANCH = 2**31 - 1


def _digest(purpose: str, parts: Iterable[Union[int, str]]) -> bytes:
    """SHA-256 of an unambiguous text form of `purpose` and `parts`."""
    plain: list[Union[int, str]] = [purpose]
    for part in parts:
        plain.append(part if isinstance(part, str) else operator.index(part))
    return hashlib.sha256(json.dumps(plain).encode("utf-8")).digest()


def client_key(seed: int, round_num: int, client_id: str) -> np.ndarray:
    """The key of one client in one round.

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
    """A NumPy generator that depends on `purpose` and `parts` alone.

    Args:
      purpose: What the numbers are for; two purposes never share a stream.
      *parts: Integers and strings, e.g. the seed and the round.

    Returns:
      A fresh PCG64 `np.random.Generator`.

    Raises:
      TypeError: If a part is neither a string nor an integer.
    """
    entropy = int.from_bytes(_digest(purpose, parts), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def fold_in(key: tf.Tensor, data: Any) -> tf.Tensor:
    """A new key from `key` and an integer: int64 [2], int scalar -> int64 [2]."""
    return tf.random.experimental.stateless_fold_in(
        tf.cast(key, tf.int64), tf.cast(data, tf.int64), alg="philox"
    )


def epoch_order(key: tf.Tensor, epoch: Any, num_examples: Any) -> tf.Tensor:
    """The order in which a client's examples are visited in one epoch.

    A sort of 64-bit random numbers rather than `stateless_shuffle`, whose result
    TensorFlow does not promise to keep between versions and devices.

    Args:
      key: int64 [2], the client's key (not the epoch's).
      epoch: Integer scalar, Python number or tensor, from 0 to 2**31 - 2.
      num_examples: Integer scalar, Python number or tensor.

    Returns:
      int32 [num_examples] tensor, a permutation of 0 .. num_examples - 1.
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


def step_key(key: tf.Tensor, step: Any) -> tf.Tensor:
    """The key of one local step: augmentation, dropout, mixing and the like.

    Args:
      key: int64 [2], the client's key.
      step: Integer scalar, Python number or tensor, counted from 0 over all of the
        client's epochs in this round.

    Returns:
      int64 [2] tensor.
    """
    return fold_in(fold_in(key, _STEPS_BRANCH), step)


def part_key(key: tf.Tensor, name: str) -> tf.Tensor:
    """The key of one part of a step, so that parts never share their draws.

    Args:
      key: int64 [2], the step's key.
      name: The part's name, a regulariser's for instance.

    Returns:
      int64 [2] tensor.
    """
    return fold_in(key, int.from_bytes(_digest("part", (name,))[:7], "little"))
