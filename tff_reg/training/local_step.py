"""One local training step: the gradient of a batch's loss with all its terms."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.data import keys
from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, method as method_lib
from tff_reg.models import forward as forward_lib, learning_model
from tff_reg.training import hook_results, needs as needs_lib

# The weight of labels where no method changed it.
_WHOLE = 1.0
# By the methods' names: the client, and the keys of what is random.
# The network's own key is not a method's.
_NETWORK = "the network's layers"
Locals = Mapping[str, method_lib.Local]
PartKeys = Mapping[str, Any]
Watch = Callable[[method_lib.Method, Any], Any]


def _unwatched(_: method_lib.Method, seen: Any) -> Any:
    return seen


class LocalStep:
    """Computes the gradient of one batch at the current weights.

    Args:
      model: The local model; where a method needs the network, a
        `tff_reg.models.LearningModel`.
      reference_models: Further such models by the names that `step.outputs_of` takes;
        they keep their weights.
      methods: Those of the sum.
      needs: What their hooks need.
      watch: Function of a method and a `Step` giving what the method's hook sees.

    Raises:
      TypeError: If a method needs the network and the model has none.
      ValueError: If the network lacks what a method needs.
    """

    def __init__(
        self,
        model: tff.learning.models.VariableModel,
        reference_models: Mapping[str, tff.learning.models.VariableModel],
        methods: Sequence[method_lib.Method],
        needs: needs_lib.Needs,
        watch: Watch = _unwatched,
    ):
        learning_model.check_model(model)
        for method in methods:
            method_lib.check_model(method, model)
        self.model = model
        self._reference_models = reference_models
        self._methods = tuple(methods)
        self._needs = needs
        self._watch = watch
        self._is_mixed = False
        self.has_network = method_lib.has_network(model)
        with_term = [m for m in methods if method_lib.does(m, "term")]
        # Without a network, a term sees weights only.
        self._apart = [m for m in with_term if self.has_network and m.is_measured_only]
        self._in_step = [m for m in with_term if m not in self._apart]
        self.rule = next((m for m in methods if method_lib.does(m, "gradient")), None)
        self._draws = self.has_network and model.network.is_random

    @property
    def measurement_names(self) -> list[str]:
        """Names of what the methods measure, `<method>/<name>`."""
        return [
            f"{method.name}/{name}"
            for method in self._methods
            for name in self._needs.measurements.get(method.name, ())
        ]

    def gradient(self, batch: Any, locals_: Locals, compute_key: Callable[..., Any]):
        """Runs the batch forward and backward, as often as a method's rule says.

        What is random in the step is drawn once. Metrics, measurements and the
        statistics of norms are those of the first pass.

        Args:
          batch: What the model's `input_spec` says.
          locals_: The client, for each method by its name.
          compute_key: Gives the step's int64 [2] key; called only if a method is
            random.

        Returns:
          The gradients in the order of the model's trainable variables, the number of
          examples (int64), and what each method measured, scalar means over the batch
          by name, by the method's name.

        Raises:
          HookError: If a hook fails or returns what it must not.
        """
        part_keys = self._part_keys(compute_key)
        measured_apart = self._measure_apart(batch, locals_, part_keys)
        gradient_at = _GradientAt(self, batch, locals_, part_keys)
        if self.rule is None:
            gradients = gradient_at()
        else:
            own = locals_[self.rule.name]
            gradients = contract.call(self.rule, "gradient", own, gradient_at)
            gradients = contract.check_like(
                self.rule, "gradient", gradients, self.model.trainable_variables
            )
        if gradient_at.measured is None:
            raise contract.refuse(self.rule, "gradient", "it never calls gradient_at.")
        measured = gradient_at.measured
        for name, own in measured_apart.items():
            measured[name] = {**own, **measured[name]}
        return gradients, gradient_at.num_examples, measured

    def gradient_of(
        self,
        batch: Any,
        locals_: Locals,
        part_keys: PartKeys,
        is_first: bool,
        perturbation: Optional[Sequence[Any]],
        loss: Optional[Callable[[Any], Any]],
    ):
        """The gradient of one pass at perturbed weights, which then go back.

        Args:
          batch: As for `gradient`.
          locals_: As for `gradient`.
          part_keys: The methods' keys by name.
          is_first: Whether the pass counts for metrics and statistics.
          perturbation: What is added to the weights, one tensor each, or None.
          loss: Function of a `Step` giving the loss, or None for the whole one.

        Returns:
          As `gradient`.
        """
        start = self._move(perturbation)
        result = self._pass(batch, locals_, part_keys, is_first, loss)
        self._move_back(start)
        return result

    def _move(self, perturbation: Optional[Sequence[Any]]):
        """Perturbs the weights; returns what they were, or None without one."""
        if perturbation is None:
            return None
        variables = self.model.trainable_variables
        contract.check_like(self.rule, "gradient", perturbation, variables)
        start = [tf.identity(v) for v in variables]
        for variable, moved in zip(variables, perturbation):
            variable.assign_add(moved)
        return start

    def _move_back(self, start: Optional[Sequence[Any]]):
        if start is not None:
            for variable, value in zip(self.model.trainable_variables, start):
                variable.assign(value)

    def _pass(
        self,
        batch: Any,
        locals_: Locals,
        part_keys: PartKeys,
        is_first: bool,
        loss: Optional[Callable[[Any], Any]],
    ):
        """The gradient at the present weights, and what was measured."""
        weights = list(self.model.trainable_variables)
        measured: dict[str, dict[str, Any]] = {m.name: {} for m in self._methods}
        is_trial = self._watch is not _unwatched
        with tf.GradientTape(is_trial, watch_accessed_variables=False) as tape:
            tape.watch(weights)
            if self.has_network:
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
            if loss is not None:
                of = loss(self._step_of(self.rule, step, locals_, part_keys))
        gradients = tape.gradient(of, weights)
        reaches = is_trial and any(gradient is not None for gradient in gradients)
        for method, term in zip(self._in_step, terms):
            if reaches and not method.is_measured_only and term.weighted != 0:
                own = tape.gradient(term.weighted, weights)
                if all(gradient is None for gradient in own):
                    why = "the term reaches no weight, so that it would train nothing."
                    raise contract.refuse(method, "term", why)
        unreached = [v.name for v, g in zip(weights, gradients) if g is None]
        # Run eagerly, a branch that is dropped in this step is not there.
        if unreached and loss is None and not tf.executing_eagerly():
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
            measured[method.name] = {**own, **measured[method.name]}
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

        if tf.executing_eagerly():
            return measure()
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
        return [
            hook_results.term(
                method,
                contract.call(
                    method, "term", self._step_of(method, step, locals_, part_keys)
                ),
                step.task_loss.dtype,
            )
            for method in methods
        ]

    def _step_of(
        self,
        method: method_lib.Method,
        step: method_lib.Step,
        locals_: Locals,
        part_keys: PartKeys,
    ):
        """The step as a method sees it."""
        local = locals_[method.name]
        names = memories.keys(method.name, method.client_memory)

        def outputs_of(name: str) -> Any:
            return step.outputs_of(names.get(name, name))

        def classify_from(name: str, features: Any) -> Any:
            return step.classify_from(names.get(name, name), features)

        own = dataclasses.replace(
            step,
            weights=list(self.model.trainable_variables),
            start=local.start,
            global_weights=local.global_weights,
            outputs_of=outputs_of,
            classify_from=classify_from,
            class_counts=local.class_counts if self._needs.class_counts else None,
            key=part_keys[method.name],
        )
        if self._watch is _unwatched and method.name not in self._needs.activations:
            if step.outputs is not None:
                missing = ("activations",)
                outputs = needs_lib.guarded(step.outputs, missing)
                own = dataclasses.replace(own, outputs=outputs)
        own = self._watch(method, own)
        if self._is_mixed:
            own = needs_lib.guarded(own, ("labels",), needs_lib.MIXED)
        return own

    def _part_keys(self, compute_key: Callable[[], tf.Tensor]):
        """The key of every method, None for those that draw nothing."""
        part_keys = dict.fromkeys((m.name for m in self._methods), None)
        random = [m.name for m in self._methods if m.name in self._needs.keys]
        if self._draws:
            random.append(_NETWORK)
        if random:
            key = compute_key()
            for name in random:
                part_keys[name] = keys.part_key(key, name)
        return part_keys

    def _run_model(self, batch: Any):
        """Runs a model that does not show its network; in a trial, without a batch."""
        none: Any = None
        if batch is None:
            loss = tf.zeros([], self.model.trainable_variables[0].dtype)
            return method_lib.Step(network=none, outputs=none, task_loss=loss), 1
        result = self.model.forward_pass(batch, training=True)
        num_examples = result.num_examples
        if num_examples is None:
            num_examples = tf.shape(result.predictions)[0]
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
        model, network = self.model, self.model.network
        changed = method_lib.Batch(batch["x"], [(batch["y"], _WHOLE)])
        added: list[tf.Tensor] = []
        forward = forward_lib.ForwardPass(
            training=True,
            update_statistics=is_first,
            record_activations=any(
                m.name in self._needs.activations for m in with_term
            ),
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
            changed, from_batch = hook_results.changed(
                method, "change_batch", changed, key
            )
            forward, from_pass = hook_results.changed(
                method, "change_pass", forward, network, key
            )
            measured[method.name] = {**from_batch, **from_pass}
        outputs = network(changed.features, forward)
        labels = changed.targets[0][0]
        self._is_mixed = len(changed.targets) > 1

        def compute_loss(logits: tf.Tensor):
            for method in self._methods:
                if method_lib.does(method, "change_logits"):
                    counts = locals_[method.name].class_counts
                    changed_logits = contract.call(
                        method, "change_logits", logits, counts
                    )
                    (logits,) = contract.check_like(
                        method, "change_logits", [changed_logits], [logits], "batch"
                    )
            if len(changed.targets) == 1 and changed.targets[0][1] is _WHOLE:
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


class _GradientAt:
    """The function of that name that the hook `gradient` gets.

    Attributes:
      num_examples: Of the batch, after the first call.
      measured: What methods measured in the first call; None before it.
    """

    def __init__(
        self, local_step: LocalStep, batch: Any, locals_: Locals, part_keys: PartKeys
    ):
        self._step = local_step
        self._arguments = (batch, locals_, part_keys)
        self.num_examples: Any = None
        self.measured: Any = None

    def __call__(
        self,
        perturbation: Optional[Sequence[Any]] = None,
        loss: Optional[Callable[[Any], Any]] = None,
    ) -> list[Any]:
        is_first = self.measured is None
        if loss is not None or not is_first:
            # Such a model counts a batch at each pass, and gives its own loss alone.
            method_lib.require_network(self._step.rule, self._step.model)
        gradients, num_examples, measured = self._step.gradient_of(
            *self._arguments, is_first, perturbation, loss
        )
        if is_first:
            self.num_examples, self.measured = num_examples, measured
        return gradients
