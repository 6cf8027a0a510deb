"""A client's round in three functions: begin, step, finish."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import method as method_lib
from tff_reg.training import (
    data_forms,
    local_step as local_step_lib,
    local_training,
    optimizers,
)

REJECTED = "rejected_clients"
# What the server sends, where that is more than the model.
MODEL = "model"
# Added to the norm in the clipping factor, as PyTorch's clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6


class Visit(NamedTuple):
    """What a client has before it trains.

    Attributes:
      received: The model's `ModelWeights`.
      client: The client's memories, by name.
      server: The memories that the server sent, by name.
      class_counts: int32 [classes], or None where no method needs them.
      hparams: The client optimiser's, before any decay.
      decayed: The same with the round's learning rate.
    """

    received: Any
    client: Mapping[str, Sequence[Any]]
    server: Mapping[str, Any]
    class_counts: Any
    hparams: Mapping[str, Any]
    decayed: Mapping[str, Any]


class Progress(NamedTuple):
    """How far a client's training is.

    Attributes:
      optimizer: The optimiser's state.
      num_examples: int64, examples trained on, counted in every epoch.
      num_steps: int32, steps taken.
      relative_size: float64, wt_i.
      sums: Measurements, summed over examples, by name.
      gradient_sum: The sum of the gradients that the optimiser followed, one tensor a
        weight, where a method needs it and how far the client moved does not say it.
      kept: What each method keeps, by its name.
    """

    optimizer: Any
    num_examples: Any
    num_steps: Any
    relative_size: Any
    sums: Mapping[str, Any]
    gradient_sum: Sequence[Any]
    kept: Mapping[str, Any]


class ClientOutput(NamedTuple):
    """What a client gives.

    Attributes:
      result: A `tff.learning.templates.ClientResult`.
      metrics: Unfinalised, by name.
      client: The client's new memories, by name.
      uploads: What is summed for the server's memory, by name.
      has_trained: 1 or 0, int32.
    """

    result: Any
    metrics: Mapping[str, Any]
    client: Mapping[str, Any]
    uploads: Mapping[str, Any]
    has_trained: Any


class LocalRound:
    """The round of a client, whose model and variables it holds.

    Args:
      model_fn: Makes the model.
      training: What the client does.
      weighting: A `tff.learning.ClientWeighting`.

    Attributes:
      has_network: Whether the model shows its network.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        training: local_training.LocalTraining,
        weighting: tff.learning.ClientWeighting,
    ):
        self._training = training
        self._weighting = weighting
        self._model = model_fn()
        self._references = {name: model_fn() for name in training.reference_models}
        self._local_step = local_step_lib.LocalStep(
            self._model, self._references, training.methods
        )
        self.has_network = method_lib.has_network(self._model)
        self._variables = list(self._model.trainable_variables)
        head = self._model.network.head_variables if self.has_network else ()
        self._in_head = tuple(any(v is h for h in head) for v in self._variables)
        self._updater = optimizers.Updater(training.optimizer, self._variables)
        self._sums_gradients = not self._updater.is_plain and any(
            method.needs_gradients for method in training.methods
        )

    def begin(
        self,
        hparams: Any,
        rate_factor: Any,
        received: Any,
        data: Any,
        client: Any,
        server: Any,
    ) -> tuple[Visit, Progress]:
        """Sets the variables to what was received.

        Args:
          hparams: The client optimiser's.
          rate_factor: The round's factor on its learning rate.
          received: The model and the other weights that the server sent, by name.
          data: The client's `tf.data.Dataset`.
          client: The client's memories, by name.
          server: The memories that the server sent, by name.

        Returns:
          What stays as it is during the training, and what does not.
        """
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        tf.nest.map_structure(_assign, weights, received[MODEL])
        values = {
            method_lib.GLOBAL: tuple(received[MODEL].trainable),
            method_lib.EVALUATED: tuple(received[MODEL].trainable),
            **{name: value for name, value in received.items() if name != MODEL},
            **client,
        }
        for name, reference in self._references.items():
            for variable, value in zip(reference.trainable_variables, values[name]):
                variable.assign(value)
            # Frozen layers, and statistics, are the received ones in every reference.
            for variable, value in zip(
                reference.non_trainable_variables, received[MODEL].non_trainable
            ):
                variable.assign(value)
        class_counts = None
        if self._training.needs_class_counts:
            num_classes = self._model.network.num_classes
            class_counts = self._training.data_form.class_counts(data, num_classes)
        zero_sums = collections.OrderedDict(
            (name, tf.constant(0.0)) for name in self._local_step.measurement_names
        )
        decayed = _scaled(hparams, rate_factor)
        visit = Visit(received[MODEL], client, server, class_counts, hparams, decayed)
        progress = Progress(
            optimizer=self._updater.begin(decayed),
            num_examples=tf.constant(0, tf.int64),
            num_steps=tf.constant(0),
            relative_size=tf.constant(1.0, tf.float64),
            sums=zero_sums,
            gradient_sum=(
                tuple(tf.zeros_like(v) for v in self._variables)
                if self._sums_gradients
                else ()
            ),
            kept={},
        )
        locals_ = self._locals(visit, progress)
        kept = collections.OrderedDict(
            (method.name, method.begin(locals_[method.name]))
            for method in self._training.methods
        )
        return visit, progress._replace(kept=kept)

    def enter(self, progress: Progress, element: Any) -> Progress:
        """Looks at an element of the data set before it is trained on."""
        form, population = self._training.data_form, self._training.population
        has_size = isinstance(form, data_forms.WholeClientData)
        if has_size and population and population.mean_examples:
            size = tf.cast(form.num_examples(element), tf.float64)
            size /= tf.constant(population.mean_examples, tf.float64)
            progress = progress._replace(relative_size=size)
        return progress

    def step(
        self,
        visit: Visit,
        progress: Progress,
        batch: Any,
        compute_key: Callable[[], tf.Tensor],
    ) -> Progress:
        """Takes one step.

        Args:
          visit: What `begin` gave.
          progress: How far the training is.
          batch: What the model's `input_spec` says.
          compute_key: Gives the step's int64 [2] key.

        Returns:
          How far the training is then.
        """
        locals_ = self._locals(visit, progress)
        gradients, batch_examples, measurements = self._local_step.gradient(
            batch, locals_, compute_key
        )
        for method in self._training.methods:
            gradients = method.correct(locals_[method.name], gradients)
        if self._training.max_gradient_norm is not None:
            gradients, _ = clip_by_global_norm(
                gradients, self._training.max_gradient_norm
            )
        kept = collections.OrderedDict(
            (method.name, method.keep(locals_[method.name], gradients))
            for method in self._training.methods
        )
        for method in self._training.methods:
            gradients = method.correct_clipped(locals_[method.name], gradients)
        gradient_sum = progress.gradient_sum
        if self._sums_gradients:
            followed = self._updater.followed(progress.optimizer, gradients)
            gradient_sum = tuple(t + g for t, g in zip(gradient_sum, followed))
        scale = tf.cast(batch_examples, tf.float32)
        sums = collections.OrderedDict(
            (name, total + scale * measurements[name])
            for name, total in progress.sums.items()
        )
        return progress._replace(
            optimizer=self._updater.step(progress.optimizer, gradients),
            num_examples=progress.num_examples + batch_examples,
            num_steps=progress.num_steps + 1,
            sums=sums,
            gradient_sum=gradient_sum,
            kept=kept,
        )

    def finish(self, visit: Visit, progress: Progress) -> ClientOutput:
        """Ends the training.

        Args:
          visit: What `begin` gave.
          progress: How far the training came.

        Returns:
          The client's output. A client whose update is not finite counts as
          `rejected_clients` and in nothing else, and keeps what it remembers, as one
          without examples does.

        Raises:
          ValueError: If a method uploads what it does not declare.
        """
        model, training = self._model, self._training
        num_examples = progress.num_examples
        locals_ = self._locals(visit, progress, is_last=True)
        weights = tff.learning.models.ModelWeights.from_model(model)
        before, after = (
            tff.learning.models.ModelWeights(w.trainable, floats(w.non_trainable))
            for w in (visit.received, weights)
        )
        update = tf.nest.map_structure(tf.subtract, before, after)
        for method in training.methods:
            if method_lib.does(method, "scale"):
                factor = method.scale(locals_[method.name])
                # Without a step there is nothing to scale, perhaps by 1 / 0.
                factor = tf.where(progress.num_steps > 0, factor, tf.ones_like(factor))
                scaled = [factor * u for u in update.trainable]
                update = tff.learning.models.ModelWeights(scaled, update.non_trainable)
        is_finite = all_finite(update)
        update = zero_unless(is_finite, update)

        def reset_metrics():
            model.reset_metrics()
            return tf.no_op()

        tf.cond(is_finite, tf.no_op, reset_metrics)
        if self._weighting == tff.learning.ClientWeighting.UNIFORM:
            weight = tf.cast(num_examples > 0, tf.float32)
        else:
            weight = tf.cast(num_examples, tf.float32)
        weight = tf.where(is_finite, weight, 0.0)
        metrics = collections.OrderedDict(model.report_local_unfinalized_metrics())
        for name, total in progress.sums.items():
            examples = tf.cast(num_examples, tf.float32)
            metrics[name] = [
                tf.where(is_finite, total, 0.0),
                tf.where(is_finite, examples, 0.0),
            ]
        metrics[REJECTED] = tf.cast(tf.logical_not(is_finite), tf.int32)
        if not after.non_trainable:
            update = update.trainable
        new_memory: dict[str, Any] = {}
        uploads: dict[str, Any] = {}
        for method in training.methods:
            own_memory, own_uploads = method.finish(locals_[method.name])
            if unknown := sorted({*own_uploads} - {*method.uploads}):
                raise ValueError(
                    f"{method.name} uploads {', '.join(unknown)}, which its `uploads`"
                    " does not name: add it, so that noise and epsilon cover it."
                )
            new_memory.update(own_memory)
            uploads.update(own_uploads)
        has_trained = tf.logical_and(is_finite, num_examples > 0)
        client = collections.OrderedDict(
            (name, where(has_trained, list(new_memory.get(name, old)), list(old)))
            for name, old in visit.client.items()
        )
        uploads = collections.OrderedDict(
            (name, zero_unless(has_trained, uploads[name])) for name in sorted(uploads)
        )
        return ClientOutput(
            result=tff.learning.templates.ClientResult(
                update=update, update_weight=weight
            ),
            metrics=metrics,
            client=client,
            uploads=uploads,
            has_trained=tf.cast(has_trained, tf.int32),
        )

    def _locals(
        self, visit: Visit, progress: Progress, is_last: bool = False
    ) -> dict[str, method_lib.Local]:
        """Where the client stands, for each method."""
        dtype = self._variables[0].dtype
        relative_size = tf.cast(progress.relative_size, dtype)
        is_uniform = self._weighting == tff.learning.ClientWeighting.UNIFORM
        population, steps = self._training.population, progress.num_steps
        if population and population.local_steps:
            steps = tf.constant(population.local_steps, dtype)
        step_size = scaled_sum = None
        if is_last and "learning_rate" in visit.hparams:
            rate = tf.cast(visit.hparams["learning_rate"], dtype)
            step_size = tf.cast(steps, dtype) * rate
        if is_last and self._sums_gradients:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            scaled_sum = [decayed * total for total in progress.gradient_sum]
        local = method_lib.Local(
            weights=self._variables,
            cloud=tuple(visit.received.trainable),
            client=visit.client,
            server=visit.server,
            in_head=self._in_head,
            class_counts=visit.class_counts,
            relative_size=relative_size,
            relative_weight=tf.ones([], dtype) if is_uniform else relative_size,
            num_steps=progress.num_steps,
            num_examples=progress.num_examples,
            weighs_by_examples=not is_uniform,
            hparams=visit.decayed,
            local_steps=steps,
            step_size=step_size,
            scaled_gradient_sum=scaled_sum,
        )
        return {
            method.name: local.with_state(progress.kept.get(method.name, ()))
            for method in self._training.methods
        }


