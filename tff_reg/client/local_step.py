"""One local training step: the loss of a batch with all its regularisers."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, Callable, Mapping, Sequence

import tensorflow as tf

from tff_reg.data import keys
from tff_reg.gradient_rules import gradient_rule as gradient_rule_lib
from tff_reg.models import forward as forward_lib
from tff_reg.models import learning_model
from tff_reg.regularizers import regularizer as regularizer_lib

# Reference models train as local ones do, on the batch's statistics, but keep none.
_CONSTANT_PASS = forward_lib.ForwardPass(training=True, update_statistics=False)


class LocalStep:
    """Computes the loss and the gradient of one batch at the current weights.

    Args:
      model: The local model, a `tff.learning.models.VariableModel`; where a
        regulariser needs the network, a `tff_reg.models.LearningModel`.
      reference_models: Further such models by the names that the regularisers'
        `reference_models` hold; they keep their weights.
      regularizers: The terms.

    Raises:
      TypeError: If a regulariser needs the network and the model has none.
      ValueError: If the network lacks what a regulariser needs, or the sum of
        regularisers makes no sense.
    """

    def __init__(
        self,
        model,
        reference_models: Mapping[str, Any],
        regularizers: Sequence[regularizer_lib.Regularizer],
    ):
        regularizer_lib.check_sum(regularizers)
        self._model = model
        self._reference_models = dict(reference_models)
        self._regularizers = tuple(regularizers)
        self._has_network = isinstance(model, learning_model.LearningModel)
        for regularizer in regularizers:
            regularizer_lib.check_has_network(regularizer, model)
            if self._has_network:
                regularizer.check_network(model.network)
        with_term = [r for r in regularizers if r.has_term]
        # Without a network, a term sees weights only.
        self._apart = [r for r in with_term if self._has_network and not r.strength]
        self._in_step = [r for r in with_term if r not in self._apart]

    @property
    def measurement_names(self) -> list[str]:
        """Names of what the regularisers measure, `<method>/<name>`."""
        names = []
        for regularizer in self._regularizers:
            own = [*regularizer.measurement_names]
            if regularizer.has_term:
                own = ["term", "share", *own]
            names += [f"{regularizer.name}/{name}" for name in own]
        return names

    def gradient(
        self,
        batch,
        global_weights: Sequence[Any],
        compute_key: Callable,
        rule: gradient_rule_lib.GradientRule = gradient_rule_lib.GradientRule(),
        slots: Sequence[Any] = (),
    ):
        """Runs the batch forward and backward, as often as the gradient rule asks.

        What is random in the step is drawn once. Metrics, measurements and the
        statistics of norms are those of the first pass.

        Args:
          batch: What the model's `input_spec` says.
          global_weights: The round's global trainable weights.
          compute_key: Gives the step's int64 [2] key; called only if a regulariser is
            random.
          rule: How the gradient is taken.
          slots: What `rule.make_slots` made.

        Returns:
          The gradients in the order of the model's trainable variables (zeros where
          the loss does not reach), the number of examples (int64), and an
          `OrderedDict` of measurements, scalar means over the batch.
        """
        part_keys = self._part_keys(compute_key)
        measured_apart = self._measure_apart(batch, global_weights, part_keys)
        first = []

        def compute_gradient():
            gradients, *measured = self._pass(
                batch, global_weights, part_keys, is_first=not first
            )
            first.append(measured)
            return gradients

        gradients = rule(compute_gradient, self._model.trainable_variables, slots)
        num_examples, measured = first[0]
        for name, own in measured_apart.items():
            measured[name].update(own)
        measurements = collections.OrderedDict()
        for full_name in self.measurement_names:
            name, _, what = full_name.partition("/")
            measurements[full_name] = tf.cast(measured[name][what], tf.float32)
        return gradients, num_examples, measurements

    def _pass(self, batch, global_weights, part_keys, is_first):
        """The gradient at the present weights, and what was measured."""
        weights = list(self._model.trainable_variables)
        measured = {r.name: {} for r in self._regularizers}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            if self._has_network:
                step, num_examples = self._run_network(
                    batch, part_keys, measured, tape, is_first
                )
            else:
                step, num_examples = self._run_model(batch)
            total = step.task_loss
            terms = self._terms(self._in_step, step, global_weights, part_keys)
            for regularizer, term in zip(self._in_step, terms):
                if regularizer.strength:
                    total += term.weighted
        gradients = tape.gradient(
            total, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        for regularizer, term in zip(self._in_step, terms):
            share = tf.math.divide_no_nan(term.weighted, total)
            own = dict(term=term.raw, share=share, **term.measurements)
            measured[regularizer.name].update(own)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return gradients, tf.cast(num_examples, tf.int64), measured

    def _measure_apart(self, batch, global_weights, part_keys):
        """What terms of strength 0 measure, by name, in a pass of their own.

        In a function that is not inlined: what reads the step's own pass changes which
        of its operations TensorFlow fuses, and with that last bits of the gradient.
        """
        if not self._apart:
            return {}

        def measure():
            records = {r.name: {} for r in self._regularizers}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                step, _ = self._run_network(
                    batch, part_keys, records, tape, is_first=False, apart=True
                )
                terms = self._terms(self._apart, step, global_weights, part_keys)
            return {
                regularizer.name: dict(term=term.raw, share=0.0, **term.measurements)
                for regularizer, term in zip(self._apart, terms)
            }

        attributes = {"_noinline": True}
        return tf.function(measure, experimental_attributes=attributes)()

    def _terms(self, regularizers, step, global_weights, part_keys):
        """The `Term` of each of the regularisers."""
        weights = list(self._model.trainable_variables)
        terms = []
        for regularizer in regularizers:
            own = dataclasses.replace(
                step,
                weights=weights,
                global_weights=global_weights,
                key=part_keys[regularizer.name],
            )
            terms.append(tf.autograph.experimental.do_not_convert(regularizer)(own))
        return terms

    def _part_keys(self, compute_key):
        """The key of every regulariser, None for those that draw nothing."""
        part_keys = dict.fromkeys((r.name for r in self._regularizers), None)
        random = [r.name for r in self._regularizers if r.is_random]
        if random:
            key = compute_key()
            for name in random:
                part_keys[name] = keys.part_key(key, name)
        return part_keys

    def _run_model(self, batch):
        """Runs a model that does not show its network."""
        result = self._model.forward_pass(batch, training=True)
        num_examples = result.num_examples
        if num_examples is None:
            num_examples = tf.shape(result.predictions)[0]
        step = regularizer_lib.Step(network=None, outputs=None, task_loss=result.loss)
        return step, num_examples

    def _run_network(self, batch, part_keys, measured, tape, is_first, apart=False):
        model, network = self._model, self._model.network
        changed = regularizer_lib.Batch(batch["x"], [(batch["y"], 1.0)])
        forward = forward_lib.ForwardPass(
            training=True,
            update_statistics=is_first,
            record_activations=any(
                r.records_activations
                for r in (self._apart if apart else self._in_step)
            ),
        )
        for regularizer in self._regularizers:
            key = part_keys[regularizer.name]
            changed, from_batch = regularizer.change_batch(changed, key)
            forward, from_pass = regularizer.change_pass(forward, network, key)
            measured[regularizer.name] = {**from_batch, **from_pass}
        outputs = network(changed.features, forward)
        labels = changed.targets[0][0]

        def compute_loss(logits):
            if len(changed.targets) == 1:
                return model.loss_fn(labels, logits)
            return tf.add_n([w * model.loss_fn(y, logits) for y, w in changed.targets])

        @functools.lru_cache(maxsize=None)
        def outputs_of(name):
            with tape.stop_recording():  # No gradient is ever taken through them.
                reference = self._reference_models[name].network
                return reference(changed.features, _CONSTANT_PASS)

        def classify_from(name, features):
            if name == regularizer_lib.LOCAL:
                again = dataclasses.replace(
                    forward, update_statistics=False, record_activations=False
                )
                return network.classify_from(features, again)
            reference = self._reference_models[name].network
            return reference.classify_from(features, _CONSTANT_PASS)

        task_loss = compute_loss(outputs.logits)
        if is_first:
            model.update_metrics(labels, outputs.logits, task_loss)
        step = regularizer_lib.Step(
            network=network,
            outputs=outputs,
            features=changed.features,
            labels=labels,
            task_loss=task_loss,
            compute_loss=compute_loss,
            outputs_of=outputs_of,
            classify_from=classify_from,
        )
        return step, tf.shape(outputs.logits)[0]
