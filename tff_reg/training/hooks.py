"""The calls of the methods' hooks in a round, plain or recorded, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg.lazy import np, tf
from tff_reg.methods import checks, contract, method as method_lib
from tff_reg.training import needs as needs_lib

_OF_WEIGHTS = ("task_loss", "weights", "start", "global_weights", "key", "local")
_OF_WHOLE_DATA = ("total_steps", "epoch")
_OF_OPTIMIZER = ("step_size", "taken", "scaled_gradient_sum", "uncorrected")
_AT_END = (*_OF_OPTIMIZER, "weight")
_OF_GRADIENTS = ("gradient", "correct", "correct_clipped")
# Tolerances between the numbers of two calls of a hook.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


class Hooks:
    """Plain calls of the methods' hooks."""

    # Whether the gradient of each term is taken by itself, too.
    differentiates_terms = False

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        """Calls a hook; see `contract.run`."""
        return contract.run(method, hook, getattr(method, hook), *arguments)

    def observe(self, method: method_lib.Method, value: Any) -> Any:
        """Returns the `Step` or `Local` in the form that the method's hooks get."""
        return value

    def differentiate(
        self,
        tape: tf.GradientTape,
        loss: Any,
        weights: Sequence[Any],
        terms: Sequence[tuple[method_lib.Method, method_lib.Term]],
        owner: Optional[method_lib.Method],
    ) -> list[Any]:
        """Computes the gradient of the whole loss, or of `owner`'s own loss."""
        gradients = tape.gradient(loss, weights)
        unreached = [v.name for v, g in zip(weights, gradients) if g is None]
        # In eager mode, a residual branch that this step skips has no gradient.
        if unreached and owner is None and not tf.executing_eagerly():
            raise ValueError(
                f"The loss does not depend on the weights {', '.join(unreached)}, so"
                " they would never be trained: remove them from the model, or make them"
                " not trainable."
            )
        return [
            tf.zeros_like(v) if g is None else g for v, g in zip(weights, gradients)
        ]


PLAIN = Hooks()


