"""The one local training loop, and the TFF client work around it.

Every method trains with this loop: the gradient of a `LocalStep`, clipping, and a step
of the client optimiser.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.client import data_forms
from tff_reg.client import local_step as local_step_lib
from tff_reg.client import optimizers
from tff_reg.client import schedules
from tff_reg.models import learning_model
from tff_reg.regularizers import regularizer as regularizer_lib

_REJECTED = "rejected_clients"
# What the server sends, where that is more than the model.
_MODEL = "model"
# Added to the norm in the clipping factor, as PyTorch's clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """What a client does with a batch.

    Attributes:
      optimizer: The client optimiser, made anew for every client and round.
      regularizers: Terms added to the task loss.
      max_gradient_norm: The gradient of the whole loss is scaled down to this global
        norm, before the optimiser adds weight decay; `None` leaves it.
      learning_rate_schedule: Factor on the learning rate by round.
      data_form: The form of the client data.
    """

    optimizer: tff.learning.optimizers.Optimizer
    regularizers: Sequence[regularizer_lib.Regularizer] = ()
    max_gradient_norm: Optional[float] = None
    learning_rate_schedule: schedules.Schedule = schedules.constant()
    data_form: Union[data_forms.BatchedData, data_forms.WholeClientData] = (
        data_forms.BatchedData()
    )

    def __post_init__(self):
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(
                "max_gradient_norm must be above 0, or None for no clipping, but is "
                f"{self.max_gradient_norm!r}."
            )
        regularizer_lib.check_sum(self.regularizers)

    @property
    def reference_models(self) -> tuple[str, ...]:
        """The models beside the local one that some regulariser reads."""
        asked = {name for r in self.regularizers for name in r.reference_models}
        return tuple(sorted(asked))

    @property
    def averaged_rounds(self) -> int:
        """How many global models the AVERAGED one is the mean of; 0 without one."""
        averaging = {
            r.name: r.averaged_rounds
            for r in self.regularizers
            if regularizer_lib.AVERAGED in r.reference_models
        }
        if len(set(averaging.values())) > 1:
            raise ValueError(
                "All regularisers that read the mean of the last global models must "
                f"ask for the same number of them, but these ask for: {averaging}."
            )
        return max(averaging.values(), default=0)


def clip_by_global_norm(gradients: Sequence[tf.Tensor], max_norm: float):
    """Scales gradients down so that their joint norm is at most `max_norm`.

    Args:
      gradients: Tensors of one data type.
      max_norm: The bound.

    Returns:
      The scaled gradients and their norm before scaling.
    """
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    factor = tf.minimum(max_norm / (norm + _CLIP_EPSILON), 1.0)
    return [g * factor for g in gradients], norm


def _reduce_elements(loop_implementation, step_fn, data, state):
    """Folds `step_fn(state, element)` over a data set."""
    if loop_implementation == tff.learning.LoopImplementation.DATASET_REDUCE:
        # A tf.function of its own: AutoGraph does not reach what reduce calls.
        return data.reduce(state, tf.function(step_fn))
    for element in iter(data):
        state = step_fn(state, element)
    return state


def _build_client_update(model_fn, training, weighting, loop_implementation):
    """Makes the models and returns the `tf.function` that a client runs."""
    model = model_fn()
    references = {name: model_fn() for name in training.reference_models}
    local_step = local_step_lib.LocalStep(model, references, training.regularizers)
    updater = optimizers.Updater(training.optimizer, model.trainable_variables)
    data_form = training.data_form

    @tf.function
    def client_update(optimizer_hparams, rate_factor, received, data, client_state):
        weights = tff.learning.models.ModelWeights.from_model(model)
        initial_weights = received[_MODEL]
        global_weights = tuple(initial_weights.trainable)
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), weights, initial_weights
        )
        values = {
            regularizer_lib.GLOBAL: global_weights,
            **{name: value for name, value in received.items() if name != _MODEL},
            **client_state,
        }
        for name, reference in references.items():
            for variable, value in zip(reference.trainable_variables, values[name]):
                variable.assign(value)

        def train_on_batch(state, batch, compute_key):
            optimizer_state, num_examples, sums = state
            gradients, batch_examples, measurements = local_step.gradient(
                batch, global_weights, compute_key
            )
            if training.max_gradient_norm is not None:
                gradients, _ = clip_by_global_norm(
                    gradients, training.max_gradient_norm
                )
            optimizer_state = updater.step(optimizer_state, gradients)
            scale = tf.cast(batch_examples, tf.float32)
            sums = collections.OrderedDict(
                (name, total + scale * measurements[name])
                for name, total in sums.items()
            )
            return optimizer_state, num_examples + batch_examples, sums

        optimizer_state = updater.begin(_scaled(optimizer_hparams, rate_factor))
        zero_sums = collections.OrderedDict(
            (name, tf.constant(0.0)) for name in local_step.measurement_names
        )
        _, num_examples, sums = _reduce_elements(
            loop_implementation,
            lambda state, element: data_form.run(train_on_batch, state, element),
            data,
            (optimizer_state, tf.constant(0, tf.int64), zero_sums),
        )

        update = tf.nest.map_structure(tf.subtract, initial_weights, weights)
        is_finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(u)) for u in tf.nest.flatten(update)]
        )
        update = tf.nest.map_structure(
            lambda u: tf.where(is_finite, u, tf.zeros_like(u)), update
        )
        if not is_finite:
            model.reset_metrics()
        if weighting == tff.learning.ClientWeighting.UNIFORM:
            weight = tf.cast(num_examples > 0, tf.float32)
        else:
            weight = tf.cast(num_examples, tf.float32)
        weight = tf.where(is_finite, weight, 0.0)
        metrics = collections.OrderedDict(model.report_local_unfinalized_metrics())
        for name, total in sums.items():
            examples = tf.cast(num_examples, tf.float32)
            metrics[name] = [
                tf.where(is_finite, total, 0.0),
                tf.where(is_finite, examples, 0.0),
            ]
        metrics[_REJECTED] = tf.cast(tf.logical_not(is_finite), tf.int32)
        if not weights.non_trainable:
            update = update.trainable
        result = tff.learning.templates.ClientResult(
            update=update, update_weight=weight
        )
        # A client that did not train, or diverged, keeps what it remembers.
        has_trained = tf.logical_and(is_finite, num_examples > 0)
        new_state = collections.OrderedDict()
        if regularizer_lib.PREVIOUS in client_state:
            new_state[regularizer_lib.PREVIOUS] = [
                tf.where(has_trained, new, old)
                for new, old in zip(
                    weights.trainable, client_state[regularizer_lib.PREVIOUS]
                )
            ]
        return result, metrics, new_state

    return client_update


def _scaled(hparams, rate_factor):
    """The hparams with the learning rate times the schedule's factor."""
    if "learning_rate" not in hparams:
        return hparams
    scaled = collections.OrderedDict(hparams)
    rate = scaled["learning_rate"]
    scaled["learning_rate"] = rate * tf.cast(rate_factor, rate.dtype)
    return scaled


