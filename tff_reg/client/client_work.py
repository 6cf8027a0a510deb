"""The one local training loop, and the TFF client work around it.

Every method trains with this loop: the gradient of a `LocalStep` by the gradient rule,
what the correction adds, clipping, and a step of the client optimiser.
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
from tff_reg.corrections import correction as correction_lib
from tff_reg.gradient_rules import gradient_rule as gradient_rule_lib
from tff_reg.models import learning_model
from tff_reg.regularizers import regularizer as regularizer_lib

_REJECTED = "rejected_clients"
# What the server sends, where that is more than the model.
_MODEL = "model"
# The name of the memory of the mean of all clients' last models.
ALL_CLIENTS = "all_clients"
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
      gradient_rule: How the gradient of a step is taken.
      correction: What pulls clients together, or None. Clients have state then.
      population: What the correction knows of all clients; also needed for
        `averages_all_clients`.
      averages_all_clients: Whether the server keeps the mean of all clients' last
        models (those that never took part count with the initial one), weighted like
        the cohort. Clients have state then.
    """

    optimizer: tff.learning.optimizers.Optimizer
    regularizers: Sequence[regularizer_lib.Regularizer] = ()
    max_gradient_norm: Optional[float] = None
    learning_rate_schedule: schedules.Schedule = schedules.constant()
    data_form: Union[data_forms.BatchedData, data_forms.WholeClientData] = (
        data_forms.BatchedData()
    )
    gradient_rule: gradient_rule_lib.GradientRule = gradient_rule_lib.GradientRule()
    correction: Optional[correction_lib.Correction] = None
    population: Optional[correction_lib.Population] = None
    averages_all_clients: bool = False

    def __post_init__(self):
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(
                "max_gradient_norm must be above 0, or None for no clipping, but is "
                f"{self.max_gradient_norm!r}."
            )
        regularizer_lib.check_sum(self.regularizers)
        if (self.correction or self.averages_all_clients) and not self.population:
            who = self.correction.name if self.correction else "averages_all_clients"
            raise ValueError(
                f"{who} has to know of all clients: give a population, a "
                "tff_reg.corrections.Population with their number."
            )
        is_plain = type(self.gradient_rule) is gradient_rule_lib.GradientRule
        if self.correction and self.correction.has_own_gradient_rule and not is_plain:
            raise regularizer_lib.IncompatibleMethodsError(
                f"{self.correction.name} takes gradients in its own way, and "
                f"{self.gradient_rule.name} in another: leave one out."
            )
        if (
            self.population
            and self.population.mean_examples is not None
            and not isinstance(self.data_form, data_forms.WholeClientData)
        ):
            raise ValueError(
                "mean_examples needs to know how large a client is before it trains: "
                "give the client data in the whole-client form, or leave it out."
            )

    @property
    def effective_gradient_rule(self) -> gradient_rule_lib.GradientRule:
        """The correction's own rule, if it has one."""
        if self.correction and self.correction.has_own_gradient_rule:
            return self.correction.gradient_rule
        return self.gradient_rule

    @property
    def is_stateful(self) -> bool:
        """Whether clients remember something."""
        return bool(
            self.correction
            or self.averages_all_clients
            or regularizer_lib.PREVIOUS in self.reference_models
        )

    @property
    def keeps_previous(self) -> bool:
        """Whether clients remember their last model."""
        reads = regularizer_lib.PREVIOUS in self.reference_models
        return reads or self.averages_all_clients

    @property
    def reference_models(self) -> tuple[str, ...]:
        """The models beside the local one that some regulariser reads."""
        asked = {name for r in self.regularizers for name in r.reference_models}
        return tuple(sorted(asked))

    @property
    def averaged_rounds(self) -> int:
        """How many global models the AVERAGED one is the mean of; 0 without one.

        Raises:
          ValueError: If regularisers ask for different numbers.
        """
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
    variables = list(model.trainable_variables)
    updater = optimizers.Updater(training.optimizer, variables)
    data_form, correction = training.data_form, training.correction
    rule = training.effective_gradient_rule
    slots = rule.make_slots(variables)

    @tf.function
    def client_update(
        optimizer_hparams, rate_factor, received, data, client_state, memory
    ):
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
        for slot in slots:
            slot.assign(tf.zeros_like(slot))

        def where(relative_size, step_size=None):
            return correction_lib.Local(
                weights=variables,
                cloud=global_weights,
                client=client_state,
                server=memory,
                relative_size=tf.cast(relative_size, variables[0].dtype),
                step_size=step_size,
            )

        def train_on_batch(state, batch, compute_key):
            optimizer_state, progress, sums = state
            gradients, batch_examples, measurements = local_step.gradient(
                batch, global_weights, compute_key, rule, slots
            )
            added = kept_unclipped = None
            if correction is not None:
                local = where(progress.relative_size)
                added = correction.before_clipping(local)
                kept_unclipped = correction.after_clipping(local)
            gradients = _plus(gradients, added)
            if training.max_gradient_norm is not None:
                gradients, _ = clip_by_global_norm(
                    gradients, training.max_gradient_norm
                )
            rule.after_clipping(gradients, slots)
            optimizer_state = updater.step(
                optimizer_state, _plus(gradients, kept_unclipped)
            )
            scale = tf.cast(batch_examples, tf.float32)
            sums = collections.OrderedDict(
                (name, total + scale * measurements[name])
                for name, total in sums.items()
            )
            progress = progress._replace(
                num_examples=progress.num_examples + batch_examples,
                num_steps=progress.num_steps + 1,
            )
            return optimizer_state, progress, sums

        def train_on_element(state, element):
            optimizer_state, progress, sums = state
            if training.population and training.population.mean_examples:
                size = tf.cast(data_form.num_examples(element), tf.float64)
                size /= tf.constant(training.population.mean_examples, tf.float64)
                progress = progress._replace(relative_size=size)
            state = optimizer_state, progress, sums
            return data_form.run(train_on_batch, state, element)

        optimizer_state = updater.begin(_scaled(optimizer_hparams, rate_factor))
        zero_sums = collections.OrderedDict(
            (name, tf.constant(0.0)) for name in local_step.measurement_names
        )
        progress = _Progress(
            num_examples=tf.constant(0, tf.int64),
            num_steps=tf.constant(0),
            relative_size=tf.constant(1.0, tf.float64),
        )
        _, progress, sums = _reduce_elements(
            loop_implementation,
            train_on_element,
            data,
            (optimizer_state, progress, zero_sums),
        )

        num_examples = progress.num_examples
        update = tf.nest.map_structure(tf.subtract, initial_weights, weights)
        is_finite = _all_finite(update)
        update = _zero_unless(is_finite, update)
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
        if not training.is_stateful:
            return result, metrics, client_state, (), ()

        new_state, uploads = {}, {}
        if correction is not None:
            steps = training.population.local_steps or progress.num_steps
            step_size = _step_size(optimizer_hparams, steps, variables[0].dtype)
            new_state, uploads = correction.finish(
                where(progress.relative_size, step_size)
            )
        if training.keeps_previous:
            new_state[regularizer_lib.PREVIOUS] = list(weights.trainable)
        if training.averages_all_clients:
            size = tf.constant(1.0, tf.float64)
            if weighting != tff.learning.ClientWeighting.UNIFORM:
                size = progress.relative_size
            uploads[ALL_CLIENTS] = [
                tf.cast(size, new.dtype) * (new - old)
                for new, old in zip(
                    weights.trainable, client_state[regularizer_lib.PREVIOUS]
                )
            ]
        # A client that did not train, or diverged, keeps what it remembers.
        has_trained = tf.logical_and(is_finite, num_examples > 0)
        new_state = collections.OrderedDict(
            (
                name,
                [tf.where(has_trained, n, o) for n, o in zip(new_state[name], old)],
            )
            for name, old in client_state.items()
        )
        uploads = collections.OrderedDict(
            (name, _zero_unless(has_trained, uploads[name])) for name in sorted(uploads)
        )
        return result, metrics, new_state, uploads, tf.cast(has_trained, tf.int32)

    return client_update


