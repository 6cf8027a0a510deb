"""TFF's client work around a client's round: without memory, and with it.

Its state is the client optimiser's hparams and the round number. The metrics of a round
are the model's own, for each term `method/term` (before its strength) and
`method/share` (of the whole loss), for all methods what else they measure, and
`rejected_clients`: a client whose update is not finite counts there, and nowhere else
(its weight is 0).
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.models import learning_model
from tff_reg.training import (
    client_states,
    client_update as client_update_lib,
    debugging,
    local_round,
    local_training,
    needs as needs_lib,
    numbers,
    optimizers,
    schedules,
    trial,
)


def update_type(model_weights_type: Any) -> tff.types.Type:
    """The type of a client's update.

    Args:
      model_weights_type: The TFF type of the model's `ModelWeights`.

    Returns:
      The trainable weights' type, as in TFF's own processes, if the model has no
      other floats; else that of a `ModelWeights` with all floats, since statistics such
      as BatchNorm's are averaged too.
    """
    statistics = numbers.floats(tff.structure.flatten(model_weights_type.non_trainable))
    if not statistics:
        return model_weights_type.trainable
    return tff.types.to_type(
        tff.learning.models.ModelWeights(model_weights_type.trainable, statistics)
    )


def received_type(
    weights_type: Any, training: local_training.LocalTraining
) -> tff.types.Type:
    """The type of what the server sends to a client.

    Args:
      weights_type: The TFF type of the model's `ModelWeights`.
      training: The client's half of the process.

    Returns:
      `weights_type` itself, or a structure of it as `model` and of the trainable
      weights of the average of the last global models as `averaged`.
    """
    if not training.averaged_rounds:
        return weights_type
    return tff.types.to_type(
        collections.OrderedDict(
            [
                (local_round.MODEL, weights_type),
                (method_lib.AVERAGED, weights_type.trainable),
            ]
        )
    )


class Description(NamedTuple):
    """What is known of a model without training it.

    Attributes:
      initial_weights: Without argument; gives the `ModelWeights`.
      input_spec: The model's.
      metric_finalizers: By name, those of what the methods measure among them.
      hparams_dtype: Data type of the client optimiser's hparams.
      has_statistics: Whether training may change weights that it does not train.
      needs: What the methods' hooks need.
      output_spec: The `tf.TensorSpec`s of a client's output; None without
        `debug_eager`.
      kept: Python functions that graphs call in `debug_eager`.
    """

    initial_weights: tff.Computation
    input_spec: Any
    metric_finalizers: dict[str, Callable[..., Any]]
    hparams_dtype: tf.DType
    has_statistics: bool
    needs: needs_lib.Needs
    output_spec: Any
    kept: list[Any]


def describe(
    model_fn: Callable[[], Any], training: local_training.LocalTraining
) -> Description:
    """Makes a model and looks at it.

    Args:
      model_fn: Makes the model, as `adaptation.adapt_model_fn` leaves it.
      training: What a client does.

    Returns:
      The description.

    Raises:
      HookError: If a hook of a method fails or returns what it must not.
      TypeError: If a method needs the network and the model shows none.
      ValueError: If the model's layers cannot do what a method asks.
    """
    needs = trial.find_needs(model_fn, training)
    found: dict[str, Any] = {"needs": needs, "kept": [], "output_spec": None}
    if training.debug_eager:
        found["output_spec"] = debugging.output_spec(model_fn, training, needs)

    @tff.tensorflow.computation
    def initial_weights() -> tff.learning.models.ModelWeights:
        model = model_fn()
        weighting = tff.learning.ClientWeighting.UNIFORM
        own = local_round.LocalRound(lambda: model, training, weighting, needs)
        finalizers = collections.OrderedDict(model.metric_finalizers())
        for name in own.measurement_names:
            finalizers[name] = learning_model.finalize_ratio
        for name in own.blamed:
            finalizers[f"{name}/{local_round.NOT_FINITE}"] = (
                learning_model.finalize_identity
            )
        finalizers[local_round.REJECTED] = learning_model.finalize_identity
        # Of a model that does not show its network all may change.
        shows = method_lib.has_network(model)
        constants = len(model.network.constants) if shows else 0
        is_double = any(v.dtype == tf.float64 for v in model.trainable_variables)
        found.update(
            input_spec=model.input_spec,
            metric_finalizers=finalizers,
            hparams_dtype=tf.float64 if is_double else tf.float32,
            has_statistics=(
                len(numbers.floats(model.non_trainable_variables)) > constants
            ),
        )
        return tff.learning.models.ModelWeights.from_model(model)

    return Description(initial_weights, **found)


class _Parts(NamedTuple):
    """What both kinds of client work are made of."""

    initialize: tff.Computation
    next_state: tff.Computation
    get_hparams: tff.Computation
    set_hparams: tff.Computation
    weights_type: tff.types.Type
    received_type: tff.types.Type
    data_type: tff.types.Type
    update: Callable[..., Any]
    measure: Callable[..., Any]


def _build_parts(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    client_weighting: tff.learning.ClientWeighting,
    metrics_aggregator: Optional[Callable[..., Any]],
    loop_implementation: tff.learning.LoopImplementation,
    description: Optional[Description],
) -> _Parts:
    description = description or describe(model_fn, training)
    weights_type = description.initial_weights.type_signature.result
    aggregate_metrics = (metrics_aggregator or tff.learning.metrics.sum_then_finalize)(
        description.metric_finalizers
    )
    element_spec = training.data_form.element_spec(description.input_spec)
    optimizer, hparams_dtype = training.optimizer, description.hparams_dtype
    hparams = optimizer.get_hparams(
        optimizer.initialize(tf.TensorSpec([], hparams_dtype))
    )
    _check_optimizer(training, hparams)

    @tff.tensorflow.computation
    def initial_state() -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(
            hparams=collections.OrderedDict(
                (k, tf.constant(v, hparams_dtype)) for k, v in hparams.items()
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

    def update(
        state: Any, received: Any, data: Any, client: Any, server: Any
    ) -> client_states.ClientOutput:
        if not training.averaged_rounds:
            received = {local_round.MODEL: received}
        own = (model_fn, training, client_weighting, description.needs)
        if training.debug_eager:
            client_update = debugging.build_client_update(
                *own, description.output_spec, description.kept
            )
        else:
            client_update = client_update_lib.build_client_update(
                *own, loop_implementation
            )
        rate_factor = training.learning_rate_schedule(state["round_num"])
        try:
            return client_update(
                state["hparams"], rate_factor, received, data, client, server
            )
        except Exception as error:
            raise _plain(error) from error

    def measure(metrics: Any):
        return tff.federated_zip(
            collections.OrderedDict(train=aggregate_metrics(metrics))
        )

    return _Parts(
        initialize,
        next_state,
        get_hparams,
        set_hparams,
        weights_type,
        received_type(weights_type, training),
        tff.SequenceType(tff.types.tensorflow_to_type(element_spec)),
        update,
        measure,
    )


def _plain(error: Exception) -> Exception:
    """The error without what AutoGraph puts around it."""
    cause: Any = error
    while cause is not None:
        if isinstance(cause, contract.HookError):
            return cause
        cause = cause.__cause__ or cause.__context__
    # Of what AutoGraph says, the last paragraph is the error.
    *before, last = str(error).split("\n\n")
    if not before or not before[0].startswith("in user code:"):
        return error
    kind = type(error) if isinstance(error, (TypeError, ValueError)) else ValueError
    return kind(last.strip().partition(": ")[2])


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


def build_client_work(
    model_fn: Callable[[], tff.learning.models.VariableModel],
    *,
    training: local_training.LocalTraining,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    metrics_aggregator: Optional[Callable[..., Any]] = None,
    loop_implementation: tff.learning.LoopImplementation = (
        tff.learning.LoopImplementation.DATASET_ITERATOR
    ),
    description: Optional[Description] = None,
) -> Union[tff.learning.templates.ClientWorkProcess, StatefulClientWork]:
    """Builds the client work.

    Args:
      model_fn: Makes the model, as `adaptation.adapt_model_fn` leaves it.
      training: What a client does.
      client_weighting: By examples or all alike; a client without examples weighs 0.
      metrics_aggregator: As in TFF's builders; by default sums and finalises.
      loop_implementation: How a client goes through batches; iterating is twice as
        fast as `dataset.reduce` in TFF's own runtime.
      description: What `describe` gave for the model, if that is at hand.

    Returns:
      The client work, a `StatefulClientWork` if the methods remember something from
      round to round. Clients receive what `received_type` says, and their update is
      what `update_type` says.

    Raises:
      TypeError: If a method needs the network and the model shows none.
      ValueError: If a method or the model's layers cannot do what is asked, or
        an optimiser lacks the learning rate that is needed.
    """
    parts = _build_parts(
        model_fn,
        training,
        client_weighting,
        metrics_aggregator,
        loop_implementation,
        description,
    )
    if training.is_stateful:
        return _stateful(parts, training.methods)
    state_type = parts.initialize.type_signature.result

    @tff.tensorflow.computation(state_type.member, parts.received_type, parts.data_type)
    def client_update(state: Any, received: Any, data: Any):
        output = parts.update(state, received, data, {}, {})
        return output.result, output.metrics

    @tff.federated_computation(
        state_type,
        tff.FederatedType(parts.received_type, tff.CLIENTS),
        tff.FederatedType(parts.data_type, tff.CLIENTS),
    )
    def next_fn(state: Any, received: Any, data: Any):
        result, metrics = tff.federated_map(
            client_update, (tff.federated_broadcast(state), received, data)
        )
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(parts.next_state, state), result, parts.measure(metrics)
        )

    return tff.learning.templates.ClientWorkProcess(
        parts.initialize,
        next_fn,
        get_hparams_fn=parts.get_hparams,
        set_hparams_fn=parts.set_hparams,
    )


class StatefulClientWork(NamedTuple):
    """Client work whose clients or server remember something from round to round.

    Attributes:
      initialize: As in `tff.learning.templates.ClientWorkProcess`.
      next: As there, with the clients' memories and the server's as fourth and fifth
        argument, and a `StatefulClientWorkOutput` as result.
      get_hparams: As there.
      set_hparams: As there.
      initial_client_memory: From a `ModelWeights` to what a client remembers that never
        took part, by name; empty for many.
      initial_server_memory: From a `ModelWeights` to what the server remembers, by
        name; empty for many.
    """

    initialize: tff.Computation
    next: tff.Computation
    get_hparams: tff.Computation
    set_hparams: tff.Computation
    initial_client_memory: tff.Computation
    initial_server_memory: tff.Computation


class StatefulClientWorkOutput(NamedTuple):
    """What `StatefulClientWork.next` gives.

    Attributes:
      state: At the server.
      result: `tff.learning.templates.ClientResult`s at the clients.
      client_memories: The clients' new memories, at the clients.
      uploads: What is summed for the server's memory, by name, at the clients.
      has_trained: 1 or 0, int32, at the clients.
      measurements: At the server.
    """

    state: Any
    result: Any
    client_memories: Any
    uploads: Any
    has_trained: Any
    measurements: Any


def _stateful(
    parts: _Parts, methods: Sequence[method_lib.Method]
) -> StatefulClientWork:
    @tff.tensorflow.computation(parts.weights_type)
    def initial_client_memory(weights: Any) -> method_lib.Memory:
        memory: dict[str, Any] = collections.OrderedDict()
        for m in methods:
            memory.update(memories.initial(m, "client_memory", weights.trainable))
        return memory

    @tff.tensorflow.computation(parts.weights_type)
    def initial_server_memory(weights: Any) -> method_lib.Memory:
        memory: dict[str, Any] = collections.OrderedDict()
        for m in methods:
            memory.update(memories.initial(m, "server_memory", weights.trainable))
        return memory

    client_type = initial_client_memory.type_signature.result
    memory_type = initial_server_memory.type_signature.result

    @tff.tensorflow.computation(memory_type)
    def sent_part(memory: Any):
        return collections.OrderedDict(
            (name, memory[name])
            for m in methods
            for name in memories.sent_keys(m.name, m.server_memory)
        )

    state_type = parts.initialize.type_signature.result

    @tff.tensorflow.computation(
        state_type.member,
        parts.received_type,
        parts.data_type,
        client_type,
        sent_part.type_signature.result,
    )
    def client_update(state: Any, received: Any, data: Any, client: Any, server: Any):
        return parts.update(state, received, data, client, server)

    @tff.federated_computation(
        state_type,
        tff.FederatedType(parts.received_type, tff.CLIENTS),
        tff.FederatedType(parts.data_type, tff.CLIENTS),
        tff.FederatedType(client_type, tff.CLIENTS),
        tff.FederatedType(memory_type, tff.SERVER),
    )
    def next_fn(
        state: Any, received: Any, data: Any, client_memories: Any, memory: Any
    ):
        sent = tff.federated_broadcast(tff.federated_map(sent_part, memory))
        output = tff.federated_map(
            client_update,
            (tff.federated_broadcast(state), received, data, client_memories, sent),
        )
        return StatefulClientWorkOutput(
            state=tff.federated_map(parts.next_state, state),
            result=output.result,
            client_memories=output.client,
            uploads=output.uploads,
            has_trained=output.has_trained,
            measurements=parts.measure(output.metrics),
        )

    return StatefulClientWork(
        parts.initialize,
        next_fn,
        parts.get_hparams,
        parts.set_hparams,
        initial_client_memory,
        initial_server_memory,
    )
