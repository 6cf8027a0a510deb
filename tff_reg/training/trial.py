"""A client's and a server's round, run eagerly to find hooks' needs and mistakes.

It is the ordinary round, with two random examples, on a separate model; a `Recorder`
calls the hooks. It runs at a generic point: received weights, reference models and
memories all differ from the local weights and from zero, so that nothing is hidden by a
term of 0. With `debug_eager` it runs twice, to find hooks that are no pure functions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import np, tff
from tff_reg.methods import checks, contract, memories, method as method_lib
from tff_reg.models import learning_model
from tff_reg.training import (
    aggregation,
    finishing,
    hooks as hooks_lib,
    local_round,
    local_training,
    needs as needs_lib,
    personal as personal_lib,
    server as server_lib,
)

# Largest relative difference of the same sums, taken in another order.
_ROUNDING = 1e-6
_PROBABILITIES = (
    "a constant that is added to all logits of an example changes it, and of this Keras"
    " model only probabilities are known: leave its softmax out."
)
_IMPURE = (
    "called again with the same arguments it gives other numbers: it draws tf.random's"
    " or NumPy's (take tf.random.stateless_normal with step.key, a batch's key or a"
    " number such as local.num_steps as its seed), counts its calls, or edits its"
    " arguments in place."
)


class Outcome(NamedTuple):
    """The result of a trial.

    Attributes:
      needs: The values that the client's round has to provide.
      output: The client's output; None if there is no method to try.
      said: What the server's hooks tell of a round, by name.
    """

    needs: needs_lib.Needs
    output: Optional[finishing.ClientOutput]
    said: Mapping[str, Any]


def run(model_fn: Callable[[], Any], training: local_training.LocalTraining) -> Outcome:
    """Runs all hooks of a round eagerly; `model_fn` is of `adaptation`."""
    if not training.methods and not training.debug_eager:
        return Outcome(needs_lib.Needs(), None, {})
    trial = Trial(model_fn, training)
    said = trial.run_server()
    if training.debug_eager:
        trial.run_again()
    trial.check_memories()
    needs = dataclasses.replace(trial.needs, exact=trial.needing_exact())
    return Outcome(needs, trial.output, said)


class Trial:
    """A round of the server and one client with one local step.

    Attributes:
      needs: What the client's hooks need.
      output: The client's output.
    """

    def __init__(
        self, model_fn: Callable[[], Any], training: local_training.LocalTraining
    ):
        self._training, self._methods = training, training.methods
        with _eagerly():
            model = model_fn()
            learning_model.check_model(model)
            self._recorder = hooks_lib.Recorder(model, training.debug_eager)
            teacher = _moved(model_fn(), seed=1)
            self._model = model
            weights = tff.learning.models.ModelWeights.from_model(model)
            self._received = tf.nest.map_structure(tf.identity, weights)
            self._weights = [*self._received.trainable]
            self._personal = personal_lib.of_model(model, self._methods)
            names = frozenset(method.name for method in self._methods)
            self._round = local_round.LocalRound(
                lambda: model,
                training,
                tff.learning.ClientWeighting.NUM_EXAMPLES,
                needs_lib.Needs(
                    gradient_sum=True,
                    uncorrected_sum=True,
                    keys=names,
                    activations=names,
                    measurements=None,
                ),
                self._recorder,
                hooks_lib.References(
                    needs_lib.reference_names(self._methods, self._weights),
                    teacher,
                    self._recorder.references,
                ),
            )
            if self._round.has_network and model.network.gives_probabilities:
                self._check_constants([model.network, teacher.network])
            else:
                self._run_client()

    def _run_client(self) -> None:
        recorder, training, model = self._recorder, self._training, self._model
        recorder.calls, recorder.losses = [], []
        client, self._server = (
            _generic(self._first(kind)) for kind in ("client_memory", "server_memory")
        )
        if self._personal:
            own = self._personal.of(self._received)
            client[personal_lib.KEY] = _generic(own)
        dtype = tf.float64 if self._weights[0].dtype == tf.float64 else tf.float32
        optimizer = training.optimizer
        hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], dtype)))
        visit, progress = self._round.begin(
            collections.OrderedDict(
                (name, tf.constant(value, dtype)) for name, value in hparams.items()
            ),
            tf.constant(1),
            1.0,
            self._received,
            needs_lib.class_counts(model),
            client,
            memories.leaving(self._methods, self._server, self._weights),
        )
        _moved(model, seed=2)
        batch, key = None, tf.constant([1, 2], tf.int64)
        if self._round.has_network:
            batch = needs_lib.random_batch(model.input_spec, model.network.num_classes)
        progress = self._round.step(visit, progress, batch, lambda: key)
        # Whole clients tell their size before they train.
        progress = progress._replace(weighed=progress.num_examples)
        self.output = self._round.finish(visit, progress)
        self.needs = _needs_of(recorder, self._methods, progress.sums)

    def _first(self, attribute: str) -> dict[str, Any]:
        """Returns the first memories of all methods, by key."""
        first: dict[str, Any] = collections.OrderedDict()
        for method in self._methods:
            own = memories.initial(method, attribute, self._weights)
            self._recorder.calls.append((method, attribute, own))
            first.update(own)
        return first

    def _check_constants(self, networks: list[Any]) -> None:
        """Checks that constants which are added to all logits change no loss."""
        for number, network in enumerate(networks):
            network.constant = 1.0 + number
        self._run_client()
        for network in networks:
            network.constant = 0.0
        before = self._recorder.losses
        self._run_client()
        changing = [
            (m, "change_logits", None)
            for m in self._methods
            if method_lib.overrides(m, "change_logits")
        ]
        # Other logits change the whole loss as well.
        blamed = [
            (*changing[0][:2], each[2]) if changing and each[1] != "term" else each
            for each in before
        ]
        hooks_lib.check_same(blamed, self._recorder.losses, _PROBABILITIES)

    def run_again(self) -> None:
        """Checks that the round's hooks give the same numbers in a second round."""
        before = self._recorder.calls
        with _eagerly():
            self._run_client()
        self.run_server()
        hooks_lib.check_same(before, self._recorder.calls, _IMPURE)

    def check_memories(self) -> None:
        """Refuses clients' own memories that no hook changes."""
        finished = {
            m.name: {*result.memory}
            for m, hook, result in self._recorder.calls
            if hook == "finish"
        }
        for method in self._methods:
            given = method.client_memory.items()
            own = [n for n, each in given if not memories.declared(each).is_shared]
            if own and not finished.get(method.name, set()) & {*own}:
                raise contract.refuse(
                    method,
                    "client_memory",
                    f"nothing changes the memory {own[0]!r}: return its new value from"
                    " finish, or use server_memory for a constant.",
                )

    def run_server(self) -> Mapping[str, Any]:
        """Runs the server's hooks, after the client's; returns what they tell."""
        with _eagerly():
            for hook in ("broadcast", "evaluated"):
                server = self._at_server(self._recorder)
                server.weights_by(hook, self._server, self._weights)
            self._weigh()
            *_, said = self._after_round(self.output.uploads, self._recorder)
            return said

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
            for m in self._methods
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
        share = self.output.share
        for method in self._methods:
            if method_lib.overrides(method, "weigh"):
                if not share:
                    why = "finish returns no `share`, from which clients are weighed."
                    raise contract.refuse(method, "weigh", why)
                aggregation.weight(method, share, share, self._recorder)
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


def _eagerly() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if tf.executing_eagerly() else tf.init_scope()


def _needs_of(recorder: hooks_lib.Recorder, methods: Any, sums: Any) -> needs_lib.Needs:
    def reading(name: str) -> set[str]:
        return {method for method, what in recorder.found if what == name}

    def doing(*names: str) -> set[str]:
        overrides = method_lib.overrides
        return {m.name for m in methods if any(overrides(m, n) for n in names)}

    measured: dict[str, list[str]] = {method.name: [] for method in methods}
    for name in sums:
        owner, _, what = name.partition("/")
        measured[owner].append(what)
    return needs_lib.Needs(
        weight=frozenset(reading("weight")),
        class_counts=bool(reading("class_counts") | doing("change_logits")),
        gradient_sum=bool(reading("taken") | reading("scaled_gradient_sum")),
        uncorrected_sum=bool(reading("uncorrected")),
        keys=frozenset(reading("key") | doing("change_batch", "change_pass")),
        activations=frozenset(reading("activations") | reading("preactivations")),
        references=tuple(sorted(recorder.references)),
        measurements=measured,
    )
