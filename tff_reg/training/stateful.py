"""Processes whose clients or server remember more than the model.

TFF's `LearningProcess` has no place for what clients remember: its `next` takes their
data and returns values at the server only. Here the clients of a round bring their
states and take new ones home; between rounds their driver keeps them, as
`tff_reg.experiment.train` does, or a store of the user's own.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import all_clients
from tff_reg.training import client_work as client_work_lib


class StatefulLearningProcessOutput(NamedTuple):
    """What `StatefulLearningProcess.next` gives.

    Attributes:
      state: The new state, at the server.
      client_states: The clients' new states, in the order of their data.
      metrics: As of a `tff.learning.templates.LearningProcess`.
    """

    state: Any
    client_states: Any
    metrics: Any


class StatefulLearningProcess(tff.templates.IterativeProcess):
    """A learning process with client state.

    As a `tff.learning.templates.LearningProcess`, except that
    `next(state, client_data, client_states)` takes a list of states beside the list of
    data sets and returns a `StatefulLearningProcessOutput`. The state of a client that
    never took part is `initial_client_state(state)`, of the state that training began
    with.

    Attributes:
      initial_client_state: From the state that training begins with to that of a
        client.
      get_model_weights: From a state to its `tff.learning.models.ModelWeights`.
      set_model_weights: From a state and weights to the state with them. After the
        first round what is remembered stays as it is: a fresh start is
        `set_model_weights(initialize(), weights)`, with new client states.
      get_hparams: From a state to its hyper-parameters.
      set_hparams: From a state and hyper-parameters to the state with them.
      get_all_clients_weights: From a state to the mean of all clients' last models, a
        `ModelWeights`: clients that never took part count with the initial weights, and
        the server model's other variables are beside them. None where the server does
        not keep it.
    """

    # Makes the model whose weights these are, where `tff_reg.training` knows it.
    model_fn: Optional[Callable[[], Any]] = None

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
        """Keeps the computations; unplaced but for the first two.

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