class _Progress(NamedTuple):
    """What a client has done so far.

    Attributes:
      num_examples: int64, examples trained on, counted in every epoch.
      num_steps: int32, steps taken.
      relative_size: float64, wt_i of the corrections.
    """

    num_examples: Any
    num_steps: Any
    relative_size: Any


def _plus(gradients, added):
    if added is None:
        return gradients
    return [g + a for g, a in zip(gradients, added)]


def _all_finite(structure):
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(u)) for u in tf.nest.flatten(structure)]
    )


def _zero_unless(condition, structure):
    return tf.nest.map_structure(
        lambda u: tf.where(condition, u, tf.zeros_like(u)), structure
    )


def _step_size(hparams, steps, dtype):
    """K lr0 of the corrections: steps times the undecayed learning rate."""
    return tf.cast(steps, dtype) * tf.cast(hparams["learning_rate"], dtype)


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
      next: As there, with the clients' states and the server's memory as fourth and
        fifth argument, and a `StatefulClientWorkOutput` as result.
      get_hparams: As there.
      set_hparams: As there.
      initial_client_state: From a `ModelWeights` to the state of a client that never
        took part.
      initial_memory: From a `ModelWeights` to what the server remembers: structures in
        the shapes of the trainable weights, by name; empty for most.
    """

    initialize: tff.Computation
    next: tff.Computation
    get_hparams: tff.Computation
    set_hparams: tff.Computation
    initial_client_state: tff.Computation
    initial_memory: tff.Computation


class StatefulClientWorkOutput(NamedTuple):
    """What `StatefulClientWork.next` gives.

    Attributes:
      state: At the server.
      result: `tff.learning.templates.ClientResult`s at the clients.
      client_states: The clients' new states, at the clients.
      uploads: What is added up in the server's memory, by name, at the clients.
      has_trained: 1 or 0, int32, at the clients.
      measurements: At the server.
    """

    state: Any
    result: Any
    client_states: Any
    uploads: Any
    has_trained: Any
    measurements: Any


def _zero_memories(names, trainable):
    return collections.OrderedDict(
        (name, [tf.zeros_like(w) for w in trainable]) for name in names
    )


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
      TypeError: If a regulariser or the gradient rule needs the network and the model
        offers none.
      ValueError: If a regulariser or the model's layers cannot do what is asked, or
        a learning-rate schedule meets an optimiser without learning rate.
    """
    with tf.Graph().as_default():
        model = model_fn()
        # Made before anything is traced, so that what does not fit is said plainly.
        references = dict.fromkeys(training.reference_models, model)
        local_step = local_step_lib.LocalStep(model, references, training.regularizers)
        gradient_rule_lib.check_has_network(training.effective_gradient_rule, model)
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

    if training.correction is not None and "learning_rate" not in hparams:
        raise ValueError(
            f"{training.correction.name} needs a client optimiser with a learning_rate "
            f"among its hparams, but it has only {list(hparams)}."
        )
    correction = training.correction
    names_of_clients = correction.client_memories if correction else ()
    names_of_server = correction.server_memories if correction else ()

    @tff.tensorflow.computation(weights_type)
    def initial_client_state(weights):
        state = _zero_memories(names_of_clients, weights.trainable)
        if training.keeps_previous:
            state[regularizer_lib.PREVIOUS] = list(weights.trainable)
        return state

    @tff.tensorflow.computation(weights_type)
    def initial_memory(weights):
        memory = _zero_memories(names_of_server, weights.trainable)
        if training.averages_all_clients:
            memory[ALL_CLIENTS] = list(weights.trainable)
        return memory

    def update_client(state, received, data, client_state, memory):
        if not training.averaged_rounds:
            received = {_MODEL: received}
        update = _build_client_update(
            model_fn, training, client_weighting, loop_implementation
        )
        rate_factor = schedule(state["round_num"])
        return update(
            state["hparams"], rate_factor, received, data, client_state, memory
        )

    @tff.federated_computation
    def init_fn():
        return tff.federated_eval(initial_state, tff.SERVER)

    def measure(metrics):
        return tff.federated_zip(
            collections.OrderedDict(train=aggregate_metrics(metrics))
        )

    if training.is_stateful:
        client_state_type = initial_client_state.type_signature.result
        memory_type = initial_memory.type_signature.result

        @tff.tensorflow.computation(memory_type)
        def sent_part(memory):
            sent = correction.sent if correction else ()
            return collections.OrderedDict((name, memory[name]) for name in sent)

        sent_type = sent_part.type_signature.result

        @tff.tensorflow.computation(
            state_type, from_server_type, data_type, client_state_type, sent_type
        )
        def stateful_client_update(state, received, data, client_state, memory):
            return update_client(state, received, data, client_state, memory)

        @tff.federated_computation(
            init_fn.type_signature.result,
            tff.FederatedType(from_server_type, tff.CLIENTS),
            tff.FederatedType(data_type, tff.CLIENTS),
            tff.FederatedType(client_state_type, tff.CLIENTS),
            tff.FederatedType(memory_type, tff.SERVER),
        )
        def stateful_next_fn(state, received, data, client_states, memory):
            sent = tff.federated_broadcast(tff.federated_map(sent_part, memory))
            result, metrics, new_states, uploads, has_trained = tff.federated_map(
                stateful_client_update,
                (tff.federated_broadcast(state), received, data, client_states, sent),
            )
            return StatefulClientWorkOutput(
                state=tff.federated_map(next_state, state),
                result=result,
                client_states=new_states,
                uploads=uploads,
                has_trained=has_trained,
                measurements=measure(metrics),
            )

        return StatefulClientWork(
            init_fn,
            stateful_next_fn,
            get_hparams,
            set_hparams,
            initial_client_state,
            initial_memory,
        )

    @tff.tensorflow.computation(state_type, from_server_type, data_type)
    def client_update(state, received, data):
        return update_client(state, received, data, {}, {})[:2]

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
