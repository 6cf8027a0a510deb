"""A client's round in four functions: begin, enter, step, finish."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.models import learning_model, roles
from tff_reg.training import (
    data_forms,
    finishing,
    hooks as hooks_lib,
    kept_optimizer,
    local_step as local_step_lib,
    local_training,
    needs as needs_lib,
    numbers,
    personal as personal_lib,
    updater,
)
from tff_reg.training.finishing import ClientOutput, Progress, Visit


class LocalRound:
    """A client's round on a model, which it owns.

    Attributes:
      has_network: Whether the model shows its network.
      compiles: Whether XLA compiles the steps on full batches: if it is asked for, and
        the model shows its network and draws no random numbers, which XLA would draw
        otherwise.
      data_form: The form of the client data.
      counts_classes: Whether a hook reads the client's number of examples per class.
    """

    _step_type = local_step_lib.LocalStep

    def __init__(
        self,
        model_fn: Callable[[], Any],
        training: local_training.LocalTraining,
        weighting: tff.learning.ClientWeighting,
        needs: needs_lib.Needs,
        hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
        references: Optional[Mapping[str, Any]] = None,
    ):
        """Makes the models; `references` are those that terms read, by name."""
        methods, self._training = training.methods, training
        self.data_form, self.counts_classes = training.data_form, needs.class_counts
        self._by_name = {method.name: method for method in methods}
        self._needs, self._hooks = needs, hooks
        self._model = model_fn()
        learning_model.check_model(self._model)
        self._variables = list(self._model.trainable_variables)
        if references is None:
            references = {name: model_fn() for name in needs.references}
        self._references = references
        self._local_step = self._step_type(
            self._model, self._references, methods, needs, self._hooks
        )
        self.has_network = self._local_step.has_network
        self._fixed: dict[str, Any] = {}
        self.compiles = False
        if self.has_network:
            is_random = self._model.network.is_random
            self.compiles = training.compile_steps and not is_random
            self._fixed = roles.facts_of(self._model.network, self._variables)
        self._is_uniform = weighting == tff.learning.ClientWeighting.UNIFORM
        self._personal = personal_lib.of_model(self._model, methods)
        self._finishing = finishing.Finishing(
            self._model, methods, self._is_uniform, self._hooks, self._personal
        )
        self._updater = updater.Updater(training.optimizer, self._variables)
        self._sums_gradients = needs.gradient_sum and not self._updater.is_plain

    def begin(
        self,
        hparams: Any,
        round_num: Any,
        rate_factor: Any,
        received: Any,
        class_counts: Any,
        client: Any,
        server: Any,
    ) -> tuple[Visit, Progress]:
        """Sets the variables to the weights that the client begins with."""
        if self._personal:
            received = self._personal.merged(received, client[personal_lib.KEY])
        self._receive(received, {**server, **client})
        decayed = needs_lib.HParams(hparams)
        if "learning_rate" in hparams:
            decayed = needs_lib.scaled(hparams, rate_factor)
        visit = Visit(
            received=received,
            start=tuple(received.trainable),
            client=client,
            server=server,
            class_counts=class_counts,
            round_num=round_num,
            hparams=hparams,
            decayed=decayed,
        )
        progress = self._at_first(visit)
        visit = self._start(visit, progress)
        locals_ = self._views(visit, progress)
        kept = collections.OrderedDict(
            (name, _tensors(self._hooks.call(method, "begin", locals_[name])))
            for name, method in self._by_name.items()
        )
        return visit, progress._replace(kept=kept)

    def _receive(self, model: Any, memory: Mapping[str, Any]) -> None:
        """Sets the variables of the model and of the reference models."""
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        tf.nest.map_structure(_assign, tf.nest.flatten(weights), tf.nest.flatten(model))
        values = {
            method_lib.GLOBAL: tuple(model.trainable),
            method_lib.EVALUATED: tuple(model.trainable),
            **memory,
        }
        for name, reference in self._references.items():
            for variable, value in zip(reference.trainable_variables, values[name]):
                variable.assign(value)
            # Every reference model has the received frozen layers and statistics.
            for variable, value in zip(
                reference.non_trainable_variables, model.non_trainable
            ):
                variable.assign(value)

    def class_counts(self, data: Any) -> tf.Tensor:
        """Returns the client's number of examples per class, int32 [classes]."""
        return self.data_form.class_counts(data, self._model.network.num_classes)

    def _at_first(self, visit: Visit) -> Progress:
        """Returns the progress before the first step."""
        return Progress(
            optimizer=self._updater.begin(
                visit.decayed, visit.client.get(kept_optimizer.STATE)
            ),
            num_examples=tf.constant(0, tf.int64),
            weighed=tf.constant(0, tf.int64),
            num_steps=tf.constant(0),
            relative_size=tf.constant(1.0, tf.float64),
            epoch_steps=tf.constant(1),
            total_steps=tf.constant(1),
            sums=collections.OrderedDict(
                (name, tf.constant(0.0))
                for name in self._needs.measurement_names([*self._by_name.values()])
            ),
            gradient_sum=self._zeros_if(self._sums_gradients),
            uncorrected_sum=self._zeros_if(self._needs.uncorrected_sum),
            kept={},
        )

    def _zeros_if(self, is_summed: bool) -> tuple[Any, ...]:
        return tuple(tf.zeros_like(v) for v in self._variables if is_summed)

    def _start(self, visit: Visit, progress: Progress) -> Visit:
        """Sets the weights to the result of the hook `start`, if a method has it."""
        for method in self._training.methods:
            if method_lib.overrides(method, "start"):
                local = self._views(visit, progress)[method.name]
                start = self._hooks.call(method, "start", local)
                contract.check(method, "start", "the result", start, visit.start)
                # Copies of values, because `start` may return the variables themselves.
                start = tuple(tf.identity(value) for value in start)
                tf.nest.map_structure(_assign, tuple(self._variables), start)
                visit = visit._replace(start=start)
        return visit

    def enter(self, progress: Progress, element: Any) -> Progress:
        """Sets the client's sizes before it trains on a data element."""
        form, population = self.data_form, self._training.population
        if not isinstance(form, data_forms.WholeClientData):
            return progress
        if self.compiles:
            self._check_labels(element["y"])
        progress = progress._replace(weighed=form.weighed_examples(element))
        if population and population.mean_examples:
            size = tf.cast(form.num_examples(element), tf.float64)
            size /= tf.constant(population.mean_examples, tf.float64)
            progress = progress._replace(relative_size=size)
        if "factor" in form.told:
            progress = progress._replace(factor=element["factor"])
        epoch_steps, total_steps = form.num_steps(element)
        return progress._replace(
            epoch_steps=tf.maximum(epoch_steps, 1), total_steps=total_steps
        )

    def _check_labels(self, labels: Any) -> None:
        """Asserts that labels are classes, which a compiled loss does not check."""
        classes = self._model.network.num_classes or 1
        parts = tf.nest.flatten(labels)
        if classes == 1 or len(parts) > 1 or not parts[0].dtype.is_integer:
            return
        wrong = tf.boolean_mask(parts[0], (parts[0] < 0) | (parts[0] >= classes))
        words = (
            f"label value of {{}} which is outside the valid range of [0, {classes})"
        )
        said = tf.strings.format(words, tf.reduce_max(wrong))
        tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [said])

    def step(
        self,
        visit: Visit,
        progress: Progress,
        batch: Any,
        compute_key: Callable[[], tf.Tensor],
    ) -> Progress:
        """Takes one step."""
        locals_ = self._views(visit, progress)
        gradients, made = self._local_step.gradient(batch, locals_, compute_key)
        if any(made.kept.values()):
            locals_ = self._views(visit, progress, kept=made.kept)
        uncorrected = gradients
        gradients = self._corrected("correct", locals_, gradients)
        if self._training.max_gradient_norm is not None:
            gradients, _ = numbers.clip_by_global_norm(
                gradients, self._training.max_gradient_norm
            )
        kept = collections.OrderedDict(
            (name, self._keep(method, locals_[name], progress.kept[name], gradients))
            for name, method in self._by_name.items()
        )
        gradients = self._corrected("correct_clipped", locals_, gradients)
        factor = self._rate_factor(locals_)

        def added(total: Any, followed: Any) -> tuple[Any, ...]:
            if factor is not None:
                followed = [factor * g for g in followed]
            return tuple(t + g for t, g in zip(total, followed))

        gradient_sum = progress.gradient_sum
        if self._sums_gradients:
            followed = self._updater.followed(progress.optimizer, gradients)
            gradient_sum = added(gradient_sum, followed)
        num_examples = progress.num_examples + made.num_examples
        is_batched = isinstance(self.data_form, data_forms.BatchedData)
        return progress._replace(
            optimizer=self._updater.step(progress.optimizer, gradients, factor),
            num_examples=num_examples,
            weighed=num_examples if is_batched else progress.weighed,
            num_steps=progress.num_steps + 1,
            sums=self._summed(progress.sums, made.measured, made.num_examples),
            gradient_sum=gradient_sum,
            uncorrected_sum=added(progress.uncorrected_sum, uncorrected),
            kept=kept,
        )

    def _rate_factor(self, locals_: Any) -> Any:
        """Returns the product of the methods' `scale_rate`; None if there is none."""
        factor, dtype = None, self._variables[0].dtype
        for name, method in self._by_name.items():
            if method_lib.overrides(method, "scale_rate"):
                given = self._hooks.call(method, "scale_rate", locals_[name])
                given = contract.check(method, "scale_rate", "the factor", given, dtype)
                factor = given if factor is None else factor * given
        return factor

    def _corrected(self, hook: str, locals_: Any, gradients: Any) -> Any:
        for name, method in self._by_name.items():
            if method_lib.overrides(method, hook):
                local, given = locals_[name], list(gradients)
                gradients = self._hooks.call(method, hook, local, given)
                contract.check(method, hook, "the result", gradients, self._variables)
        return gradients

    def _keep(
        self, method: method_lib.Method, local: Any, state: Any, gradients: Any
    ) -> Any:
        if not method_lib.overrides(method, "keep"):
            return state
        # The hook may change the list, and may return variables: both are copied.
        kept = self._hooks.call(method, "keep", local, list(gradients))
        contract.check(method, "keep", "the state", kept, state)
        return _tensors(memories.packed_as(state, kept))

    def _summed(self, sums: Any, measured: Any, batch_examples: Any) -> Any:
        """Adds the measurements of one more batch to the sums."""
        scale = tf.cast(batch_examples, tf.float32)
        named = {
            f"{method}/{name}": value
            for method, own in measured.items()
            for name, value in own.items()
        }
        known = self._needs.measurements
        if known is None:  # In a trial, which finds them.
            known, sums = measured, dict.fromkeys(named, tf.constant(0.0))
        for method in self._training.methods:
            if {*measured[method.name]} != {*known.get(method.name, ())}:
                raise contract.refuse(
                    method, "term", "its measurements differ from call to call."
                )
        return collections.OrderedDict(
            (name, total + scale * tf.cast(named[name], tf.float32))
            for name, total in sums.items()
        )

    def _views(
        self,
        visit: Visit,
        progress: Progress,
        is_last: bool = False,
        kept: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, method_lib.Local]:
        """Makes the `Local` of each method at one point of the training."""
        dtype = self._variables[0].dtype
        size = tf.cast(progress.relative_size, dtype)
        population, steps = self._training.population, progress.num_steps
        if population and population.local_steps:
            steps = tf.constant(population.local_steps, dtype)
        known: dict[str, Any] = {}
        if is_last:
            count = 1 if self._is_uniform else progress.weighed
            known["weight"] = tf.cast(count, dtype)
        if is_last and "learning_rate" in visit.hparams:
            rate = tf.cast(visit.hparams["learning_rate"], dtype)
            known["step_size"] = tf.cast(steps, dtype) * rate
        has_rate = "learning_rate" in visit.decayed
        if is_last and progress.gradient_sum and has_rate:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            scaled = [decayed * total for total in progress.gradient_sum]
            known["scaled_gradient_sum"] = scaled
        if is_last and progress.uncorrected_sum and has_rate:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            known["uncorrected"] = [decayed * t for t in progress.uncorrected_sum]
        first = tf.constant(0)
        if isinstance(self._training.data_form, data_forms.WholeClientData):
            known["total_steps"] = progress.total_steps
            known["epoch"] = progress.num_steps // progress.epoch_steps
            first = known["epoch"] * progress.epoch_steps
        known["begins_epoch"] = tf.equal(progress.num_steps, first)
        found: dict[str, method_lib.Local] = {}
        for method in self._training.methods:
            name = method.name
            local = method_lib.Local(
                weights=self._variables,
                start=visit.start,
                global_weights=tuple(visit.received.trainable),
                memory=memories.own(name, method.client_memory, visit.client),
                server_memory=memories.own(name, method.server_memory, visit.server),
                state=progress.kept.get(name, ()),
                kept=memories.frozen((kept or {}).get(name, {})),
                round_num=visit.round_num,
                class_counts=visit.class_counts,
                relative_size=size,
                relative_weight=tf.ones([], dtype) if self._is_uniform else size,
                num_steps=progress.num_steps,
                num_examples=progress.num_examples,
                hparams=visit.decayed,
                local_steps=steps,
                has_ended=is_last,
                **self._fixed,
                **known,
            )
            found[name] = self._hooks.observe(method, local)
        return found

    def finish(self, visit: Visit, progress: Progress) -> ClientOutput:
        """Ends the training; see `finishing.Finishing.finish`."""
        if kept_optimizer.STATE in visit.client:
            state = self._updater.kept(progress.optimizer)
            kept = {**progress.kept, kept_optimizer.NAME: state}
            progress = progress._replace(kept=kept)
        locals_ = self._views(visit, progress, is_last=True)
        if not self._needs.gradient_sum and not self._updater.is_plain:
            # No hook read the sum of the gradients in the trial, so it is not computed.
            missing = ("taken", "scaled_gradient_sum")
            locals_ = {n: hooks_lib.guarded(v, missing) for n, v in locals_.items()}
        return self._finishing.finish(visit, progress, locals_)


def _tensors(structure: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign(value)
