"""One local training step: the gradient of a batch's loss with all its terms."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.data import keys
from tff_reg.lazy import tff
from tff_reg.methods import method as method_lib
from tff_reg.models import block_model, forward as forward_lib, learning_model

# By the methods' names: where the client stands, and the keys of what is random.
# The network's own key is not a method's.
_NETWORK = "the network's layers"
Locals = Mapping[str, method_lib.Local]
PartKeys = Mapping[str, Any]


class LocalStep:
    """Computes the gradient of one batch at the current weights.

    Args:
      model: The local model; where a method needs the network, a
        `tff_reg.models.LearningModel`.
      reference_models: Further such models by the names that the methods'
        `reference_models` hold; they keep their weights.
      methods: Those of the sum.

    Raises:
      TypeError: If a method needs the network and the model has none.
      ValueError: If the network lacks what a method needs.
    """

    def __init__(
        self,
        model: tff.learning.models.VariableModel,
        reference_models: Mapping[str, tff.learning.models.VariableModel],
        methods: Sequence[method_lib.Method],
    ):
        learning_model.check_model(model)
        for method in methods:
            method_lib.check_model(method, model)
        self._model = model
        self._reference_models = dict(reference_models)
        self._methods = tuple(methods)
        self._has_network = method_lib.has_network(model)
        with_term = [m for m in methods if method_lib.does(m, "term")]
        # Without a network, a term sees weights only.
        self._apart = [m for m in with_term if self._has_network and m.is_measured_only]
        self._in_step = [m for m in with_term if m not in self._apart]
        self._displacing = next((m for m in methods if m.displaces), None)
        self._draws = self._has_network and model.network.is_random

    @property
    def measurement_names(self) -> list[str]:
        """Names of what the methods measure, `<method>/<name>`."""
        names: list[str] = []
        for method in self._methods:
            own = [*method.measurement_names]
            if method_lib.does(method, "term"):
                own = ["term", "share", *own]
            names += [f"{method.name}/{name}" for name in own]
        return names

    def gradient(self, batch: Any, locals_: Locals, compute_key: Callable[..., Any]):
        """Runs the batch forward and backward, twice where a method displaces weights.

        What is random in the step is drawn once. Metrics, measurements and the
        statistics of norms are those of the first pass.

        Args:
          batch: What the model's `input_spec` says.
          locals_: Where the client stands, for each method by its name.
          compute_key: Gives the step's int64 [2] key; called only if a method is
            random.

        Returns:
          The gradients in the order of the model's trainable variables, the number of
          examples (int64), and an `OrderedDict` of measurements, scalar means over the
          batch.
        """
        part_keys = self._part_keys(compute_key)
        measured_apart = self._measure_apart(batch, locals_, part_keys)
        displacing = self._displacing
        displacement = None
        if displacing is not None and not displacing.displaces_by_gradient:
            displacement = displacing.displacement(locals_[displacing.name], None)
        start = self._move(displacement)
        gradients, num_examples, measured = self._pass(
            batch, locals_, part_keys, is_first=True
        )
        self._move_back(start)
        if displacing is not None and displacing.displaces_by_gradient:
            own = locals_[displacing.name]
            start = self._move(displacing.displacement(own, gradients))
            gradients, _, _ = self._pass(batch, locals_, part_keys, is_first=False)
            self._move_back(start)
        for name, own in measured_apart.items():
            measured[name].update(own)
        measurements: dict[str, tf.Tensor] = collections.OrderedDict()
        for full_name in self.measurement_names:
            name, _, what = full_name.partition("/")
            measurements[full_name] = tf.cast(measured[name][what], tf.float32)
        return gradients, num_examples, measurements

    def _move(self, displacement: Optional[Sequence[Any]]):
        """Displaces the weights; returns what they were, or None without one."""
        if displacement is None:
            return None
        variables = self._model.trainable_variables
        start = [tf.identity(v) for v in variables]
        for variable, moved in zip(variables, displacement):
            variable.assign_add(moved)
        return start

    def _move_back(self, start: Optional[Sequence[Any]]):
        if start is not None:
            for variable, value in zip(self._model.trainable_variables, start):
                variable.assign(value)

    def _pass(self, batch: Any, locals_: Locals, part_keys: PartKeys, is_first: bool):
        """The gradient at the present weights, and what was measured."""
        weights = list(self._model.trainable_variables)
        measured: dict[str, dict[str, Any]] = {m.name: {} for m in self._methods}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            if self._has_network:
                step, num_examples = self._run_network(
                    batch, locals_, part_keys, measured, tape, self._in_step, is_first
                )
            else:
                step, num_examples = self._run_model(batch)
            total = step.task_loss
            terms = self._terms(self._in_step, step, locals_, part_keys)
            for method, term in zip(self._in_step, terms):
                if not method.is_measured_only:
                    total += term.weighted
            of = total
            rule = self._displacing
            if (
                is_first
                and rule
                and rule.displaces_by_gradient
                and method_lib.does(rule, "displacement_loss")
            ):
                own = self._step_of(rule, step, locals_, part_keys)
                of = rule.displacement_loss(own)
        gradients = tape.gradient(of, weights)
        unreached = [v.name for v, g in zip(weights, gradients) if g is None]
        # Run eagerly, a branch that is dropped in this step is not there.
        if unreached and of is total and not tf.executing_eagerly():
            raise ValueError(
                f"The loss does not reach the weights {', '.join(unreached)}, so that"
                " they would never be trained: leave them out of the model, or make"
                " them not trainable."
            )
        gradients = [
            tf.zeros_like(v) if g is None else g for v, g in zip(weights, gradients)
        ]
        for method, term in zip(self._in_step, terms):
            share = tf.math.divide_no_nan(term.weighted, total)
            own = dict(term=term.raw, share=share, **term.measurements)
            measured[method.name].update(own)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return gradients, tf.cast(num_examples, tf.int64), measured

    def _measure_apart(
        self, batch: Any, locals_: Locals, part_keys: PartKeys
    ) -> dict[str, dict[str, Any]]:
        """What terms of strength 0 measure, by name, in a pass of their own.

        In a function that is not inlined: what reads the step's own pass changes which
        of its operations TensorFlow fuses, and with that last bits of the gradient.
        """
        if not self._apart:
            return {}

        def measure():
            records: dict[str, dict[str, Any]] = {m.name: {} for m in self._methods}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                step, _ = self._run_network(
                    batch, locals_, part_keys, records, tape, self._apart, False
                )
                terms = self._terms(self._apart, step, locals_, part_keys)
            return {
                method.name: dict(term=term.raw, share=0.0, **term.measurements)
                for method, term in zip(self._apart, terms)
            }

        attributes = {"_noinline": True}
        return tf.function(measure, experimental_attributes=attributes)()

    def _terms(
        self,
        methods: Sequence[method_lib.Method],
        step: method_lib.Step,
        locals_: Locals,
        part_keys: PartKeys,
    ):
        """The `Term` of each of the methods."""
        terms: list[Any] = []
        for method in methods:
            try:
                own = self._step_of(method, step, locals_, part_keys)
                terms.append(method.term(own))
            except block_model.MissingCapabilityError as error:
                # AutoGraph passes on the exceptions that Python has, no others.
                raise ValueError(f"{method.name}: {error}") from None
        return terms

    def _step_of(
        self,
        method: method_lib.Method,
        step: method_lib.Step,
        locals_: Locals,
        part_keys: PartKeys,
    ):
        """The step as a method sees it."""
        local = locals_[method.name]
        return dataclasses.replace(
            step,
            weights=list(self._model.trainable_variables),
            global_weights=local.cloud,
            class_counts=local.class_counts,
            key=part_keys[method.name],
        )

    def _part_keys(self, compute_key: Callable[[], tf.Tensor]):
        """The key of every method, None for those that draw nothing."""
        part_keys = dict.fromkeys((m.name for m in self._methods), None)
        random = [m.name for m in self._methods if m.is_random]
        if self._draws:
            random.append(_NETWORK)
        if random:
            key = compute_key()
            for name in random:
                part_keys[name] = keys.part_key(key, name)
        return part_keys

    def _run_model(self, batch: Any):
        """Runs a model that does not show its network."""
        result = self._model.forward_pass(batch, training=True)
        num_examples = result.num_examples
        if num_examples is None:
            num_examples = tf.shape(result.predictions)[0]
        none: Any = None
        step = method_lib.Step(network=none, outputs=none, task_loss=result.loss)
        return step, num_examples

    def _run_network(
        self,
        batch: Any,
        locals_: Locals,
        part_keys: PartKeys,
        measured: dict[str, dict[str, Any]],
        tape: tf.GradientTape,
        with_term: Sequence[method_lib.Method],
        is_first: bool,
    ):
        """Runs the local network for the terms of some methods."""
        model, network = self._model, self._model.network
        changed = method_lib.Batch(batch["x"], [(batch["y"], 1.0)])
        added: list[tf.Tensor] = []
        forward = forward_lib.ForwardPass(
            training=True,
            update_statistics=is_first,
            record_activations=any(m.records_activations for m in with_term),
            key=part_keys.get(_NETWORK),
            keep_loss=added.append,
        )
        # Reference models train as local ones do, on the batch's statistics, but keep
        # none.
        constant_pass = forward_lib.ForwardPass(
            training=True, update_statistics=False, key=forward.key
        )
        passes = {method_lib.EVALUATED: forward_lib.ForwardPass(training=False)}
        for method in self._methods:
            key = part_keys[method.name]
            changed, from_batch = method.change_batch(changed, key)
            forward, from_pass = method.change_pass(forward, network, key)
            measured[method.name] = {**from_batch, **from_pass}
        outputs = network(changed.features, forward)
        labels = changed.targets[0][0]

        def compute_loss(logits: tf.Tensor):
            for method in self._methods:
                if method_lib.does(method, "change_logits"):
                    counts = locals_[method.name].class_counts
                    logits = method.change_logits(logits, counts)
            if len(changed.targets) == 1:
                return model.loss_fn(labels, logits)
            return tf.add_n([w * model.loss_fn(y, logits) for y, w in changed.targets])

        @functools.cache
        def outputs_of(name: str):
            with tape.stop_recording():  # No gradient is ever taken through them.
                reference = self._reference_models[name].network
                return reference(changed.features, passes.get(name, constant_pass))

        def classify_from(name: str, features: Any):
            if name == method_lib.LOCAL:
                again = dataclasses.replace(
                    forward,
                    update_statistics=False,
                    record_activations=False,
                    keep_loss=None,
                )
                return network.classify_from(features, again)
            reference = self._reference_models[name].network
            return reference.classify_from(features, passes.get(name, constant_pass))

        task_loss = compute_loss(outputs.logits)
        if added:  # The network's own, of its weights and activities.
            task_loss += tf.add_n(added)
        if is_first:
            model.update_metrics(labels, outputs.logits, task_loss)
        step = method_lib.Step(
            network=network,
            outputs=outputs,
            features=changed.features,
            labels=labels,
            task_loss=task_loss,
            compute_loss=compute_loss,
            outputs_of=outputs_of,
            classify_from=classify_from,
        )
        return step, tf.shape(tf.nest.flatten(outputs.logits)[0])[0]
