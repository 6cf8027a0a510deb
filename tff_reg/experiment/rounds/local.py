"""The process `local`: every client trains a model of its own, and none is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg import lazy
from tff_reg.lazy import np, tree

process_lib = lazy.module("tff_reg.training.process")

NO_MODEL = "local has no model that clients share, but one for each client."


class Local:
    """Federated averaging over cohorts of one, whose model is the client's state.

    A client starts a round with the model after its last one; the server's model stays
    the initial one.
    """

    is_local = True

    def __init__(self, process: Any):
        """Wraps FedAvg whose server takes the clients' mean as its next model."""
        self._process = process
        self.initialize, self.model_fn = process.initialize, process.model_fn
        self.description = process.description
        self.get_model_weights = self.initial_client_state = process.get_model_weights
        self.get_hparams, self.built_from = process.get_hparams, process.built_from

    def next(
        self, state: Any, client_data: Sequence[Any], client_states: Sequence[Any]
    ) -> Any:
        """Trains a cohort, one client at a time."""
        outputs = [
            self._process.next(state._replace(global_model_weights=own), [examples])
            for own, examples in zip(client_states, client_data)
        ]
        states = [self._process.get_model_weights(each.state) for each in outputs]
        metrics = [each.metrics for each in outputs]
        counts = [each["client_work"]["train"]["num_examples"] for each in metrics]

        def together(*values: Any) -> Any:
            if np.asarray(values).dtype.kind in "biu":
                return sum(values)  # Counts.
            weights = counts if sum(counts) else None
            return np.average(values, weights=weights).astype(np.float32)

        first = state.global_model_weights
        return process_lib.StatefulLearningProcessOutput(
            outputs[-1].state._replace(global_model_weights=first),
            states,
            tree.map_structure(together, *metrics),
        )
