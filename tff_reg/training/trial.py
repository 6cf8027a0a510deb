"""A trial round with two random examples, to find hooks' needs and mistakes.

It runs at a generic point: received weights, reference models and memories all differ
from the local weights and from zero, so that nothing is hidden by a term of 0.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import np, tff
from tff_reg.methods import checks, contract, memories, method as method_lib
from tff_reg.models import learning_model
from tff_reg.training import (
    client_states,
    hooks as hooks_lib,
    local_round,
    local_step,
    local_training,
    needs as needs_lib,
    server as server_lib,
    weighing,
)

# Largest relative difference of the same sums, taken in another order.
_ROUNDING = 1e-6


class Outcome(NamedTuple):
    """The result of a trial.

    Attributes:
      needs: The values that the client's round has to provide.
      output: The client's output; None if there is no method to try.
      said: What the server's hooks tell of a round, by name.
    """

    needs: needs_lib.Needs
    output: Optional[client_states.ClientOutput]
    said: Mapping[str, Any]


def run(model_fn: Callable[[], Any], training: local_training.LocalTraining) -> Outcome:
    """Runs all hooks of a round eagerly; `model_fn` is of `adaptation`."""
    if not training.methods and not training.debug_eager:
        return Outcome(needs_lib.Needs(), None, {})
    trial = _Trial(model_fn, training)
    trial.run_server()
    needs = dataclasses.replace(trial.needs, exact=trial.needing_exact())
    return Outcome(needs, trial.output, trial.said)


class _Trial:
    """A round of the server and one client with one local step."""

    def __init__(
        self, model_fn: Callable[[], Any], training: local_training.LocalTraining
    ):
        self._training = training
        with _eagerly():
            model = model_fn()
            learning_model.check_model(model)
            self._hooks = hooks_lib.TrialHooks(model)
            self._hooks.teacher = _moved(model_fn(), seed=1)
            self._weights = [tf.identity(v) for v in model.trainable_variables]
            self._client = _generic(self._first("client_memory"))
            self._server = _generic(self._first("server_memory"))
            self.output = self._run_client(_TrialRound(self._hooks, training), model)
        for method in training.methods:
            _check_changed(method, self._hooks)
        self.needs = _needs_of(self._hooks, training)

    def _first(self, attribute: str) -> dict[str, Any]:
        """Returns the first memories of all methods, by key."""
        first: dict[str, Any] = collections.OrderedDict()
        for method in self._training.methods:
            once, again = (
                memories.initial(method, attribute, self._weights) for _ in range(2)
            )
            self._hooks.check_same(method, attribute, once, again)
            first.update(once)
        return first

    def _run_client(
        self, trial: local_round.LocalRound, model: Any
    ) -> client_states.ClientOutput:
        training, weights = self._training, self._weights
        sent = memories.leaving(training.methods, self._server, weights)
        received = tff.learning.models.ModelWeights(
            weights, [tf.identity(v) for v in model.non_trainable_variables]
        )
        dtype = tf.float64 if weights[0].dtype == tf.float64 else tf.float32
        hparams = collections.OrderedDict(
            (name, tf.constant(value, dtype))
            for name, value in training.optimizer.get_hparams(
                training.optimizer.initialize(tf.TensorSpec([], dtype))
            ).items()
        )
        visit, progress = trial.begin(
            hparams, tf.constant(1), 1.0, received, None, self._client, sent
        )
        _moved(model, seed=2)
        batch = None
        if checks.has_network(model):
            classes = model.network.num_classes
            batch = needs_lib.random_batch(model.input_spec, classes)
        key = tf.constant([1, 2], tf.int64)
        progress = trial.step(visit, progress, batch, lambda: key)
        # Whole clients tell their size before they train.
        progress = progress._replace(weighed=progress.num_examples)
        return trial.finish(visit, progress)

    def run_server(self) -> None:
        """Runs the server's hooks, after the client's hooks."""
        with _eagerly():
            before = self._weights
            for hook in ("broadcast", "evaluated"):
                self._at_server(self._hooks).weights_by(hook, self._server, before)
            self._weigh()
            *_, self.said = self._after_round(self.output.uploads, self._hooks)

    def _at_server(self, hooks: hooks_lib.Hooks) -> server_lib.Server:
        return server_lib.Server(None, self._training, hooks)

    def _after_round(self, uploads: Mapping[str, Any], hooks: hooks_lib.Hooks) -> Any:
        update, before = self.output.result.update, self._weights
        update = getattr(update, "trainable", update)
        return self._at_server(hooks).after_round(
            self._server,
            before,
            [w - u for w, u in zip(before, update)],
            [-u for u in update],
            uploads,
            tf.constant(1),
        )

    def needing_exact(self) -> frozenset[str]:
        """Returns the methods that need exact sums of uploads: a quotient does."""
        return frozenset(
            m.name
            for m in self._training.methods
            if method_lib.EXACT_UPLOADS in m.needs or not self._only_adds(m)
        )

    def _only_adds(self, method: method_lib.Method) -> bool:
        """Whether twice a method's uploads have twice their effect at the server."""

        def after(number: int) -> list[Any]:
            def times(value: Any) -> Any:
                return tf.cast(number, value.dtype) * value

            uploads = dict(self.output.uploads)
            for key in [f"{method.name}/{name}" for name in method.uploads]:
                uploads[key] = tf.nest.map_structure(times, uploads[key])
            return [*hooks_lib.arrays(self._after_round(uploads, hooks_lib.PLAIN)[:2])]

        with _eagerly():
            return not method.uploads or all(
                (np.abs(none + two - 2 * one) <= _ROUNDING * np.abs(one).max()).all()
                for none, one, two in zip(*map(after, range(3)))
            )

    def _weigh(self) -> None:
        for method in self._training.methods:
            if method_lib.overrides(method, "weigh"):
                if not self.output.share:
                    why = "finish returns no `share`, from which clients are weighed."
                    raise contract.refuse(method, "weigh", why)
                weighing.weight(
                    method, self.output.share, self.output.share, self._hooks
                )
                if self.needs.weight:
                    named = ", ".join(sorted(self.needs.weight))
                    raise checks.IncompatibleMethodsError(
                        f"{named} reads the clients' weights before {method.name} makes"
                        " them: leave one of them out."
                    )


