"""The one local training loop, and the TFF client work around it.

Every method trains with this loop: a forward pass shared by the task loss and all
regularisers, their sum's gradient, clipping, and a step of the client optimiser.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Optional, Sequence, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.client import data_forms
from tff_reg.client import optimizers
from tff_reg.client import schedules
from tff_reg.models import forward as forward_lib
from tff_reg.models import learning_model
from tff_reg.regularizers import regularizer as regularizer_lib

_REJECTED = "rejected_clients"
# Added to the norm in the clipping factor, as PyTorch's clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6
# Global models train as local ones do, on the batch's statistics, but keep none.
_GLOBAL_PASS = forward_lib.ForwardPass(training=True, update_statistics=False)


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
        names = [r.name for r in self.regularizers]
        if len(set(names)) != len(names):
            raise ValueError(f"A regulariser may stand in a sum once, but got {names}.")


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


class LocalStep:
    """Computes the loss and the gradient of one batch at the current weights.

    Args:
      model: The local model, a `tff.learning.models.VariableModel`; where a
        regulariser needs the network, a `tff_reg.models.LearningModel`.
      global_model: A second such model that holds the global weights, or `None` if no
        regulariser needs it.
      regularizers: The terms.

    Raises:
      TypeError: If a regulariser needs the network and the model has none.
      ValueError: If the network lacks what a regulariser needs.
    """

    def __init__(self, model, global_model, regularizers):
        self._model = model
        self._global_model = global_model
        self._regularizers = tuple(regularizers)
        self._has_network = isinstance(model, learning_model.LearningModel)
        for regularizer in regularizers:
            if regularizer.needs_network and not self._has_network:
                raise TypeError(
                    f"{regularizer.name} looks inside the network: model_fn must "
                    "return a tff_reg.models.LearningModel, but returned "
                    f"{type(model).__name__}. See tff_reg.models.from_keras_blocks."
                )
            if self._has_network:
                regularizer.check_network(model.network)
        self._records_activations = any(r.records_activations for r in regularizers)

    @property
    def measurement_names(self) -> list[str]:
        names = []
        for regularizer in self._regularizers:
            own = ("term", "share", *regularizer.measurement_names)
            names += [f"{regularizer.name}/{name}" for name in own]
        return names

    def gradient(self, batch, global_weights: Sequence[Any], compute_key: Callable):
        """Runs the batch forward and backward.

        Args:
          batch: What the model's `input_spec` says.
          global_weights: The round's global trainable weights.
          compute_key: Gives the step's int64 [2] key.

        Returns:
          The gradients in the order of the model's trainable variables (zeros where
          the loss does not reach), the number of examples (int64), and an
          `OrderedDict` of measurements, scalar means over the batch.
        """
        weights = list(self._model.trainable_variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            if self._has_network:
                task_loss, num_examples, outputs = self._forward(batch)
            else:
                result = self._model.forward_pass(batch, training=True)
                task_loss, outputs = result.loss, None
                num_examples = result.num_examples
                if num_examples is None:
                    num_examples = tf.shape(result.predictions)[0]
            step = regularizer_lib.Step(
                network=self._model.network if self._has_network else None,
                outputs=outputs,
                features=batch["x"] if self._has_network else None,
                labels=batch["y"] if self._has_network else None,
                task_loss=task_loss,
                weights=weights,
                global_weights=global_weights,
                compute_global_outputs=lambda: self._global_outputs(batch, tape),
                compute_key=compute_key,
                loss_fn=getattr(self._model, "loss_fn", None),
                run_global_from=self._run_global_from,
            )
            terms = [
                tf.autograph.experimental.do_not_convert(regularizer)(step)
                for regularizer in self._regularizers
            ]
            total = task_loss
            for regularizer, term in zip(self._regularizers, terms):
                # A term of strength 0 is measured but kept out of the gradient.
                if regularizer.strength:
                    total += term.weighted
        gradients = tape.gradient(
            total, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        measurements = collections.OrderedDict()
        for regularizer, term in zip(self._regularizers, terms):
            share = tf.math.divide_no_nan(term.weighted, total)
            values = dict(term=term.raw, share=share, **term.measurements)
            for name, value in values.items():
                measurements[f"{regularizer.name}/{name}"] = tf.cast(value, tf.float32)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return gradients, tf.cast(num_examples, tf.int64), measurements

    def _forward(self, batch):
        outputs = self._model.network(
            batch["x"],
            forward_lib.ForwardPass(
                training=True, record_activations=self._records_activations
            ),
        )
        task_loss = self._model.loss_fn(batch["y"], outputs.logits)
        self._model.update_metrics(batch["y"], outputs.logits, task_loss)
        return task_loss, tf.shape(outputs.logits)[0], outputs

    def _global_outputs(self, batch, tape):
        with tape.stop_recording():  # No gradient is ever taken through them.
            return self._global_model.network(batch["x"], _GLOBAL_PASS)

    def _run_global_from(self, block, feature):
        return self._global_model.network.run_from(block, feature, _GLOBAL_PASS)


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
    needs_global_model = any(r.needs_global_model for r in training.regularizers)
    global_model = model_fn() if needs_global_model else None
    local_step = LocalStep(model, global_model, training.regularizers)
    updater = optimizers.Updater(training.optimizer, model.trainable_variables)
    data_form = training.data_form

    @tf.function
    def client_update(optimizer_hparams, rate_factor, initial_weights, data):
        weights = tff.learning.models.ModelWeights.from_model(model)
        for target in (model, global_model):
            if target is not None:
                tf.nest.map_structure(
                    lambda variable, value: variable.assign(value),
                    tff.learning.models.ModelWeights.from_model(target),
                    initial_weights,
                )
        global_weights = tuple(initial_weights.trainable)

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
        return result, metrics

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
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work of every method.

    Its state is the client optimiser's hparams and the round number. The metrics of a
    round are the model's own, for each regulariser `name/term` (before its strength)
    and `name/share` (of the whole loss) with what else it measures, and
    `rejected_clients`: a client whose update is not finite counts there, and nowhere
    else (its weight is 0).

    Args:
      model_fn: Makes the model.
      training: What is done with a batch.
      client_weighting: By examples or all alike; a client without examples weighs 0.
      metrics_aggregator: As in TFF's builders; by default sums and finalises.
      loop_implementation: Iterating is twice as fast as `dataset.reduce` in TFF's
        own runtime.

    Returns:
      A `tff.learning.templates.ClientWorkProcess`. The update is what
      `update_type` says.

    Raises:
      TypeError: If a regulariser needs the network and the model offers none.
      ValueError: If a regulariser or the model's layers cannot do what is asked, or
        a learning-rate schedule meets an optimiser without learning rate.
    """
    with tf.Graph().as_default():
        model = model_fn()
        # Made before anything is traced, so that what does not fit is said plainly.
        local_step = LocalStep(model, model, training.regularizers)
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

    @tff.tensorflow.computation(state_type, weights_type, data_type)
    def client_update(state, weights, data):
        update = _build_client_update(
            model_fn, training, client_weighting, loop_implementation
        )
        return update(state["hparams"], schedule(state["round_num"]), weights, data)

    @tff.federated_computation
    def init_fn():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        init_fn.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, data):
        state_at_clients = tff.federated_broadcast(state)
        result, metrics = tff.federated_map(
            client_update, (state_at_clients, weights, data)
        )
        measurements = tff.federated_zip(
            collections.OrderedDict(train=aggregate_metrics(metrics))
        )
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(next_state, state), result, measurements
        )

    return tff.learning.templates.ClientWorkProcess(
        init_fn, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )
