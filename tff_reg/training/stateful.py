"""Learning processes with client state, and the composition of every process.

TFF's `LearningProcess` has no client state: its `next` takes client data and returns
values at the server only. Here `next` takes the states of a round's clients and returns
new ones; between rounds the caller keeps them, as `tff_reg.experiment.train` does.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import all_clients
from tff_reg.training import (
    client_work as client_work_lib,
    memory as memory_lib,
    server as server_lib,
    weighing,
)


class StatefulLearningProcessOutput(NamedTuple):
    """The result of `StatefulLearningProcess.next`.

    Attributes:
      state: The new state, at the server.
      client_states: The clients' new states, in the order of their data.
      metrics: As in a `tff.learning.templates.LearningProcess`.
    """

    state: Any
    client_states: Any
    metrics: Any


class StatefulLearningProcess(tff.templates.IterativeProcess):
    """A learning process with client state.

    It is like a `tff.learning.templates.LearningProcess`, except that
    `next(state, client_data, client_states)` takes a list of states beside the list of
    data sets and returns a `StatefulLearningProcessOutput`. The state of a client that
    never took part is `initial_client_state(initialize())`.

    Attributes:
      initial_client_state: Initial state -> the state of a client.
      get_model_weights: State -> its `tff.learning.models.ModelWeights`.
      set_model_weights: (state, weights) -> the state with these weights. After the
        first round this keeps the memories; for a fresh start, call
        `set_model_weights(initialize(), weights)` and make new client states.
      get_hparams: State -> its hyperparameters.
      set_hparams: (state, hyperparameters) -> the state with these hyperparameters.
      get_all_clients_weights: State -> the mean of every client's latest model, a
        `ModelWeights`. Clients that never took part count with the initial weights;
        non-trainable variables are the server's. None if the server does not keep the
        mean.
    """

    # Makes the model that the weights fit, if `tff_reg.training` built the process.
    model_fn: Optional[Callable[[], Any]] = None
    # What it built the process from, as texts by name.
    built_from: Any = None

    def __init__(
        self,
        initialize_fn: tff.Computation,
        next_fn: tff.Computation,
        *,
        initial_client_state: tff.Computation,
        get_model_weights: tff.Computation,
        set_model_weights: tff.Computation,
        get_hparams: tff.Computation,
        set_hparams: tff.Computation,
        get_all_clients_weights: Optional[tff.Computation] = None,
    ):
        """Stores the computations; only the first two have placements.

        Args:
          initialize_fn: () -> S at the server.
          next_fn: (S at the server, data at the clients, C at the clients) ->
            `StatefulLearningProcessOutput`.
          initial_client_state: S -> C.
          get_model_weights: S -> weights.
          set_model_weights: (S, weights) -> S.
          get_hparams: S -> hparams.
          set_hparams: (S, hparams) -> S.
          get_all_clients_weights: S -> weights, or None.
        """
        # TFF's class is Any to the checker.
        super().__init__(initialize_fn, next_fn)  # pyright: ignore[reportUnknownMemberType]
        self.initial_client_state = initial_client_state
        self.get_model_weights = get_model_weights
        self.set_model_weights = set_model_weights
        self.get_hparams = get_hparams
        self.set_hparams = set_hparams
        self.get_all_clients_weights = get_all_clients_weights


class Parts(NamedTuple):
    """The parts of a process.

    Attributes:
      initial_weights: () -> `ModelWeights`, unplaced.
      distributor: The model's weights -> the weights that clients receive.
      client_work: The clients' half.
      aggregator: The clients' updates -> one update.
      server: The server's half.
      memories: The methods' memories.
      weigh: See `weighing.build`.
    """

    initial_weights: tff.Computation
    distributor: tff.learning.templates.DistributionProcess
    client_work: client_work_lib.ClientWork
    aggregator: tff.templates.AggregationProcess
    server: server_lib.Server
    memories: memory_lib.Memories
    weigh: Optional[weighing.Weigh]


def compose_process(
    parts: Parts, clients_remember: bool
) -> Union[StatefulLearningProcess, tff.learning.templates.LearningProcess]:
    """Composes a process as TFF's `compose_learning_process` does, with memories."""

    @tff.federated_computation
    def init_fn():
        weights = tff.federated_eval(parts.initial_weights, tff.SERVER)
        return tff.federated_zip(
            tff.learning.templates.LearningAlgorithmState(
                weights,
                parts.distributor.initialize(),
                parts.client_work.initialize(),
                parts.aggregator.initialize(),
                parts.server.initialize(weights),
            )
        )

    placed_type = init_fn.type_signature.result
    data_type, client_type = parts.client_work.next.type_signature.parameter[2:4]
    of_state = _of_state(parts, placed_type.member)
    if not clients_remember:

        @tff.federated_computation(placed_type, data_type)
        def next_fn(state: Any, client_data: Any):
            nothing = tff.federated_value(collections.OrderedDict(), tff.CLIENTS)
            new_state, _, metrics = _run_round(parts, state, client_data, nothing)
            return tff.learning.templates.LearningProcessOutput(new_state, metrics)

        for name in ("get_hparams", "set_hparams"):
            of_state[f"{name}_fn"] = of_state.pop(name)
        return tff.learning.templates.LearningProcess(init_fn, next_fn, **of_state)

    @tff.federated_computation(placed_type, data_type, client_type)
    def stateful_next_fn(state: Any, client_data: Any, client_states: Any):
        return StatefulLearningProcessOutput(
            *_run_round(parts, state, client_data, client_states)
        )

    of_memory = _of_memory(parts, placed_type.member)
    return StatefulLearningProcess(init_fn, stateful_next_fn, **of_state, **of_memory)