def build_client_update(
    model_fn: Callable[[], Any],
    training: local_training.LocalTraining,
    weighting: tff.learning.ClientWeighting,
    loop_implementation: tff.learning.LoopImplementation,
) -> Callable[..., Any]:
    """Makes the models and returns the `tf.function` that a client runs.

    Args:
      model_fn: Makes the model.
      training: What the client does.
      weighting: How clients weigh.
      loop_implementation: How a client goes through its data.

    Returns:
      A function of the arguments of `LocalRound.begin` giving a `ClientOutput`.
    """
    local_round = LocalRound(model_fn, training, weighting)
    # AutoGraph has nothing to convert here but in a model of somebody else's, and
    # looking for it is a quarter of the time that tracing takes.
    as_written = tf.autograph.experimental.do_not_convert
    run, step = training.data_form.run, local_round.step
    if local_round.has_network:
        run, step = as_written(run), as_written(step)

    @tf.function
    def client_update(
        hparams: Any,
        rate_factor: Any,
        received: Any,
        data: Any,
        client: Any,
        server: Any,
    ):
        if training.needs_class_counts:
            # Counted and trained on are the same examples, also where a data set gives
            # others in every pass.
            data = data.cache()
        visit, progress = as_written(local_round.begin)(
            hparams, rate_factor, received, data, client, server
        )

        def train_on_batch(
            state: Any, batch: Any, compute_key: Callable[[], tf.Tensor]
        ):
            return step(visit, state, batch, compute_key)

        def train_on_element(state: Any, element: Any):
            state = as_written(local_round.enter)(state, element)
            return run(train_on_batch, state, element)

        if isinstance(training.data_form, data_forms.WholeClientData):
            element = as_written(training.data_form.element)(data)
            progress = train_on_element(progress, element)
        else:
            batches = data.filter(as_written(_has_examples))
            progress = _reduce_elements(
                loop_implementation, train_on_element, batches, progress
            )
        return as_written(local_round.finish)(visit, progress)

    return client_update


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


