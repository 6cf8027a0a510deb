"""The work of one round: client sampling, training, evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import data
from tff_reg.data import sampling
from tff_reg.experiment.rounds import metrics, process_state
from tff_reg.settings import check_takes

EvaluationFn = Callable[[Any], Mapping[str, float]]
ClientDatasetFn = Callable[[str, Any], Any]
SampleFn = Callable[[int, list[str]], Sequence[str]]


class TrainingError(RuntimeError):
    """Raised when a round fails; says which, with the error of the process."""


def check_sample_fn(sample_fn: Any) -> None:
    """Checks that a `sample_fn` is None or a function of round and client ids.

    Raises:
      TypeError: If it is neither.
    """
    if sample_fn is None:
        return
    if not callable(sample_fn):
        raise TypeError(
            f"sample_fn is a {type(sample_fn).__name__}; it must be a function of"
            " (round_num, client_ids) that returns a list of client ids."
        )
    check_takes(sample_fn, "sample_fn", "round_num,client_ids")


def name_of(function: Any) -> Optional[str]:
    """Returns the name of a function given from Python, for `config.json`."""
    return function and getattr(function, "__name__", type(function).__name__)


class RoundWork:
    """Trains and evaluates rounds; all randomness follows from the seed and the round.

    Attributes:
      cohort_size: Number of clients in the last round.
      methods_not_finite: Names of methods with non-finite numbers in the last round.
    """

    def __init__(
        self,
        state: process_state.ProcessState,
        client_data: Any,
        *,
        clients_per_round: int,
        client_sampling: str,
        sample_fn: Optional[SampleFn],
        seed: int,
        client_dataset_fn: Optional[ClientDatasetFn],
        evaluate: Optional[EvaluationFn],
    ):
        """Trains nothing yet; the arguments after `state` are as for `Training`."""
        self._state = state
        self._client_ids = list(client_data.client_ids)
        self._clients_per_round = clients_per_round
        self._client_sampling = client_sampling
        self._sample_fn = sample_fn
        self._seed = seed
        self._dataset_fn = client_dataset_fn or client_data.whole_client_dataset
        self._evaluate = evaluate
        self.cohort_size = 0
        self.methods_not_finite: list[str] = []

    def train(self, round_num: int) -> dict[str, Any]:
        """Trains one round; returns its row of metrics.

        Raises:
          TrainingError: If the round fails.
        """
        began = time.monotonic()
        cohort = self._cohort(round_num)
        self.cohort_size = len(cohort)
        datasets = [
            self._dataset_fn(name, data.client_key(self._seed, round_num, name))
            for name in cohort
        ]
        try:
            found = self._state.train(cohort, datasets, round_num)
        except Exception as error:
            raise TrainingError(
                f"Round {round_num} failed: {type(error).__name__}: {error}"
            ) from error
        row = metrics.round_metrics(found)
        self.methods_not_finite = metrics.take_not_finite(row)
        if row.get(metrics.NUM_EXAMPLES) == 0:
            # All clients were rejected: there is no mean, though the sums say 0.
            of_methods = [
                name
                for name in row
                if name.startswith("training/") and name.count("/") == 2
            ]
            names = (metrics.TRAINING_LOSS, metrics.TRAINING_ACCURACY, *of_methods)
            row.update(dict.fromkeys(names, math.nan))
        # The first row fixes the columns, also those that only later rounds fill.
        names = ["loss", "accuracy", *getattr(self._evaluate, "metrics", ())]
        to_fill = [f"evaluation/{name}" for name in names[2:]]
        if self._evaluate is not None and self._state.has_all_clients_weights:
            to_fill += [f"evaluation_all_clients/{name}" for name in names]
        return {
            metrics.ROUND: round_num,
            metrics.TRAINING_LOSS: row.pop(metrics.TRAINING_LOSS, None),
            metrics.TRAINING_ACCURACY: row.pop(metrics.TRAINING_ACCURACY, None),
            metrics.SECONDS: round(time.monotonic() - began, 3),
            **dict.fromkeys(to_fill),
            **row,
        }

    def _cohort(self, round_num: int) -> list[str]:
        if self._sample_fn is not None:
            return sampling.sample_by(
                self._sample_fn, self._client_ids, round_num=round_num
            )
        drawn = {"seed": self._seed, "round_num": round_num}
        if self._client_sampling == "independent":
            share = self._clients_per_round / len(self._client_ids)
            return data.sample_clients_bernoulli(self._client_ids, share, **drawn)
        return data.sample_clients(self._client_ids, self._clients_per_round, **drawn)

    def evaluate(self, round_num: int) -> dict[str, float]:
        """Evaluates the server's model, and the mean of all clients' if there is one.

        Raises:
          TrainingError: If the evaluation fails.
        """
        if self._evaluate is None:
            return {}
        try:
            results = self._evaluate(self._state.weights())
            row = {f"evaluation/{name}": value for name, value in results.items()}
            if self._state.has_all_clients_weights:
                results = self._evaluate(self._state.all_clients_weights())
                for name, value in results.items():
                    row[f"evaluation_all_clients/{name}"] = value
            return row
        except Exception as error:
            raise TrainingError(
                f"The evaluation after round {round_num} failed:"
                f" {type(error).__name__}: {error}"
            ) from error