class Recorder(Hooks):
    """Calls of a trial, which notes what hooks read and return.

    The gradient is a substitute that depends on the weights, so that a perturbation
    changes it and the loss of random examples does not matter.

    Attributes:
      found: The (method's name, attribute) pairs that hooks read.
      references: Names of the reference models that hooks read.
      calls: (method, hook, result) of each call; of `finish` the `Finished`.
      losses: For each pass and term, what depends on the logits, and the method and
        hook to blame for it.
    """

    differentiates_terms = True

    def __init__(self, model: Any, is_strict: bool):
        """Starts without any recorded read; see `check_same` for `is_strict`."""
        self._model, self._is_strict = model, is_strict
        self.has_network = checks.has_network(model)
        self.found: set[tuple[str, str]] = set()
        self.references: set[str] = set()
        self.calls: list[tuple[method_lib.Method, str, Any]] = []
        self.losses: list[tuple[Any, str, Any]] = []

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        kinds = self._model.trainable_variables, self._model.non_trainable_variables
        before = [(v, v.numpy()) for own in kinds for v in own if self._is_strict]
        result = super().call(method, hook, *arguments)
        self.calls.append((method, hook, result))
        for variable, value in before:
            self._check_unchanged(method, hook, variable, value)
        is_finite = all(np.isfinite(each).all() for each in arrays(result))
        if hook in _OF_GRADIENTS and not is_finite:
            raise contract.refuse(method, hook, "it gives numbers that are not finite.")
        return result

    def _check_unchanged(
        self, method: method_lib.Method, hook: str, variable: Any, value: Any
    ) -> None:
        """Refuses a hook that changed a variable, but for passes of `gradient`."""
        sets = self.has_network and self._model.network.sets_trained_weights
        may = hook == "gradient" and (sets or not variable.trainable)
        if may or variable.numpy().tobytes() == value.tobytes():
            return
        why = "it assigns to the model's weights: return them from start."
        if not variable.trainable:
            why = (
                "it changes the statistics of norms: run a further pass without"
                " update_statistics."
            )
        raise contract.refuse(method, hook, why)

    def differentiate(
        self,
        tape: tf.GradientTape,
        loss: Any,
        weights: Sequence[Any],
        terms: Sequence[tuple[method_lib.Method, method_lib.Term]],
        owner: Optional[method_lib.Method],
    ) -> list[Any]:
        self.losses += [(m, "term", t) for m, t in terms]
        self.losses.append((owner, "gradient", loss))
        parts = [(m, "term", "the term", t.weighted) for m, t in terms]
        if owner and self.has_network:
            parts.append((owner, "gradient", "its loss", loss))
        for method, hook, what, value in parts if _records() else ():
            if all(g is None for g in tape.gradient(value, weights)):
                why = f"{what} reaches no weight, so that it would train nothing."
                raise contract.refuse(method, hook, why)
        return [v + tf.ones_like(v) for v in weights]

    def observe(self, method: method_lib.Method, value: Any) -> Any:
        def note(name: str) -> None:
            self._check(method, value, name)
            self.found.add((method.name, name))

        def note_output(name: str) -> None:
            self.found.add((method.name, name))

        if isinstance(value, method_lib.Step) and self.has_network:
            outputs: Any = _Watched(value.outputs, note_output)
            counts = needs_lib.class_counts(self._model)
            value = dataclasses.replace(value, outputs=outputs, class_counts=counts)
        return _Watched(value, note)

    def _check(self, method: method_lib.Method, value: Any, name: str) -> None:
        """Checks that the process provides an attribute that a hook reads."""
        is_step = isinstance(value, method_lib.Step)
        if name == "state" and not method_lib.overrides(method, "begin"):
            raise contract.NeedError(
                f"local.state is what begin returns, and {method.name} has no begin."
            )
        if name in _OF_WHOLE_DATA and getattr(value, name) is None:
            raise contract.NeedError(
                f"local.{name} needs all of a client's data at once: give"
                " tff_reg.training.WholeClientData(...) as client_data."
            )
        if name in _AT_END and not value.has_ended:
            raise contract.NeedError(
                f"local.{name} is known only at the end of training: read it in finish."
            )
        if name == "class_counts" or (is_step and name not in _OF_WEIGHTS):
            checks.require_network(method, self._model)
            checks.require_classifier(method, self._model)
        if name in _OF_OPTIMIZER and "learning_rate" not in value.hparams:
            value.hparams["learning_rate"]  # Raises the error.


def check_same(
    first: Sequence[tuple[Any, str, Any]],
    second: Sequence[tuple[Any, str, Any]],
    why: str,
) -> None:
    """Refuses the first of two runs' records that has other numbers in the second."""
    for (method, hook, one), (*_, other) in zip(first, second):
        both = [*arrays(one)], [*arrays(other)]
        if method and not (len(both[0]) == len(both[1]) and all(map(_is_close, *both))):
            raise contract.refuse(method, hook, why)


def _is_close(one: Any, other: Any) -> bool:
    """Whether two arrays hold equal numbers, up to a GPU's rounding."""
    if one.shape != other.shape:
        return False
    if (one == other).all() or one.dtype.kind not in "iuf":
        return bool((one == other).all())
    near = np.abs(one - other) <= _ABSOLUTE + _RELATIVE * np.abs(other)
    return bool((near | (np.isnan(one) & np.isnan(other))).all())


def arrays(value: Any) -> Iterator[Any]:
    """Yields the tensors in a hook's result as arrays."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if contract.is_a(value, Mapping):
        value = [*value.values()]
    if contract.is_a(value, (list, tuple)):
        for each in value:
            yield from arrays(each)
    elif hasattr(value, "numpy"):
        yield value.numpy()
    elif contract.is_a(value, (bool, int, float, np.ndarray)):
        yield np.asarray(value)


def _records() -> bool:
    """Whether gradient tapes record; an `init_scope` stops recording."""
    one = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(one)
        square = one * one
    return tape.gradient(square, one) is not None


class _Watched:
    """A wrapper that forwards reads of attributes and reports the attributes' names."""

    def __init__(self, value: Any, note: Callable[[str], None]):
        self._value, self._note = value, note

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        self._note(name)
        return value