def _generic(structure: Any, seed: int = 0) -> Any:
    """Adds small numbers to the floats of a structure of tensors."""
    flat = tf.nest.flatten(structure)
    for index, value in enumerate(flat):
        if value.dtype.is_floating:
            added = tf.random.stateless_uniform(
                value.shape, [index, seed], 0.01, 0.03, value.dtype
            )
            flat[index] = value + added
    return tf.nest.pack_sequence_as(structure, flat)


def _moved(model: Any, seed: int) -> Any:
    """Moves the trainable variables of a model to a generic point; returns it."""
    weights = [tf.identity(v) for v in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, _generic(weights, seed)):
        variable.assign(value)
    return model


def _check_changed(method: method_lib.Method, hooks: hooks_lib.TrialHooks) -> None:
    """Refuses own client memories none of which `finish` returns: they never change."""
    own = [
        name
        for name, declaration in method.client_memory.items()
        if not memories.declared(declaration).is_shared
    ]
    if own and not any((method.name, name) in hooks.returned for name in own):
        raise contract.refuse(
            method,
            "client_memory",
            f"nothing changes the memory {own[0]!r}: return its new value from finish,"
            " or use server_memory for a constant.",
        )


def _records() -> bool:
    """Whether gradient tapes record; an `init_scope` stops recording."""
    one = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(one)
        square = one * one
    return tape.gradient(square, one) is not None


def _eagerly() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope()


_PROBABILITIES = (
    "a constant that is added to all logits of an example changes it, and of this Keras"
    " model only probabilities are known: leave its softmax out."
)


