"""A client's round in three functions: begin, step, finish."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.training import (
    data_forms,
    hook_results,
    local_step as local_step_lib,
    local_training,
    needs as needs_lib,
    numbers,
    optimizers,
)
from tff_reg.training.client_states import ClientOutput, Progress, Visit

REJECTED = "rejected_clients"
# Clients that only a method's own numbers made rejected, `<method>/not_finite`.
NOT_FINITE = "not_finite"
# What the server sends, where that is more than the model.
MODEL = "model"


class LocalRound:
    """The round of a client, whose model and variables it holds.

    Args:
      model_fn: Makes the model.
      training: What the client does.
      weighting: A `tff.learning.ClientWeighting`.
      needs: What the methods' hooks need.
      reads: Where a trial notes what the hooks read; None if this is no trial.

    Attributes:
      has_network: Whether the model shows its network.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        training: local_training.LocalTraining,
        weighting: tff.learning.ClientWeighting,
        needs: needs_lib.Needs,
        reads: Optional[needs_lib.Reads] = None,
    ):
        self._training = training
        self._weighting = weighting
        self._by_name = {method.name: method for method in training.methods}
        self._needs = needs
        self._reads = reads
        self._model = model_fn() if reads is None else reads.model
        self._references: Mapping[str, Any] = {
            name: model_fn() for name in needs.references
        }
        if reads is None:
            self._local_step = local_step_lib.LocalStep(
                self._model, self._references, training.methods, needs
            )
        else:
            names = needs_lib.reference_names(
                training.methods, self._model.trainable_variables
            )
            self._local_step = local_step_lib.LocalStep(
                self._model,
                needs_lib.References(self._model, names, reads),
                training.methods,
                needs,
                reads.watch_step,
            )
        self.has_network = self._local_step.has_network
        self._variables = list(self._model.trainable_variables)
        head = self._model.network.head_variables if self.has_network else ()
        self._in_head = tuple(any(v is h for h in head) for v in self._variables)
        self._updater = optimizers.Updater(training.optimizer, self._variables)
        self._sums_gradients = needs.gradient_sum and not self._updater.is_plain

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
          data: The client's `tf.data.Dataset`; None in a trial.
          client: The client's memories, by name.
          server: The memories that the server sent, by name.

        Returns:
          What stays as it is during the training, and what does not.
        """
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        tf.nest.map_structure(
            _assign, tf.nest.flatten(weights), tf.nest.flatten(received[MODEL])
        )
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
        if data is None:
            class_counts = needs_lib.class_counts(self._model)
        elif self._needs.class_counts:
            num_classes = self._model.network.num_classes
            class_counts = self._training.data_form.class_counts(data, num_classes)
        visit = Visit(
            received=received[MODEL],
            start=tuple(received[MODEL].trainable),
            client=client,
            server=server,
            class_counts=class_counts,
            hparams=hparams,
            decayed=_scaled(hparams, rate_factor),
        )
        progress = self._at_first(visit)
        visit = self._start(visit, progress)
        locals_ = self._locals(visit, progress)
        kept = collections.OrderedDict(
            (name, _tensors(contract.call(method, "begin", locals_[name])))
            for name, method in self._by_name.items()
        )
        if self._reads is not None:
            pairs = zip(self._variables, visit.start)
            if not all(bool(tf.reduce_all(tf.equal(v, s))) for v, s in pairs):
                named = [m for m in self._by_name.values() if method_lib.does(m, "begin")]
                why = "it assigns to the weights: return them from the hook start."
                raise contract.refuse(named[-1], "begin", why)
        return visit, progress._replace(kept=kept)

    def _at_first(self, visit: Visit) -> Progress:
        """No steps so far."""
        return Progress(
            optimizer=self._updater.begin(visit.decayed),
            num_examples=tf.constant(0, tf.int64),
            num_steps=tf.constant(0),
            relative_size=tf.constant(1.0, tf.float64),
            sums=collections.OrderedDict(
                (name, tf.constant(0.0)) for name in self._local_step.measurement_names
            ),
            gradient_sum=(
                tuple(tf.zeros_like(v) for v in self._variables)
                if self._sums_gradients
                else ()
            ),
            kept={},
        )

    def _start(self, visit: Visit, progress: Progress) -> Visit:
        """Takes the client where the method that says so lets it begin."""
        for method in self._training.methods:
            if method_lib.does(method, "start"):
                local = self._locals(visit, progress)[method.name]
                start = contract.call(method, "start", local)
                start = contract.check_like(method, "start", start, visit.start)
                # Variables, read before they change.
                start = tuple(tf.identity(value) for value in start)
                tf.nest.map_structure(_assign, tuple(self._variables), start)
                visit = visit._replace(start=start)
        return visit

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
        gradients, batch_examples, measured = self._local_step.gradient(
            batch, locals_, compute_key
        )
        gradients = self._corrected("correct", locals_, gradients)
        if self._training.max_gradient_norm is not None:
            gradients, _ = numbers.clip_by_global_norm(
                gradients, self._training.max_gradient_norm
            )
        kept = collections.OrderedDict(
            (name, self._keep(method, locals_[name], gradients))
            for name, method in self._by_name.items()
        )
        gradients = self._corrected("correct_clipped", locals_, gradients)
        gradient_sum = progress.gradient_sum
        if self._sums_gradients:
            followed = self._updater.followed(progress.optimizer, gradients)
            gradient_sum = tuple(t + g for t, g in zip(gradient_sum, followed))
        return progress._replace(
            optimizer=self._updater.step(progress.optimizer, gradients),
            num_examples=progress.num_examples + batch_examples,
            num_steps=progress.num_steps + 1,
            sums=self._summed(progress.sums, measured, batch_examples),
            gradient_sum=gradient_sum,
            kept=kept,
        )

    def _corrected(self, hook: str, locals_: Any, gradients: Any) -> Any:
        for name, method in self._by_name.items():
            if method_lib.does(method, hook):
                gradients = contract.call(method, hook, locals_[name], gradients)
                gradients = contract.check_like(
                    method, hook, gradients, self._variables
                )
        return gradients

    def _keep(self, method: method_lib.Method, local: Any, gradients: Any) -> Any:
        if not method_lib.does(method, "keep"):
            return local.state
        # Lists of its own, and the values of now, should it return the weights themselves.
        kept = contract.call(method, "keep", local, list(gradients))
        kept = contract.check_structure(method, "keep", "the state", kept, local.state)
        return _tensors(kept)

    def _summed(self, sums: Any, measured: Any, batch_examples: Any) -> Any:
        """The measurements' sums with those of one more batch."""
        if self._reads is not None:
            self._reads.measured = measured
            return sums
        scale = tf.cast(batch_examples, tf.float32)
        named = {
            f"{method}/{name}": value
            for method, own in measured.items()
            for name, value in own.items()
        }
        for method in self._training.methods:
            names = [*measured[method.name]]
            if sorted(names) != sorted(self._needs.measurements.get(method.name, ())):
                raise contract.refuse(
                    method, "term", "its measurements differ from call to call."
                )
        return collections.OrderedDict(
            (name, total + scale * tf.cast(named[name], tf.float32))
            for name, total in sums.items()
        )

    def finish(self, visit: Visit, progress: Progress) -> ClientOutput:
        """Ends the training.

        Args:
          visit: What `begin` gave.
          progress: How far the training came.

        Returns:
          The client's output. A client whose update, memory, upload or term is not
          finite counts as `rejected_clients`, and as `<method>/not_finite` where only a
          method's part is not; it counts in nothing else, and keeps its memory, as one
          without examples does.

        Raises:
          HookError: If a hook fails or returns what it must not.
        """
        finished = self._finished(visit, progress)
        update = self._update(visit, progress, finished)
        is_finite = numbers.all_finite(update)
        blamed = {
            name: tf.logical_and(
                is_finite, tf.logical_not(self._all_finite(name, own, progress))
            )
            for name, own in finished.items()
            if self._has_part(name)
        }
        is_finite = tf.reduce_all([is_finite, *map(tf.logical_not, blamed.values())])
        update = numbers.zero_unless(is_finite, update)
        uploads: dict[str, Any] = {}
        new_memory: dict[str, Any] = {}
        for name, own in finished.items():
            keys = memories.keys(name, self._by_name[name].client_memory)
            new_memory.update((keys[each], own.memory[each]) for each in own.memory)
            uploads.update((f"{name}/{each}", own.upload[each]) for each in own.upload)
        has_trained = tf.logical_and(is_finite, progress.num_examples > 0)
        client = collections.OrderedDict(
            (name, numbers.where(has_trained, new_memory.get(name, old), old))
            for name, old in visit.client.items()
        )
        uploads = collections.OrderedDict(
            (name, numbers.zero_unless(has_trained, uploads[name]))
            for name in sorted(uploads)
        )
        return ClientOutput(
            result=tff.learning.templates.ClientResult(
                update=update, update_weight=self._client_weight(progress, is_finite)
            ),
            metrics=self._metrics(progress, is_finite, blamed),
            client=client,
            uploads=uploads,
            has_trained=tf.cast(has_trained, tf.int32),
        )

    def _finished(
        self, visit: Visit, progress: Progress
    ) -> dict[str, method_lib.Finished]:
        """What each method's `finish` returns, by the method's name."""
        locals_ = self._locals(visit, progress, is_last=True)
        found: dict[str, method_lib.Finished] = {}
        for name, method in self._by_name.items():
            own = method_lib.Finished()
            if method_lib.does(method, "finish"):
                own = contract.call(method, "finish", locals_[name])
            found[name] = hook_results.finished(
                method, own, memories.own(name, method.client_memory, visit.client)
            )
        return found

    def _update(
        self,
        visit: Visit,
        progress: Progress,
        finished: Mapping[str, method_lib.Finished],
    ) -> Any:
        """a_i - w_i of weights and statistics, scaled as the methods say."""
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        start = tf.nest.pack_sequence_as(visit.received.trainable, visit.start)
        before, after = (
            tff.learning.models.ModelWeights(trainable, numbers.floats(w.non_trainable))
            for trainable, w in (
                (start, visit.received),
                (weights.trainable, weights),
            )
        )
        update = tf.nest.map_structure(tf.subtract, before, after)
        for own in finished.values():
            if own.scale is not None:
                # Without a step there is nothing to scale, perhaps by 1 / 0.
                one = tf.ones_like(own.scale)
                factor = tf.where(progress.num_steps > 0, own.scale, one)
                scaled = [factor * u for u in update.trainable]
                update = tff.learning.models.ModelWeights(scaled, update.non_trainable)
        return update if after.non_trainable else update.trainable

    def _has_part(self, name: str) -> bool:
        """Whether a method has something by itself that may not be finite."""
        method = self._by_name[name]
        has_term = method_lib.does(method, "term") and not method.is_measured_only
        return has_term or bool(method.client_memory or method.uploads)

    def _all_finite(self, name: str, own: method_lib.Finished, progress: Progress):
        parts: list[Any] = [own.memory, own.upload]
        if f"{name}/term" in progress.sums and not self._by_name[name].is_measured_only:
            parts.append(progress.sums[f"{name}/term"])
        return numbers.all_finite(parts)

    def _client_weight(self, progress: Progress, is_finite: tf.Tensor) -> tf.Tensor:
        if self._weighting == tff.learning.ClientWeighting.UNIFORM:
            weight = tf.cast(progress.num_examples > 0, tf.float32)
        else:
            weight = tf.cast(progress.num_examples, tf.float32)
        return tf.where(is_finite, weight, 0.0)

    def _metrics(
        self, progress: Progress, is_finite: tf.Tensor, blamed: Mapping[str, tf.Tensor]
    ) -> dict[str, Any]:
        """The client's metrics, none where it is rejected."""
        model = self._model

        def reset_metrics():
            model.reset_metrics()
            return tf.no_op()

        tf.cond(is_finite, tf.no_op, reset_metrics)
        metrics = collections.OrderedDict(model.report_local_unfinalized_metrics())
        for name, total in progress.sums.items():
            examples = tf.cast(progress.num_examples, tf.float32)
            metrics[name] = [
                tf.where(is_finite, total, 0.0),
                tf.where(is_finite, examples, 0.0),
            ]
        for name, is_blamed in blamed.items():
            metrics[f"{name}/{NOT_FINITE}"] = tf.cast(is_blamed, tf.int32)
        metrics[REJECTED] = tf.cast(tf.logical_not(is_finite), tf.int32)
        return metrics

    @property
    def is_trial(self) -> bool:
        """Whether reads are noted."""
        return self._reads is not None

    @property
    def measurement_names(self) -> list[str]:
        """Names of what the methods measure, `<method>/<name>`."""
        return self._local_step.measurement_names

    @property
    def blamed(self) -> list[str]:
        """Names of the methods that have a metric `<method>/not_finite`."""
        return [name for name in self._by_name if self._has_part(name)]

    def _locals(
        self, visit: Visit, progress: Progress, is_last: bool = False
    ) -> dict[str, method_lib.Local]:
        """The client, as each method sees it."""
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
        if is_last and self._sums_gradients and "learning_rate" in visit.decayed:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            scaled_sum = [decayed * total for total in progress.gradient_sum]
        locals_ = {
            name: method_lib.Local(
                weights=self._variables,
                start=visit.start,
                global_weights=tuple(visit.received.trainable),
                memory=memories.own(name, method.client_memory, visit.client),
                server_memory=memories.own(name, method.server_memory, visit.server),
                state=progress.kept.get(name, ()),
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
            for name, method in self._by_name.items()
        }
        if self._reads is None:
            # A gradient sum that the trial did not see read is not there.
            if not is_last or self._needs.gradient_sum or self._updater.is_plain:
                return locals_
            missing = ("taken", "scaled_gradient_sum")
            return {n: needs_lib.guarded(v, missing) for n, v in locals_.items()}
        return {
            name: self._reads.watch_local(self._by_name[name], local)
            for name, local in locals_.items()
        }


def _tensors(structure: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign(value)


def _scaled(hparams: Any, rate_factor: Any):
    """The hparams with the learning rate times the schedule's factor."""
    if "learning_rate" not in hparams:
        return needs_lib.HParams(hparams)
    scaled = needs_lib.HParams(hparams)
    rate = scaled["learning_rate"]
    scaled["learning_rate"] = rate * tf.cast(rate_factor, rate.dtype)
    return scaled
