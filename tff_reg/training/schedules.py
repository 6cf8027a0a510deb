"""Schedules of the learning rates of clients and server over rounds.

A schedule maps the round number to a factor: the learning rate of round r is
`factor(r)` times the learning rate in the process's hparams. The hparams themselves do
not decay (drift corrections divide by that learning rate).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Optional

from tff_reg.lazy import tf
from tff_reg.training.process_settings import ProcessSettings


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A function from a round number, an int scalar from 0, to a float64 factor.

    Attributes:
      total_rounds: The number of rounds that it is made for; None for any number.
    """

    total_rounds: ClassVar[Optional[int]] = None

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def highest(self, round_num: tf.Tensor) -> Optional[tf.Tensor]:
        """Returns the factor before any decay, if it is not 1 in all rounds."""
        return None


@dataclasses.dataclass(frozen=True)
class _Constant(Schedule):
    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        return tf.constant(1.0, tf.float64)


@dataclasses.dataclass(frozen=True)
class _Exponential(Schedule):
    decay: float

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        return tf.pow(
            tf.constant(self.decay, tf.float64), tf.cast(round_num, tf.float64)
        )


@dataclasses.dataclass(frozen=True)
class _Cosine(Schedule):
    total_rounds: int  # pyright: ignore[reportIncompatibleVariableOverride]

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        # Rounds after the last one (as in an analysis) keep its rate, which is not 0.
        last = tf.cast(self.total_rounds - 1, tf.float64)
        progress = tf.minimum(tf.cast(round_num, tf.float64), last) / self.total_rounds
        return 0.5 * (1.0 + tf.cos(math.pi * progress))


@dataclasses.dataclass(frozen=True)
class _Step(Schedule):
    decay: float
    milestones: tuple[int, ...]

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        passed = round_num >= tf.constant(self.milestones, round_num.dtype)
        count = tf.reduce_sum(tf.cast(passed, tf.float64))
        return tf.pow(tf.constant(self.decay, tf.float64), count)


@dataclasses.dataclass(frozen=True)
class _Warmup(Schedule):
    rounds: int
    then: Schedule

    @property
    def total_rounds(self) -> Optional[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.then.total_rounds

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        share = tf.cast(round_num + 1, tf.float64) / self.rounds
        return tf.minimum(share, 1.0) * self.then(round_num)


@dataclasses.dataclass(frozen=True)
class _Listed(Schedule):
    factors: tuple[float, ...]

    def __call__(self, round_num: tf.Tensor) -> tf.Tensor:
        return self._at(round_num, self.factors)

    def highest(self, round_num: tf.Tensor) -> tf.Tensor:
        """Returns the highest factor up to a round."""
        return self._at(round_num, tuple(itertools.accumulate(self.factors, max)))

    def _at(self, round_num: tf.Tensor, factors: tuple[float, ...]) -> tf.Tensor:
        last = tf.constant(len(factors) - 1, round_num.dtype)
        values = tf.constant(factors, tf.float64)
        return tf.gather(values, tf.minimum(round_num, last))


def constant() -> Schedule:
    """Returns the schedule with factor 1 in every round."""
    return _Constant()


def exponential(decay: float) -> Schedule:
    """Returns the schedule `decay ** round` (0.998 in the FedMLB and MAN papers).

    Args:
      decay: The factor from one round to the next, in (0, 1].

    Returns:
      The schedule.
    """
    return _Exponential(decay)


def cosine(total_rounds: int) -> Schedule:
    """Returns half a cosine, from 1 in round 0 to 0 in round `total_rounds`.

    Round `total_rounds` and later rounds use the factor of round `total_rounds - 1`.

    Args:
      total_rounds: Rounds of the whole run, at least 1.

    Returns:
      The schedule.
    """
    return _Cosine(total_rounds)


def step(decay: float, milestones: Sequence[int]) -> Schedule:
    """Returns the schedule that decays by a factor after each of some rounds.

    Args:
      decay: The factor, in (0, 1].
      milestones: Numbers of rounds, at least 1: the decay begins in the next round.

    Returns:
      The schedule.
    """
    return _Step(decay, tuple(milestones))


def warmup(rounds: int, then: Schedule) -> Schedule:
    """Returns a schedule, times (r + 1) / rounds in the first rounds.

    Args:
      rounds: The number of these rounds; 0 returns the schedule.
      then: The schedule, which also counts from round 0.

    Returns:
      The schedule.
    """
    return _Warmup(rounds, then) if rounds else then


def listed(factors: Sequence[float]) -> Schedule:
    """Returns the schedule with one given factor per round."""
    return _Listed(tuple(map(float, factors)))


def of(settings: ProcessSettings) -> Schedule:
    """Builds the learning-rate schedule from the settings of a process.

    Its factors are relative to `client_learning_rate`, the rate that does not decay.
    """
    rates, rate = settings.client_learning_rates or (), settings.client_learning_rate
    if settings.learning_rate_schedule == "listed":
        found = listed([each / rate for each in rates])
    else:
        found = _named(
            settings.learning_rate_schedule,
            settings.learning_rate_decay,
            settings.learning_rate_milestones,
            settings.total_rounds,
        )
    return warmup(settings.warmup_rounds, found)


def of_server(settings: ProcessSettings) -> Schedule:
    """Builds the schedule of the server's learning rate."""
    found = _named(
        settings.server_learning_rate_schedule,
        settings.server_learning_rate_decay,
        settings.server_learning_rate_milestones,
        settings.total_rounds,
    )
    return warmup(settings.server_warmup_rounds, found)


def _named(
    name: str, decay: Optional[float], milestones: Sequence[int], total_rounds: int
) -> Schedule:
    decay = 1.0 if decay is None else decay
    builders = {
        "constant": constant,
        "exponential": lambda: exponential(decay),
        "step": lambda: step(decay, milestones),
        "cosine": lambda: cosine(total_rounds),
    }
    return builders[name]()