class _TrialStep(local_step.LocalStep):
    """A step with a substitute for the gradient; only terms are differentiated."""

    _is_trial = True
    # The terms and the loss of the last pass.
    _found: list[Any]

    def run(
        self, batch: Any, locals_: Any, part_keys: Any, is_first: bool, loss: Any
    ) -> Any:
        result = super().run(batch, locals_, part_keys, is_first, loss)
        if self.has_network and self.model.network.gives_probabilities:
            hooks: Any = self._hooks
            networks: Any = self.model.network, hooks.teacher.network
            found = self._found
            for number, network in enumerate(networks):
                network.constant = 1.0 + number
            super().run(batch, locals_, part_keys, False, loss)
            for network in networks:
                network.constant = 0.0
            changes = "change_logits"
            changing = [m for m in self._methods if method_lib.overrides(m, changes)]
            blamed = [(method, "term") for method in self._with_term]
            blamed += [*((m, changes) for m in changing), (self.rule, "gradient")][:1]
            for one, other, where in zip(found, self._found, blamed):
                if not hooks_lib.are_close(one, other):
                    raise contract.refuse(*where, _PROBABILITIES)
        return result

    def _differentiated(
        self,
        tape: tf.GradientTape,
        of: Any,
        terms: Sequence[method_lib.Term],
        is_whole: bool,
    ) -> list[Any]:
        weights = list(self.model.trainable_variables)
        self._found = [*terms, of]
        for method, term in zip(self._with_term, terms):
            if not _records():
                continue
            if all(g is None for g in tape.gradient(term.weighted, weights)):
                why = "the term reaches no weight, so that it would train nothing."
                raise contract.refuse(method, "term", why)
        is_own = not is_whole and self.has_network and _records()
        if is_own and all(g is None for g in tape.gradient(of, weights)):
            why = "its loss reaches no weight, so that it would train nothing."
            raise contract.refuse(self.rule, "gradient", why)
        # It depends on the weights, so that a random perturbation changes it.
        return [v + tf.ones_like(v) for v in weights]

    def _run_model(self, batch: Any):
        none: Any = None
        loss = tf.zeros([], self.model.trainable_variables[0].dtype)
        return method_lib.Step(network=none, outputs=none, task_loss=loss), 1


class _TrialRound(local_round.LocalRound):
    """A client's round that provides every value that hooks may read."""

    _step_type = _TrialStep
    _hooks: hooks_lib.TrialHooks

    def __init__(
        self, hooks: hooks_lib.TrialHooks, training: local_training.LocalTraining
    ):
        self._hooks = hooks
        names = frozenset(method.name for method in training.methods)
        super().__init__(
            lambda: hooks.model,
            training,
            tff.learning.ClientWeighting.NUM_EXAMPLES,
            needs_lib.Needs(
                gradient_sum=True,
                uncorrected_sum=True,
                keys=names,
                activations=names,
            ),
        )

    def _make_references(self, model_fn: Callable[[], Any]) -> Mapping[str, Any]:
        names = needs_lib.reference_names(self._training.methods, self._variables)
        return hooks_lib.References(names, self._hooks)

    def _class_counts(self, data: Any) -> Optional[tf.Tensor]:
        return needs_lib.class_counts(self._model)

    def _summed(self, sums: Any, measured: Any, batch_examples: Any) -> Any:
        self._hooks.measured = measured
        return {
            f"{name}/{each}": tf.constant(0.0)
            for name, own in measured.items()
            for each in own
        }


def _needs_of(
    hooks: hooks_lib.TrialHooks, training: local_training.LocalTraining
) -> needs_lib.Needs:
    def reading(name: str) -> set[str]:
        return {method for method, what in hooks.found if what == name}

    def doing(*names: str) -> set[str]:
        overrides = method_lib.overrides
        return {m.name for m in training.methods if any(overrides(m, n) for n in names)}

    return needs_lib.Needs(
        weight=frozenset(reading("weight")),
        class_counts=bool(reading("class_counts") | doing("change_logits")),
        gradient_sum=bool(reading("taken") | reading("scaled_gradient_sum")),
        uncorrected_sum=bool(reading("uncorrected")),
        keys=frozenset(reading("key") | doing("change_batch", "change_pass")),
        activations=frozenset(reading("activations") | reading("preactivations")),
        references=tuple(sorted(hooks.references)),
        measurements={name: tuple(own) for name, own in hooks.measured.items()},
    )
