"""A local training step: the gradient of a batch's loss with all terms."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.data import keys
from tff_reg.lazy import tff
from tff_reg.methods import checks, contract, memories, method as method_lib
from tff_reg.models import forward as forward_lib
from tff_reg.training import (
    hooks as hooks_lib,
    needs as needs_lib,
)

# The weight of a batch's labels unless a method mixes examples.
_WHOLE = 1.0
# The name of the network's random key, beside the methods' keys.
_NETWORK = "the network's layers"
# By the method's name: the method's view of the client, and its random key.
Locals = Mapping[str, method_lib.Local]
PartKeys = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Pass:
    """The first pass of a step, beside its gradient.

    Attributes:
      num_examples: Number of examples in the batch, int64.
      measured: For each method's name, its measurements by name.
      kept: For each method's name, what its term and gradient keep, by name.
    """

    num_examples: Any
    measured: dict[str, dict[str, Any]]
    kept: dict[str, dict[str, Any]]


class LocalStep:
    """Computes the gradient of one batch at the current weights."""

    def __init__(
        self,
        model: tff.learning.models.VariableModel,
        reference_models: Mapping[str, tff.learning.models.VariableModel],
        methods: Sequence[method_lib.Method],
        needs: needs_lib.Needs,
        hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
    ):
        for method in methods:
            checks.check_model(method, model)
        self.model = model
        self._reference_models = reference_models
        self._methods = tuple(methods)
        self._needs = needs
        self._hooks = hooks
        self.has_network = checks.has_network(model)
        self._with_term = [m for m in methods if method_lib.overrides(m, "term")]
        self.rule: Any = next(
            (m for m in methods if method_lib.overrides(m, "gradient")), None
        )
        self._draws = self.has_network and model.network.is_random

    def gradient(
        self, batch: Any, locals_: Locals, compute_key: Callable[..., Any]
    ) -> tuple[list[Any], Pass]:
        """Runs the batch forward and backward, once or as the hook `gradient` asks.

        All passes of the step use the same random numbers. Metrics, measurements and
        the statistics of norms come from the first pass.
        """
        part_keys = self._part_keys(compute_key)
        if self.rule is None:
            return self.run(batch, locals_, part_keys, is_first=True, loss=None)
        gradient_at = _GradientAt(self, batch, locals_, part_keys)
        own = locals_[self.rule.name]
        given = self._hooks.call(self.rule, "gradient", own, gradient_at)
        given = hooks_lib.change_of(self.rule, "gradient", given)
        weights = self.model.trainable_variables
        contract.check(self.rule, "gradient", "the result", given.value, weights)
        first = gradient_at.first
        if first is None:
            raise contract.refuse(self.rule, "gradient", "it never calls gradient_at.")
        first.measured[self.rule.name].update(given.measurements)
        first.kept[self.rule.name].update(given.kept)
        return list(given.value), first

    def move(self, perturbation: Optional[Sequence[Any]]) -> list[tuple[Any, Any]]:
        """Perturbs the weights; returns pairs of a weight's old and new value."""
        if perturbation is None:
            return []
        variables = self.model.trainable_variables
        what = "the perturbation"
        contract.check(self.rule, "gradient", what, perturbation, variables)
        start = [tf.identity(v) for v in variables]
        for variable, moved in zip(variables, perturbation):
            variable.assign_add(moved)
        sets = self.has_network and self.model.network.sets_trained_weights
        moved = [tf.identity(v) for v in variables] if sets else variables
        return list(zip(start, moved))

    def move_back(self, places: Sequence[tuple[Any, Any]]):
        """Takes the perturbation back, not what a layer set during the pass."""
        for variable, (value, moved) in zip(self.model.trainable_variables, places):
            variable.assign(value if moved is variable else value + (variable - moved))

    def run(
        self,
        batch: Any,
        locals_: Locals,
        part_keys: PartKeys,
        is_first: bool,
        loss: Optional[Callable[[Any], Any]],
    ):
        """Computes the gradient at the current weights; returns it and the `Pass`.

        Only the first pass of a step updates metrics and statistics.
        """
        weights = list(self.model.trainable_variables)
        measured: dict[str, dict[str, Any]] = {m.name: {} for m in self._methods}
        with tf.GradientTape(
            self._hooks.differentiates_terms, watch_accessed_variables=False
        ) as tape:
            tape.watch(weights)
            if self.has_network:
                step, num_examples = self._run_network(
                    batch, locals_, part_keys, measured, tape, is_first
                )
            else:
                step, num_examples = self._run_model(batch)
            terms: list[method_lib.Term] = []
            total = step.task_loss
            for method in self._with_term:
                own = self._step_of(method, step, locals_, part_keys)
                given = self._hooks.call(method, "term", own)
                terms.append(
                    hooks_lib.checked_term(method, given, step.task_loss.dtype)
                )
                total += terms[-1].weighted
            of = total
            if loss is not None:
                of = loss(self._step_of(self.rule, step, locals_, part_keys))
                of = contract.check(
                    self.rule, "gradient", "the loss of gradient_at", of, None
                )
        owner = None if loss is None else self.rule
        named = [*zip(self._with_term, terms)]
        gradients = self._hooks.differentiate(tape, of, weights, named, owner)
        for method, term in zip(self._with_term, terms):
            share = tf.math.divide_no_nan(term.weighted, total)
            # 0 if an earlier step has broken the weights: the term is not to blame.
            is_own = tf.math.is_finite(step.task_loss)
            raw = tf.where(is_own, term.raw, tf.zeros_like(term.raw))
            own = dict(term=raw, share=share, **term.measurements)
            measured[method.name] = {**own, **measured[method.name]}
        kept = {name: dict[str, Any]() for name in measured}
        kept.update((m.name, dict(t.kept)) for m, t in zip(self._with_term, terms))
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return gradients, Pass(tf.cast(num_examples, tf.int64), measured, kept)

    def _step_of(
        self,
        method: method_lib.Method,
        step: method_lib.Step,
        locals_: Locals,
        part_keys: PartKeys,
    ):
        """Returns a method's view of the step."""
        local = locals_[method.name]
        names = memories.keys(method.name, method.server_memory)
        names |= memories.keys(method.name, method.client_memory)

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
            local=local,
        )
        if self.has_network and method.name not in self._needs.activations:
            unseen = ("activations", "preactivations")
            outputs = hooks_lib.guarded(step.outputs, unseen)
            own = dataclasses.replace(own, outputs=outputs)
        return self._hooks.observe(method, own)

    def _part_keys(self, compute_key: Callable[[], tf.Tensor]):
        """Returns every method's key; None for methods without random numbers."""
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
        """Runs a model that does not show its network; a trial has no batch for it."""
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
        is_first: bool,
    ):
        """Runs the local network, and makes the `Step` for the methods' terms."""
        model, network = self.model, self.model.network
        added: list[tf.Tensor] = []
        ours: dict[str, Any] = dict(
            update_statistics=is_first,
            record_activations=bool(self._needs.activations),
            key=part_keys.get(_NETWORK),
            on_loss=added.append,
        )
        forward = forward_lib.ForwardPass(training=True, **ours)
        references = ReferencePasses(self._reference_models, tape, forward.key)
        changed, forward = self._changed(batch, forward, part_keys, measured)
        # Also of a hook that makes a pass of its own.
        forward = dataclasses.replace(forward, **ours)
        outputs = network(changed.features, forward)
        labels = changed.targets[0][0]
        compute_loss = functools.partial(self._compute_loss, changed, locals_)
        task_loss = compute_loss(outputs.logits)
        if added:  # The network's own penalties on weights and activations.
            task_loss += tf.add_n(added)
        if is_first:
            model.update_metrics(labels, outputs.predictions, task_loss)
        step = method_lib.Step(
            network=network,
            outputs=outputs,
            features=changed.features,
            labels=labels,
            task_loss=task_loss,
            compute_loss=compute_loss,
            outputs_of=references.outputs_of(changed.features),
            classify_from=references.classify_from(network, forward),
        )
        return step, tf.shape(tf.nest.flatten(outputs.logits)[0])[0]

    def _changed(
        self,
        batch: Any,
        forward: forward_lib.ForwardPass,
        part_keys: PartKeys,
        measured: dict[str, dict[str, Any]],
    ) -> tuple[method_lib.Batch, forward_lib.ForwardPass]:
        """Returns the batch and the forward pass with the methods' changes."""
        changed = method_lib.Batch(batch["x"], [(batch["y"], _WHOLE)])
        for method in self._methods:
            key = part_keys[method.name]
            changed, from_batch, _ = hooks_lib.checked_changed(
                self._hooks, method, "change_batch", changed, key
            )
            forward, from_pass, _ = hooks_lib.checked_changed(
                self._hooks, method, "change_pass", forward, self.model.network, key
            )
            measured[method.name] = {**from_batch, **from_pass}
        return changed, forward

    def _compute_loss(
        self, batch: method_lib.Batch, locals_: Locals, logits: tf.Tensor
    ) -> tf.Tensor:
        """Computes the mean task loss of logits, with the methods' `change_logits`."""
        for method in self._methods:
            if method_lib.overrides(method, "change_logits"):
                counts = locals_[method.name].class_counts
                given = self._hooks.call(method, "change_logits", logits, counts)
                logits = contract.check(
                    method, "change_logits", "the result", given, logits
                )
        loss_fn = self.model.loss_fn
        if len(batch.targets) == 1 and batch.targets[0][1] is _WHOLE:
            return loss_fn(batch.targets[0][0], logits)
        return tf.add_n([w * loss_fn(y, logits) for y, w in batch.targets])