def floats(values: Sequence[Any]) -> list[Any]:
    """Those of variables, tensors or their types that are of a floating-point type.

    Others that do not train, such as counters, are the server's for every client and in
    every round, as in TFF's own processes: there is no mean of them.
    """
    return [v for v in values if tf.as_dtype(v.dtype).is_floating]


def all_finite(structure: Any) -> tf.Tensor:
    """Whether all numbers of a structure of tensors are finite, a bool scalar."""
    tensors = tf.nest.flatten(structure)
    # Without its axes each reduction would make a constant of them: hundreds.
    axes = {rank: tf.range(rank) for rank in {u.shape.rank for u in tensors}}
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(u), axes[u.shape.rank]) for u in tensors]
    )


def where(condition: tf.Tensor, new: Any, old: Any) -> Any:
    """A structure of tensors where the bool scalar holds, else another one like it."""

    def one(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, new, old)

    return tf.nest.map_structure(one, new, old)


def zero_unless(condition: tf.Tensor, structure: Any) -> Any:
    """A structure of tensors where the bool scalar holds, else zeros."""

    def one(value: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, value, tf.zeros([], value.dtype))

    return tf.nest.map_structure(one, structure)


def _reduce_elements(
    loop_implementation: tff.learning.LoopImplementation,
    step_fn: Callable[..., Any],
    data: Any,
    state: Any,
):
    """Folds `step_fn(state, element)` over a data set."""
    if loop_implementation == tff.learning.LoopImplementation.DATASET_REDUCE:
        if tf.config.functions_run_eagerly():
            raise ValueError(
                "DATASET_REDUCE trains nothing under run_functions_eagerly: call"
                " tf.config.run_functions_eagerly(False), or take another"
                " loop_implementation."
            )

        @tf.function  # AutoGraph does not reach what reduce calls.
        def flat_step_fn(flat: Any, element: Any):
            new_state = step_fn(tf.nest.pack_sequence_as(state, flat), element)
            return tuple(tf.nest.flatten(new_state))

        # Flat, as reduce takes a list for a tensor.
        flat = data.reduce(tuple(tf.nest.flatten(state)), flat_step_fn)
        return tf.nest.pack_sequence_as(state, flat)
    for element in iter(data):
        state = step_fn(state, element)
    return state


def _has_examples(*batch: Any) -> tf.Tensor:
    """Whether a batch has any; oneDNN's convolutions end the process at none."""
    return tf.reduce_all([tf.size(part) > 0 for part in tf.nest.flatten(batch)])


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign(value)


def _scaled(hparams: Any, rate_factor: Any):
    """The hparams with the learning rate times the schedule's factor."""
    if "learning_rate" not in hparams:
        return hparams
    scaled = collections.OrderedDict(hparams)
    rate = scaled["learning_rate"]
    scaled["learning_rate"] = rate * tf.cast(rate_factor, rate.dtype)
    return scaled