def update_type(model_weights_type) -> tff.types.Type:
    """The type of a client's update.

    Args:
      model_weights_type: The TFF type of the model's `ModelWeights`.

    Returns:
      The trainable weights' type, as in TFF's own processes, if the model has no
      others; else the type of the whole `ModelWeights`, since statistics such as
      BatchNorm's are averaged too.
    """
    if tff.structure.flatten(model_weights_type.non_trainable):
        return model_weights_type
    return model_weights_type.trainable


class StatefulClientWork(NamedTuple):
    """Client work whose clients remember something from round to round.

    Attributes:
      initialize: As in `tff.learning.templates.ClientWorkProcess`.
      next: As there, with the clients' states as fourth argument, and a
        `StatefulClientWorkOutput` as result.
      get_hparams: As there.
      set_hparams: As there.
      initial_client_state: From a `ModelWeights` to the state of a client that never
        took part.
    """

    initialize: tff.Computation
    next: tff.Computation
    get_hparams: tff.Computation
    set_hparams: tff.Computation
    initial_client_state: tff.Computation


class StatefulClientWorkOutput(NamedTuple):
    """What `StatefulClientWork.next` gives.

    Attributes:
      state: At the server.
      result: `tff.learning.templates.ClientResult`s at the clients.
      client_states: The clients' new states, at the clients.
      measurements: At the server.
    """

    state: Any
    result: Any
    client_states: Any
    measurements: Any


def received_type(weights_type, training: LocalTraining) -> tff.types.Type:
    """The type of what the server sends to a client.

    Args:
      weights_type: The TFF type of the model's `ModelWeights`.
      training: The client's half of the method.

    Returns:
      `weights_type` itself, or a structure of it as `model` and of the trainable
      weights of the average of the last global models as `averaged`.
    """
    if not training.averaged_rounds:
        return weights_type
    return tff.types.to_type(
        collections.OrderedDict(
            [(_MODEL, weights_type), (regularizer_lib.AVERAGED, weights_type.trainable)]
        )
    )