_UNSEEN = (
    "it reads {} in one branch only, which the trial did not see: read it before the"
    " tf.cond or the `if`, in every call."
)


def guarded(value: Any, missing: Sequence[str]) -> Any:
    """Wraps a value so that reads of the attributes in `missing` raise an error."""

    def refuse(name: str) -> None:
        if name in missing:
            raise contract.NeedError(_UNSEEN.format(name))

    return _Watched(value, refuse)


class References(dict[str, Any]):
    """Reference models in the trial: the teacher in place of each of them."""

    def __init__(self, names: Sequence[str], teacher: Any, read: set[str]):
        """Stores the arguments; `read` gets the names that hooks read."""
        super().__init__()
        self._names, self._teacher, self._read = names, teacher, read

    def __missing__(self, name: str) -> Any:
        if name not in self._names:
            raise contract.NeedError(
                f"there is no model {name!r}{contract.near(name, self._names)}; a term"
                f" may read {', '.join(self._names)}."
            )
        self._read.add(name)
        return self._teacher


# Names of measurements that are reported for every method.
RESERVED = ("term", "share", "not_finite")


def checked_term(method: method_lib.Method, given: Any, dtype: tf.DType):
    """Checks the result of the hook `term`; makes a scalar loss a `Term`."""
    if not isinstance(given, method_lib.Term):
        given = method_lib.Term(given)
    weighted = contract.check(method, "term", "the term", given.weighted, dtype)
    raw = contract.check(method, "term", "the term's raw value", given.raw, None)
    _check_measurements(method, "term", given.measurements)
    return method_lib.Term(raw, weighted, given.measurements, given.kept)


def change_of(method: method_lib.Method, hook: str, given: Any) -> method_lib.Change:
    """Returns the result of a hook that may give measurements beside its value."""
    if not isinstance(given, method_lib.Change):
        given = method_lib.Change(given)
    _check_measurements(method, hook, given.measurements)
    return given


def checked_changed(
    hooks: Hooks,
    method: method_lib.Method,
    hook: str,
    value: Any,
    *arguments: Any,
) -> method_lib.Change:
    """Calls `change_batch` or `change_pass`, and checks the result."""
    if not method_lib.overrides(method, hook):
        return method_lib.Change(value, {})
    result = hooks.call(method, hook, value, *arguments)
    if not isinstance(result, method_lib.Change) or not isinstance(
        result.value, type(value)
    ):
        raise contract.refuse(
            method,
            hook,
            f"it must return Change({type(value).__name__}, measurements), not"
            f" {contract.spec(result)}.",
        )
    _check_measurements(method, hook, result.measurements)
    return result


def _check_measurements(method: method_lib.Method, hook: str, given: Any) -> None:
    for name, value in given.items():
        if name in RESERVED:
            why = f"the measurement {name!r} is reported already: rename it."
            raise contract.refuse(method, hook, why)
        contract.check(method, hook, f"the measurement {name!r}", value, None)


def checked_finished(
    method: method_lib.Method, own: Any, memory: Mapping[str, Any]
) -> method_lib.Finished:
    """Checks the result of `finish`; `memory` are the old memories by name."""
    if not isinstance(own, method_lib.Finished):
        raise contract.refuse(
            method, "finish", f"it must return Finished(...), not {contract.spec(own)}."
        )
    names = own.share if contract.is_a(own.share, Mapping) else ()
    for what, given, like in (
        ("memory", own.memory, memory),
        ("upload", own.upload, dict.fromkeys(method.uploads, ...)),
        ("share", own.share, dict.fromkeys(names)),
        ("scale", own.scale, None if own.scale is not None else ...),
    ):
        contract.check(method, "finish", what, given, like, what == "memory")
    return own