def _run_round(parts: Parts, state: Any, client_data: Any, client_memories: Any):
    """Runs a round; returns the new state, the clients' new memories, and metrics."""
    weights = state.global_model_weights
    leaving, memories = parts.server.leaving(state.finalizer, weights)
    sent = parts.distributor.next(state.distributor, leaving)
    work = parts.client_work.next(
        state.client_work, sent.result, client_data, client_memories, memories
    )
    update_weight = work.result.update_weight
    of_weights: dict[str, Any] = {}
    if parts.weigh is not None:
        update_weight, of_weights["weights"] = parts.weigh(work.share, work.has_trained)
    aggregate = parts.aggregator.next(
        state.aggregator, work.result.update, update_weight
    )
    finalizer, new_weights, of_server = parts.server.next(
        state.finalizer, weights, aggregate.result, work
    )
    new_state = tff.learning.templates.LearningAlgorithmState(
        new_weights, sent.state, work.state, aggregate.state, finalizer
    )
    metrics: dict[str, Any] = collections.OrderedDict(
        distributor=sent.measurements,
        client_work=work.measurements,
        aggregator=aggregate.measurements,
        **of_weights,
        **of_server,
    )
    return (
        tff.federated_zip(new_state),
        work.client_memories,
        tff.federated_zip(metrics),
    )


def _of_state(parts: Parts, state_type: Any) -> dict[str, tff.Computation]:
    """Builds the state's computations that every process has, by name."""

    def changed(state: Any, **fields: Any):
        kind = tff.learning.templates.LearningAlgorithmState
        names = ("global_model_weights", "distributor", "client_work", "aggregator")
        old = {name: getattr(state, name) for name in (*names, "finalizer")}
        return kind(**{**old, **fields})

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state: Any):
        return state.global_model_weights

    @tff.tensorflow.computation(state_type, state_type.global_model_weights)
    def set_model_weights(state: Any, weights: Any):
        is_first = tf.equal(state.client_work["round_num"], 0)
        finalizer = parts.server.set_weights(state.finalizer, weights, is_first)
        return changed(state, global_model_weights=weights, finalizer=finalizer)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            client_work=parts.client_work.get_hparams(state.client_work),
            finalizer=parts.server.get_hparams(state.finalizer),
        )

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state: Any, hparams: Any):
        return changed(
            state,
            client_work=parts.client_work.set_hparams(
                state.client_work, hparams["client_work"]
            ),
            finalizer=parts.server.set_hparams(state.finalizer, hparams["finalizer"]),
        )

    return dict(
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
        get_hparams=get_hparams,
        set_hparams=set_hparams,
    )


def _of_memory(parts: Parts, state_type: Any) -> dict[str, Optional[tff.Computation]]:
    """Builds the state's computations that only a stateful process has, by name."""

    @tff.tensorflow.computation(state_type)
    def initial_client_state(state: Any):
        return parts.memories.initial_client(state.global_model_weights)

    get_all_clients_weights = None
    if all_clients.MEAN in tff.structure.name_list(parts.memories.server_type):

        @tff.tensorflow.computation(state_type)
        def get_all_clients_weights(state: Any):
            return tff.learning.models.ModelWeights(
                state.finalizer["memory"][all_clients.MEAN],
                state.global_model_weights.non_trainable,
            )

    return dict(
        initial_client_state=initial_client_state,
        get_all_clients_weights=get_all_clients_weights,
    )