def compose_stateful_process(
    initial_model_weights_fn: tff.Computation,
    model_distributor: tff.learning.templates.DistributionProcess,
    client_work: client_work_lib.StatefulClientWork,
    model_aggregator: tff.templates.AggregationProcess,
    model_finalizer: tff.learning.templates.FinalizerProcess,
    upload_aggregator: tff.templates.AggregationProcess,
    memory_update: tff.Computation,
    broadcast: Optional[tff.Computation],
    *,
    clients_remember: bool,
) -> Union[StatefulLearningProcess, tff.learning.templates.LearningProcess]:
    """`tff.learning.templates.compose_learning_process`, with memory.

    Args:
      initial_model_weights_fn: () -> `ModelWeights`, unplaced.
      model_distributor: From the model to what clients receive.
      client_work: What clients do.
      model_aggregator: From their updates to one.
      model_finalizer: Applies it to the model.
      upload_aggregator: Adds up what clients upload besides, see
        `tff_reg.training.aggregators`.
      memory_update: Updates the server's memory, see `tff_reg.training.memory`.
      broadcast: Makes what is sent of the memory and the model; None for the model.
      clients_remember: Whether clients remember something.

    Returns:
      A `StatefulLearningProcess` if clients remember something, else a
      `tff.learning.templates.LearningProcess`. Its state is a
      `tff.learning.templates.LearningAlgorithmState` whose finalizer part holds the
      finalizer's state as `optimizer`, the server's memory as `memory` and the state of
      the uploads' aggregation as `uploads`.
    """
    make_state = tff.learning.templates.LearningAlgorithmState
    data_type, client_type = client_work.next.type_signature.parameter[2:4]

    @tff.federated_computation
    def init_fn():
        weights = tff.federated_eval(initial_model_weights_fn, tff.SERVER)
        memory = tff.federated_map(client_work.initial_server_memory, weights)
        finalizer: dict[str, Any] = collections.OrderedDict(
            optimizer=model_finalizer.initialize(),
            memory=memory,
            uploads=upload_aggregator.initialize(),
        )
        return tff.federated_zip(
            make_state(
                weights,
                model_distributor.initialize(),
                client_work.initialize(),
                model_aggregator.initialize(),
                tff.federated_zip(finalizer),
            )
        )

    def run_round(state: Any, client_data: Any, client_memories: Any):
        weights = state.global_model_weights
        optimizer_state, memory, uploads_state = state.finalizer
        leaving = weights
        if broadcast is not None:
            leaving = tff.federated_map(broadcast, (memory, weights))
        sent = model_distributor.next(state.distributor, leaving)
        work = client_work.next(
            state.client_work, sent.result, client_data, client_memories, memory
        )
        aggregate = model_aggregator.next(
            state.aggregator, work.result.update, work.result.update_weight
        )
        finalized = model_finalizer.next(optimizer_state, weights, aggregate.result)
        summed = upload_aggregator.next(uploads_state, work.uploads, work.has_trained)
        uploads, count = summed.result
        new_memory, new_weights, broken = tff.federated_map(
            memory_update,
            (memory, weights, finalized.result, aggregate.result, uploads, count),
        )
        new_finalizer: dict[str, Any] = collections.OrderedDict(
            optimizer=finalized.state, memory=new_memory, uploads=summed.state
        )
        new_state = tff.federated_zip(
            make_state(
                new_weights,
                sent.state,
                work.state,
                aggregate.state,
                tff.federated_zip(new_finalizer),
            )
        )
        metrics = tff.federated_zip(
            collections.OrderedDict(
                distributor=sent.measurements,
                client_work=work.measurements,
                aggregator=aggregate.measurements,
                finalizer=finalized.measurements,
                uploads=summed.measurements,
                memory=broken,
            )
        )
        return new_state, work.client_memories, metrics

    state_type = init_fn.type_signature.result.member

    def changed(state: Any, **parts: Any):
        fields = ("global_model_weights", "distributor", "client_work", "aggregator")
        return make_state(
            **{
                name: parts.get(name, getattr(state, name))
                for name in (*fields, "finalizer")
            }
        )

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state: Any):
        return state.global_model_weights

    @tff.tensorflow.computation(state_type, state_type.global_model_weights)
    def set_model_weights(state: Any, weights: Any):
        # Before the first round the server remembers the model that training begins
        # with, of which what clients remember is made.
        is_first = tf.equal(state.client_work["round_num"], 0)

        def one(first: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
            return tf.where(is_first, first, old)

        memory = tf.nest.map_structure(
            one,
            collections.OrderedDict(client_work.initial_server_memory(weights)),
            collections.OrderedDict(state.finalizer["memory"]),
        )
        finalizer: dict[str, Any] = collections.OrderedDict(
            state.finalizer, memory=memory
        )
        return changed(state, global_model_weights=weights, finalizer=finalizer)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            client_work=client_work.get_hparams(state.client_work),
            finalizer=model_finalizer.get_hparams(state.finalizer["optimizer"]),
        )

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state: Any, hparams: Any):
        return changed(
            state,
            client_work=client_work.set_hparams(
                state.client_work, hparams["client_work"]
            ),
            finalizer=collections.OrderedDict(
                state.finalizer,
                optimizer=model_finalizer.set_hparams(
                    state.finalizer["optimizer"], hparams["finalizer"]
                ),
            ),
        )

    if not clients_remember:

        @tff.federated_computation(init_fn.type_signature.result, data_type)
        def next_fn(state: Any, client_data: Any):
            nothing = tff.federated_value(collections.OrderedDict(), tff.CLIENTS)
            new_state, _, metrics = run_round(state, client_data, nothing)
            return tff.learning.templates.LearningProcessOutput(new_state, metrics)

        return tff.learning.templates.LearningProcess(
            init_fn,
            next_fn,
            get_model_weights,
            set_model_weights,
            get_hparams_fn=get_hparams,
            set_hparams_fn=set_hparams,
        )

    @tff.federated_computation(init_fn.type_signature.result, data_type, client_type)
    def stateful_next_fn(state: Any, client_data: Any, client_states: Any):
        return StatefulLearningProcessOutput(
            *run_round(state, client_data, client_states)
        )

    @tff.tensorflow.computation(state_type)
    def initial_client_state(state: Any):
        return client_work.initial_client_memory(state.global_model_weights)

    get_all_clients_weights = None
    memory_type = state_type.finalizer["memory"]
    if all_clients.MEAN in tff.structure.name_list(memory_type):

        @tff.tensorflow.computation(state_type)
        def get_all_clients_weights(state: Any):
            return tff.learning.models.ModelWeights(
                state.finalizer["memory"][all_clients.MEAN],
                state.global_model_weights.non_trainable,
            )

    return StatefulLearningProcess(
        init_fn,
        stateful_next_fn,
        initial_client_state=initial_client_state,
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
        get_hparams=get_hparams,
        set_hparams=set_hparams,
        get_all_clients_weights=get_all_clients_weights,
    )
