"""The calls of the methods' hooks in a round: plain, or checked in a trial.

The trial runs eagerly on a separate model, so that a hook's error is raised before any
tracing and shows the author's line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tff_reg.lazy import np
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

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        """Calls a hook; see `contract.run`."""
        return contract.run(method, hook, getattr(method, hook), *arguments)

    def observe(self, method: method_lib.Method, value: Any) -> Any:
        """Returns the `Step` or `Local` in the form that the method's hooks get."""
        return value


PLAIN = Hooks()


class TrialHooks(Hooks):
    """Eager calls of hooks, each twice, which record the attributes that hooks read.

    Attributes:
      model: The model of the trial.
      teacher: The model in the place of every reference model.
      found: The (method's name, attribute) pairs that hooks read.
      references: Names of the reference models that hooks read.
      measured: For each method's name, its measurements by name.
      returned: The (method's name, memory) pairs that `finish` returns.
    """

    def __init__(self, model: Any):
        """Starts without any recorded read."""
        self.model = self.teacher = model
        self.found: set[tuple[str, str]] = set()
        self.references: set[str] = set()
        self.measured: Mapping[str, Mapping[str, Any]] = {}
        self.returned: set[tuple[str, str]] = set()

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        """Calls a hook twice, and checks that it is a pure function."""
        before = self._weights()
        results: list[Any] = []
        for _ in range(2):
            results.append(super().call(method, hook, *map(_again, arguments)))
            self._take_back(method, hook, before)
        first, second = results
        self.check_same(method, hook, first, second)
        is_finite = all(np.isfinite(each).all() for each in arrays(second))
        if hook in _OF_GRADIENTS and not is_finite:
            raise contract.refuse(method, hook, "it gives numbers that are not finite.")
        if hook == "finish" and isinstance(second, method_lib.Finished):
            self.returned.update((method.name, name) for name in second.memory)
        return second

    def check_same(
        self, method: method_lib.Method, hook: str, first: Any, second: Any
    ) -> None:
        """Checks that two calls of a hook returned the same numbers."""
        if not are_close(first, second):
            raise contract.refuse(
                method,
                hook,
                "called again with the same arguments it gives other numbers: it draws"
                " tf.random's (take tf.random.stateless_normal with step.key, a batch's"
                " key or a number such as local.num_steps as its seed), counts its"
                " calls, or edits its arguments in place.",
            )

    def _weights(self) -> list[tuple[Any, Any]]:
        """Returns pairs of a variable of the model and its value."""
        both = self.model.trainable_variables, self.model.non_trainable_variables
        return [(v, v.numpy()) for own in both for v in own]

    def _take_back(self, method: method_lib.Method, hook: str, before: Any) -> None:
        """Checks that a hook did not change weights; takes back what passes set."""
        sets = (
            checks.has_network(self.model) and self.model.network.sets_trained_weights
        )
        for variable, value in before:
            if variable.numpy().tobytes() == value.tobytes():
                continue
            if hook != "gradient" and not variable.trainable:
                why = (
                    "it changes the statistics of norms: run a further pass with"
                    " ForwardPass(training=True, update_statistics=False)."
                )
                raise contract.refuse(method, hook, why)
            if variable.trainable and not (hook == "gradient" and sets):
                why = "it assigns to the model's weights: return them from start."
                raise contract.refuse(method, hook, why)
            variable.assign(value)

    def observe(self, method: method_lib.Method, value: Any) -> Any:
        def note(name: str) -> None:
            self._check(method, value, name)
            self.found.add((method.name, name))

        def note_output(name: str) -> None:
            self.found.add((method.name, name))

        if isinstance(value, method_lib.Step) and checks.has_network(self.model):
            outputs: Any = _Watched(value.outputs, note_output)
            counts = needs_lib.class_counts(self.model)
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
            checks.require_network(method, self.model)
            checks.require_classifier(method, self.model)
        if name in _OF_OPTIMIZER and "learning_rate" not in value.hparams:
            value.hparams["learning_rate"]  # Raises the error.


def are_close(first: Any, second: Any) -> bool:
    """Whether two structures hold equal numbers, up to a GPU's rounding."""
    both = [*arrays(first)], [*arrays(second)]
    return len(both[0]) == len(both[1]) and all(map(_is_close, *both))


def _is_close(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    if (one == other).all() or one.dtype.kind not in "iuf":
        return bool((one == other).all())
    near = np.abs(one - other) <= _ABSOLUTE + _RELATIVE * np.abs(other)
    return bool((near | (np.isnan(one) & np.isnan(other))).all())


def arrays(value: Any) -> Iterator[Any]:
    """Yields the tensors in a hook's result or argument as arrays."""
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


def _again(argument: Any) -> Any:
    """Returns a fresh copy of a hook's argument, whose list the hook may change."""
    if hasattr(argument, "anew"):
        return argument.anew()
    return list(argument) if contract.is_a(argument, list) else argument


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


class References(Mapping[str, Any]):
    """Reference models in the trial: the teacher in place of each of them."""

    def __init__(self, names: Sequence[str], hooks: TrialHooks):
        """Stores the arguments."""
        self._names, self._hooks = names, hooks

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise contract.NeedError(
                f"there is no model {name!r}{contract.near(name, self._names)}; a term"
                f" may read {', '.join(self._names)}."
            )
        self._hooks.references.add(name)
        return self._hooks.teacher

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
