"""TFF's client work around a client's round, with or without memory.

The state is the client optimiser's hyperparameters and the round number. The metrics of
a round are the model's own; for each term `<method>/term` (without its hyperparameter)
and `<method>/share` (of the whole loss); the methods' other measurements; and
`rejected_clients`, the number of clients with a non-finite update, memory, upload or
term. Rejected clients have weight 0; only `<method>/not_finite` counts them as well.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    client_update as client_update_lib,
    description as description_lib,
    local_round,
    local_training,
    memory as memory_lib,
    optimizers,
    schedules,
)


class ClientWork(NamedTuple):
    """Client work as `tff.learning.templates.ClientWorkProcess`, with memories.

    Attributes:
      initialize: () -> the state, at the server.
      next: (state at the server, received weights, data and client memories at the
        clients, sent memories of the server at the clients) -> `ClientWorkOutput`.
        Structures of memories are empty if the methods have none.
      get_hparams: State -> the client optimiser's hyperparameters.
      set_hparams: (state, hyperparameters) -> state.
    """

    initialize: tff.Computation
    next: tff.Computation
    get_hparams: tff.Computation
    set_hparams: tff.Computation


class ClientWorkOutput(NamedTuple):
    """The result of `ClientWork.next`.

    Attributes:
      state: The new state, at the server.
      result: `tff.learning.templates.ClientResult`s at the clients.
      client_memories: The clients' new memories, at the clients.
      uploads: The methods' uploads by name, at the clients.
      has_trained: Whether each client trained: 1 or 0, int32, at the clients.
      share: What the hook `weigh` needs, by name, at the clients.
      measurements: The round's metrics, at the server.
    """

    state: Any
    result: Any
    client_memories: Any
    uploads: Any
    has_trained: Any
    share: Any
    measurements: Any


def build_client_work(
    description: description_lib.Description,
    memories: memory_lib.Memories,
    client_weighting: tff.learning.ClientWeighting,
    metrics_aggregator: Optional[Callable[..., Any]],
) -> ClientWork:
    """Builds the client work."""
    initialize, next_state, get_hparams, set_hparams = _build_state(description)
    aggregate_metrics = (metrics_aggregator or tff.learning.metrics.sum_then_finalize)(
        description.metric_finalizers
    )
    client_update = _build_update(
        description,
        memories,
        client_weighting,
        get_hparams.type_signature.parameter,
    )
    on_clients = [
        tff.FederatedType(each, tff.CLIENTS)
        for each in client_update.type_signature.parameter[1:]
    ]

    @tff.federated_computation(initialize.type_signature.result, *on_clients)
    def next_fn(state: Any, received: Any, data: Any, client: Any, server: Any):
        output = tff.federated_map(
            client_update,
            (tff.federated_broadcast(state), received, data, client, server),
        )
        metrics: dict[str, Any] = collections.OrderedDict(
            train=aggregate_metrics(output.metrics)
        )
        return ClientWorkOutput(
            state=tff.federated_map(next_state, state),
            result=output.result,
            client_memories=output.client,
            uploads=output.uploads,
            has_trained=output.has_trained,
            share=output.share,
            measurements=tff.federated_zip(metrics),
        )

    return ClientWork(initialize, next_fn, get_hparams, set_hparams)


def _build_state(description: description_lib.Description) -> tuple[Any, ...]:
    """Builds the state's initialize, next_state, get_hparams and set_hparams."""
    training, dtype = description.training, description.hparams_dtype
    optimizer = training.optimizer
    hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], dtype)))
    _check_optimizer(training, hparams)

    @tff.tensorflow.computation
    def initial_state() -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            hparams=collections.OrderedDict(
                (k, tf.constant(v, dtype)) for k, v in hparams.items()
            ),
            round_num=tf.constant(0),
        )

    state_type = initial_state.type_signature.result

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.tensorflow.computation(state_type)
    def next_state(state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(state, round_num=state["round_num"] + 1)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: Any):
        return state["hparams"]

    @tff.tensorflow.computation(state_type, state_type["hparams"])
    def set_hparams(state: Any, hparams: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(state, hparams=optimizers.check(hparams))

    return initialize, next_state, get_hparams, set_hparams


def _check_optimizer(training: local_training.LocalTraining, hparams: Any) -> None:
    optimizers.check(hparams)
    for method in training.methods:
        if method.if_adaptive and "epsilon" in hparams:
            said = f"{method.name} {method.if_adaptive}."
            warnings.warn(f"With an adaptive client optimiser {said}", stacklevel=2)
    if "learning_rate" in hparams:
        return
    if training.learning_rate_schedule != schedules.constant():
        raise ValueError(
            "A learning-rate schedule needs a client optimiser with a learning_rate"
            f" among its hparams, but it has only {list(hparams)}."
        )


def _build_update(
    description: description_lib.Description,
    memories: memory_lib.Memories,
    weighting: tff.learning.ClientWeighting,
    state_type: tff.types.Type,
) -> tff.Computation:
    """Builds (state, received, data, client and sent memories) -> `ClientOutput`."""
    training = description.training
    element_spec = training.data_form.element_spec(description.input_spec)
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(element_spec))
    own = (description.model_fn, training, weighting, description.needs)

    @tff.tensorflow.computation(
        state_type,
        description.received_type,
        data_type,
        memories.client_type,
        memories.sent_type,
    )
    def client_update(state: Any, received: Any, data: Any, client: Any, server: Any):
        if not training.averaged_rounds:
            received = {local_round.MODEL: received}
        if training.debug_eager:
            update = client_update_lib.build_eager_client_update(
                *own, description.output_spec, description.kept
            )
        else:
            update = client_update_lib.build_client_update(*own)
        with tensorflow_internals.elementwise_equality(also_in_plain_graphs=True):
            schedule = training.learning_rate_schedule
            hparams: dict[str, Any] = state["hparams"]
            rate_factor = schedule(state["round_num"])
            highest = schedule.highest(state["round_num"])
            if highest is not None:
                rate_factor, rate = rate_factor / highest, hparams["learning_rate"]
                rate *= tf.cast(highest, rate.dtype)
                hparams = collections.OrderedDict(hparams, learning_rate=rate)
        try:
            return update(
                hparams,
                state["round_num"] + 1,
                rate_factor,
                received,
                data,
                client,
                server,
            )
        except Exception as error:
            raise _plain(error) from error

    return client_update


def _plain(error: Exception) -> Exception:
    """Returns the error without the text that AutoGraph adds."""
    cause: Any = error
    while cause is not None:
        if isinstance(cause, contract.HookError):
            return cause
        cause = cause.__cause__ or cause.__context__
    # The last paragraph of AutoGraph's text is the original error.
    *before, last = str(error).split("\n\n")
    if not before or not before[0].startswith("in user code:"):
        return error
    kind = type(error) if isinstance(error, (TypeError, ValueError)) else ValueError
    return kind(last.strip().partition(": ")[2])