class _GradientAt:
    """The argument `gradient_at` of the hook `gradient`.

    Attributes:
      first: The first call's pass; None before it.
    """

    def __init__(
        self, local_step: LocalStep, batch: Any, locals_: Locals, part_keys: PartKeys
    ):
        self._step = local_step
        self._arguments = (batch, locals_, part_keys)
        self.first: Optional[Pass] = None

    def __call__(
        self,
        perturbation: Optional[Sequence[Any]] = None,
        loss: Optional[Callable[[Any], Any]] = None,
    ) -> list[Any]:
        is_first = self.first is None
        if loss is not None or not is_first:
            # Other models expose only their loss, and count each forward pass.
            checks.require_network(self._step.rule, self._step.model)
        places = self._step.move(perturbation)
        gradients, made = self._step.run(*self._arguments, is_first, loss)
        self._step.move_back(places)
        self.first = self.first or made
        return gradients


class ReferencePasses:
    """The forward passes of the reference models in one step.

    Except for the model in evaluation mode, they use the batch's statistics, as the
    local model does, but do not update the running statistics.
    """

    def __init__(self, models: Mapping[str, Any], tape: tf.GradientTape, key: Any):
        self._models, self._tape = models, tape
        self._pass = forward_lib.ForwardPass(training=True, key=key)
        self._passes = {method_lib.EVALUATED: forward_lib.ForwardPass(training=False)}

    def outputs_of(self, features: Any) -> Callable[[str], Any]:
        """Returns `Step.outputs_of` for the features of a batch."""

        @functools.cache
        def outputs_of(name: str):
            with self._tape.stop_recording():  # The outputs are constants.
                reference = self._models[name].network
                return reference(features, self._passes.get(name, self._pass))

        return outputs_of

    def classify_from(self, network: Any, forward: Any) -> Callable[..., Any]:
        """Returns `Step.classify_from` for a local network and its forward pass."""

        def classify_from(name: str, features: Any):
            if name == method_lib.LOCAL:
                again = dataclasses.replace(
                    forward,
                    update_statistics=False,
                    record_activations=False,
                    on_loss=None,
                )
                return network.classify_from(features, again)
            reference = self._models[name].network
            own = self._passes.get(name, self._pass)
            return reference.classify_from(features, own)

        return classify_from