def build_client_work(
    model_fn: Callable[[], tff.learning.models.VariableModel],
    *,
    training: LocalTraining,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    metrics_aggregator: Optional[Callable] = None,
    loop_implementation: tff.learning.LoopImplementation = (
        tff.learning.LoopImplementation.DATASET_ITERATOR
    ),
) -> Union[tff.learning.templates.ClientWorkProcess, StatefulClientWork]:
    """Builds the client work of every method.

    Its state is the client optimiser's hparams and the round number. The metrics of a
    round are the model's own, for each regulariser with a term `name/term` (before its
    strength) and `name/share` (of the whole loss), for all what else they measure, and
    `rejected_clients`: a client whose update is not finite counts there, and nowhere
    else (its weight is 0).

    Args:
      model_fn: Makes the model, as `regularizers.adapt_model_fn` leaves it.
      training: What is done with a batch.
      client_weighting: By examples or all alike; a client without examples weighs 0.
      metrics_aggregator: As in TFF's builders; by default sums and finalises.
      loop_implementation: Iterating is twice as fast as `dataset.reduce` in TFF's
        own runtime.

    Returns:
      A `tff.learning.templates.ClientWorkProcess`, or a `StatefulClientWork` if a
      regulariser reads the clients' previous models. Clients receive what
      `received_type` says, and their update is what `update_type` says.

    Raises:
      TypeError: If a regulariser needs the network and the model offers none.
      ValueError: If a regulariser or the model's layers cannot do what is asked, or
        a learning-rate schedule meets an optimiser without learning rate.
    """
    is_stateful = regularizer_lib.PREVIOUS in training.reference_models
    with tf.Graph().as_default():
        model = model_fn()
        # Made before anything is traced, so that what does not fit is said plainly.
        references = dict.fromkeys(training.reference_models, model)
        local_step = local_step_lib.LocalStep(model, references, training.regularizers)
        weights_type = tff.learning.models.weights_type_from_model(model)
        finalizers = collections.OrderedDict(model.metric_finalizers())
        hparams_dtype = tf.float32
        if any(v.dtype == tf.float64 for v in model.trainable_variables):
            hparams_dtype = tf.float64
    for name in local_step.measurement_names:
        finalizers[name] = learning_model.finalize_ratio
    finalizers[_REJECTED] = learning_model.finalize_identity
    aggregate_metrics = (
        metrics_aggregator or tff.learning.metrics.sum_then_finalize
    )(finalizers)
    element_spec = training.data_form.element_spec(model.input_spec)
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(element_spec))
    from_server_type = received_type(weights_type, training)

    optimizer = training.optimizer
    hparams = optimizer.get_hparams(
        optimizer.initialize(tf.TensorSpec([], hparams_dtype))
    )
    schedule = training.learning_rate_schedule
    if schedule != schedules.constant() and "learning_rate" not in hparams:
        raise ValueError(
            "A learning-rate schedule needs a client optimiser with a learning_rate "
            f"among its hparams, but it has only {list(hparams)}."
        )

    @tff.tensorflow.computation
    def initial_state():
        return collections.OrderedDict(
            hparams=collections.OrderedDict(
                (k, tf.constant(v, hparams_dtype)) for k, v in hparams.items()
            ),
            round_num=tf.constant(0),
        )

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type)
    def next_state(state):
        return collections.OrderedDict(state, round_num=state["round_num"] + 1)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state):
        return state["hparams"]

    @tff.tensorflow.computation(state_type, state_type["hparams"])
    def set_hparams(state, hparams):
        return collections.OrderedDict(state, hparams=hparams)

    @tff.tensorflow.computation(weights_type)
    def initial_client_state(weights):
        return collections.OrderedDict(
            [(regularizer_lib.PREVIOUS, list(weights.trainable))]
        )

    def update_client(state, received, data, client_state):
        if not training.averaged_rounds:
            received = {_MODEL: received}
        update = _build_client_update(
            model_fn, training, client_weighting, loop_implementation
        )
        rate_factor = schedule(state["round_num"])
        return update(state["hparams"], rate_factor, received, data, client_state)

    @tff.federated_computation
    def init_fn():
        return tff.federated_eval(initial_state, tff.SERVER)

    def measure(metrics):
        return tff.federated_zip(
            collections.OrderedDict(train=aggregate_metrics(metrics))
        )

    if is_stateful:
        client_state_type = initial_client_state.type_signature.result

        @tff.tensorflow.computation(
            state_type, from_server_type, data_type, client_state_type
        )
        def stateful_client_update(state, received, data, client_state):
            return update_client(state, received, data, client_state)

        @tff.federated_computation(
            init_fn.type_signature.result,
            tff.FederatedType(from_server_type, tff.CLIENTS),
            tff.FederatedType(data_type, tff.CLIENTS),
            tff.FederatedType(client_state_type, tff.CLIENTS),
        )
        def stateful_next_fn(state, received, data, client_states):
            result, metrics, new_states = tff.federated_map(
                stateful_client_update,
                (tff.federated_broadcast(state), received, data, client_states),
            )
            return StatefulClientWorkOutput(
                tff.federated_map(next_state, state),
                result,
                new_states,
                measure(metrics),
            )

        return StatefulClientWork(
            init_fn, stateful_next_fn, get_hparams, set_hparams, initial_client_state
        )

    @tff.tensorflow.computation(state_type, from_server_type, data_type)
    def client_update(state, received, data):
        result, metrics, _ = update_client(state, received, data, {})
        return result, metrics

    @tff.federated_computation(
        init_fn.type_signature.result,
        tff.FederatedType(from_server_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, received, data):
        result, metrics = tff.federated_map(
            client_update, (tff.federated_broadcast(state), received, data)
        )
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(next_state, state), result, measure(metrics)
        )

    return tff.learning.templates.ClientWorkProcess(
        init_fn, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )
