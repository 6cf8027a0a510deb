"""Learning processes with client state, and the composition of every process.

TFF's `LearningProcess` has no client state: its `next` takes client data and returns
values at the server only. Here `next` takes the states of a round's clients and returns
new ones; between rounds the caller keeps them, as `tff_reg.experiment.train` does.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import all_clients, memories, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    aggregation,
    client_work as client_work_lib,
    description as description_lib,
    optimizers,
    personal as personal_lib,
    server as server_lib,
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
      get_client_weights: (State, client's state) -> the `ModelWeights` that the client
        is evaluated with. None if that is the server's model.
      shares_model: Whether clients share all weights of their models.
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
        get_client_weights: Optional[tff.Computation] = None,
        shares_model: bool = True,
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
          get_client_weights: (S, C) -> weights, or None.
          shares_model: Whether clients share all weights of their models.
        """
        # TFF's class is Any to the checker.
        super().__init__(initialize_fn, next_fn)  # pyright: ignore[reportUnknownMemberType]
        self.initial_client_state = initial_client_state
        self.get_model_weights = get_model_weights
        self.set_model_weights = set_model_weights
        self.get_hparams = get_hparams
        self.set_hparams = set_hparams
        self.get_all_clients_weights = get_all_clients_weights
        self.get_client_weights = get_client_weights
        self.shares_model = shares_model


def compose(
    description: description_lib.Description,
    server: server_lib.Server,
    client_weighting: tff.learning.ClientWeighting,
    distributor: tff.learning.templates.DistributionProcess,
    aggregator: tff.templates.AggregationProcess,
    build_sums: Callable[[tff.types.Type], tff.templates.AggregationProcess],
    build_weigh: Callable[[tff.types.Type], Optional[aggregation.Weigh]],
    aggregate_metrics: Callable[[Any], Any],
) -> Union[StatefulLearningProcess, tff.learning.templates.LearningProcess]:
    """Composes a process as TFF's `compose_learning_process` does, with memories.

    Its state is TFF's `LearningAlgorithmState`: `finalizer` is the `Server`'s, and
    `client_work` `client_work.first_state`. If methods upload, `aggregator` has the
    states of both aggregations, `updates` and `uploads`.

    Args:
      description: The model and the clients' half.
      server: The server's half.
      client_weighting: The clients' weights in the average of their updates.
      distributor: Sends the model's weights.
      aggregator: Averages the clients' updates.
      build_sums: Builds the summation of uploads of a type.
      build_weigh: Builds `aggregation.Weigh` for shares of a type.
      aggregate_metrics: Aggregates the clients' metrics.
    """
    comp = tff.tensorflow.computation
    methods, weights_type = description.training.methods, description.weights_type
    personal = description.personal
    first_own = comp(server.first, weights_type)
    own_type = first_own.type_signature.result
    first_work = comp(functools.partial(client_work_lib.first_state, description))
    work_type = first_work.type_signature.result

    @tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
    def first_memory(weights: Any) -> Any:
        found = memories.first(methods, "client_memory", weights.trainable)
        if personal:
            found[personal_lib.KEY] = personal.of(weights)
        return found

    client_type = comp(first_memory, weights_type).type_signature.result
    send = comp(server.send, own_type, weights_type)
    visit = client_work_lib.build_client_work(
        description,
        client_weighting,
        work_type,
        client_type,
        send.type_signature.result[1],
    )
    output_type = visit.type_signature.result
    if personal:
        personal_lib.check_uploads(methods, output_type.uploads, weights_type)
    weigh, sums = build_weigh(output_type.share), None
    summed_type: Any = ()
    if server.counts:
        sums = build_sums(output_type.uploads)
        summed_type = sums.next.type_signature.result.result.member
    update_type = description.update_type
    step = comp(server.step, own_type, weights_type, update_type, summed_type)

    @comp(work_type)
    def next_work(state: Any):
        following = state["round_num"] + 1
        return collections.OrderedDict[str, Any](state, round_num=following)

    @tff.federated_computation
    def initialize():
        weights = tff.federated_eval(description.initial_weights, tff.SERVER)
        aggregation = aggregator.initialize()
        if sums:
            both = dict(updates=aggregation, uploads=sums.initialize())
            aggregation = tff.federated_zip(collections.OrderedDict(both))
        return tff.federated_zip(
            tff.learning.templates.LearningAlgorithmState(
                weights,
                distributor.initialize(),
                tff.federated_eval(first_work, tff.SERVER),
                aggregation,
                tff.federated_map(first_own, weights),
            )
        )

    def run_round(state: Any, data: Any, client_memories: Any) -> tuple[Any, Any, Any]:
        own = state.finalizer, state.global_model_weights
        leaving, sent = tff.federated_map(send, own)
        got = distributor.next(state.distributor, leaving)
        work = tff.federated_broadcast(state.client_work)
        sent = tff.federated_broadcast(sent)
        out = tff.federated_map(visit, (work, got.result, data, client_memories, sent))
        trained = dict(train=aggregate_metrics(out.metrics))
        metrics: dict[str, Any] = collections.OrderedDict(
            distributor=got.measurements,
            client_work=tff.federated_zip(collections.OrderedDict(trained)),
        )
        weight, extra = out.result.update_weight, dict[str, Any]()
        if weigh:
            weight, extra["weights"] = weigh(out.share, out.has_trained)
        of_updates = state.aggregator["updates"] if sums else state.aggregator
        mean = aggregator.next(of_updates, out.result.update, weight)
        metrics["aggregator"], aggregation = mean.measurements, mean.state
        summed = tff.federated_value((), tff.SERVER)
        if sums:
            total = sums.next(state.aggregator["uploads"], out.uploads, out.has_trained)
            both = dict(updates=aggregation, uploads=total.state)
            aggregation = tff.federated_zip(collections.OrderedDict(both))
            extra["uploads"], summed = total.measurements, total.result
        finalizer, weights, of_server = tff.federated_map(
            step, (*own, mean.result, summed)
        )
        for name in ("weights", "finalizer", "uploads", "server"):
            if name in extra:
                metrics[name] = extra[name]
            elif name in tff.structure.name_list(step.type_signature.result[2]):
                metrics[name] = of_server[name]
        new_state = tff.learning.templates.LearningAlgorithmState(
            weights,
            got.state,
            tff.federated_map(next_work, state.client_work),
            aggregation,
            finalizer,
        )
        return tff.federated_zip(new_state), out.client, tff.federated_zip(metrics)

    state_type = initialize.type_signature.result
    data_type = tff.FederatedType(visit.type_signature.parameter[2], tff.CLIENTS)
    of_state = _of_state(server, state_type.member)
    if not any(map(method_lib.keeps_at_clients, methods)):

        @tff.federated_computation(state_type, data_type)
        def next_fn(state: Any, client_data: Any):
            nothing = tff.federated_value(collections.OrderedDict(), tff.CLIENTS)
            new_state, _, metrics = run_round(state, client_data, nothing)
            return tff.learning.templates.LearningProcessOutput(new_state, metrics)

        for name in ("get_hparams", "set_hparams"):
            of_state[f"{name}_fn"] = of_state.pop(name)
        return tff.learning.templates.LearningProcess(initialize, next_fn, **of_state)

    @tff.federated_computation(
        state_type, data_type, tff.FederatedType(client_type, tff.CLIENTS)
    )
    def stateful_next_fn(state: Any, client_data: Any, client_states: Any):
        return StatefulLearningProcessOutput(
            *run_round(state, client_data, client_states)
        )

    @comp(state_type.member)
    def initial_client_state(state: Any):
        return first_memory(state.global_model_weights)

    return StatefulLearningProcess(
        initialize,
        stateful_next_fn,
        initial_client_state=initial_client_state,
        get_all_clients_weights=_all_clients_weights(state_type.member),
        get_client_weights=personal_lib.build_client_weights(
            personal, methods, state_type.member, client_type
        ),
        shares_model=personal is None,
        **of_state,
    )


def _of_state(server: server_lib.Server, state_type: Any) -> dict[str, tff.Computation]:
    """Builds the state's computations that every process has, by name."""

    def changed(state: Any, **fields: Any):
        kind = tff.learning.templates.LearningAlgorithmState
        old = {name: getattr(state, name) for name in kind._fields}
        return kind(**{**old, **fields})

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state: Any):
        return state.global_model_weights

    @tff.tensorflow.computation(state_type, state_type.global_model_weights)
    def set_model_weights(state: Any, weights: Any):
        is_first = tf.equal(state.client_work["round_num"], 0)
        finalizer = server.set_weights(state.finalizer, weights, is_first)
        return changed(state, global_model_weights=weights, finalizer=finalizer)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            client_work=state.client_work["hparams"],
            finalizer=server.get_hparams(state.finalizer),
        )

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state: Any, hparams: Any):
        work = dict(hparams=optimizers.check(hparams["client_work"]))
        return changed(
            state,
            client_work=collections.OrderedDict(state.client_work, **work),
            finalizer=server.set_hparams(state.finalizer, hparams["finalizer"]),
        )

    return dict(
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
        get_hparams=get_hparams,
        set_hparams=set_hparams,
    )


def _all_clients_weights(state_type: Any) -> Optional[tff.Computation]:
    """Builds `get_all_clients_weights`; None if the server does not keep the mean."""
    if all_clients.MEAN not in tff.structure.name_list(state_type.finalizer["memory"]):
        return None

    @tff.tensorflow.computation(state_type)
    def get_all_clients_weights(state: Any):
        return tff.learning.models.ModelWeights(
            state.finalizer["memory"][all_clients.MEAN],
            state.global_model_weights.non_trainable,
        )

    return get_all_clients_weights
