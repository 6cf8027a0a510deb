"""The calls of the methods' hooks in a round: plain, or checked in a trial.

The trial runs eagerly on a model of its own, so that errors of hooks come before
anything is traced and show the author's line.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tff_reg.lazy import np
from tff_reg.methods import checks, contract, method as method_lib
from tff_reg.training import needs as needs_lib

_OF_WEIGHTS = ("task_loss", "weights", "start", "global_weights", "key")
_OF_OPTIMIZER = ("step_size", "taken", "scaled_gradient_sum")
# How far the numbers of two calls of a hook may be apart.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


class Hooks:
    """Calls the methods' hooks; a trial has others."""

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        """Calls a hook, as `contract.call`."""
        return contract.call(method, hook, *arguments)

    def seen(self, method: method_lib.Method, value: Any) -> Any:
        """The `Step` or `Local` as a hook of the method gets it."""
        return value

    def add(
        self,
        memories: dict[str, Any],
        key: str,
        method: method_lib.Method,
        hook: str,
        value: Any,
    ) -> None:
        """Adds a method's new memory to the memories of all methods, under `key`."""
        memories[key] = value


PLAIN = Hooks()


class TrialHooks(Hooks):
    """Calls hooks eagerly and twice; notes the attributes that they read.

    Attributes:
      model: The model of the trial.
      found: (method's name, attribute) pairs.
      references: Names of the models beside the local one.
      measured: What each method measured, by name, by the method's name.
    """

    def __init__(self, model: Any):
        """Begins with nothing read."""
        self.model = model
        self.found: set[tuple[str, str]] = set()
        self.references: set[str] = set()
        self.measured: Mapping[str, Mapping[str, Any]] = {}
        # By hook and key of a memory: the method that returned it, and the value.
        self._added: dict[tuple[str, str], tuple[str, Any]] = {}

    def call(self, method: method_lib.Method, hook: str, *arguments: Any) -> Any:
        """Calls a hook as a pure function of its arguments.

        Raises:
          HookError: If it assigns to the weights, or gives other numbers when it is
            called again.
        """
        before, given = self._weights(hook), [*map(_again, arguments)]
        memories = _memories(given)
        first = contract.call(method, hook, *given)
        _check_edits(method, hook, memories, _memories(given), first)
        second = contract.call(method, hook, *map(_again, arguments))
        if self._weights(hook) != before:
            why = "it assigns to the model's weights: return them from the hook start."
            raise contract.refuse(method, hook, why)
        self.check_same(method, hook, first, second)
        return second

    def check_same(
        self, method: method_lib.Method, hook: str, first: Any, second: Any
    ) -> None:
        """Refuses other numbers of the second of two calls."""
        if not _are_close(first, second):
            raise contract.refuse(
                method,
                hook,
                "called again with the same arguments it gives other numbers: it draws"
                " tf.random's (take tf.random.stateless_normal with step.key, a batch's"
                " key or a number such as local.num_steps as its seed), counts its"
                " calls, or edits its arguments in place.",
            )

    def _weights(self, hook: str) -> list[bytes]:
        """The model's weights; statistics but where the hook runs the model."""
        weights = [*self.model.trainable_variables]
        if hook != "gradient":
            weights += self.model.non_trainable_variables
        return [v.numpy().tobytes() for v in weights]

    def seen(self, method: method_lib.Method, value: Any) -> Any:
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

    def add(
        self,
        memories: dict[str, Any],
        key: str,
        method: method_lib.Method,
        hook: str,
        value: Any,
    ) -> None:
        """Adds a memory; refuses another value of a shared one."""
        # A client's and the server's memory may have one name.
        whose, other = self._added.setdefault((hook, key), (method.name, value))
        if not _are_close(value, other):
            raise contract.refuse(
                method,
                hook,
                f"it returns another value of the shared memory {key!r} than"
                f" {whose}.{hook}: let one of them return it, or do not share it.",
            )
        memories[key] = value

    def _check(self, method: method_lib.Method, value: Any, name: str) -> None:
        """Checks that a value that a hook reads is there."""
        is_step = isinstance(value, method_lib.Step)
        if name == "class_counts" or (is_step and name not in _OF_WEIGHTS):
            checks.require_network(method, self.model)
            checks.require_classifier(method, self.model)
        if name in _OF_OPTIMIZER and "learning_rate" not in value.hparams:
            value.hparams["learning_rate"]  # Says what is missing.


def _memories(arguments: Sequence[Any]) -> dict[str, list[Any]]:
    """The arrays of the memories in a hook's arguments, by name."""
    found: dict[str, list[Any]] = {}
    for argument in arguments:
        for where in ("memory", "server_memory", "old_memory"):
            owner = getattr(argument, "_value", argument)
            memory: Mapping[str, Any] = getattr(owner, where, None) or {}
            for name, value in memory.items():
                found[f"{where}[{name!r}]"] = [*_arrays(value)]
    return found


def _check_edits(
    method: method_lib.Method,
    hook: str,
    before: Mapping[str, list[Any]],
    after: Mapping[str, list[Any]],
    result: Any,
) -> None:
    """Refuses memories that a hook edits in place and does not return."""
    returned = [*_arrays(result)]
    for name, arrays in after.items():
        old = before.get(name)
        is_same = old is not None and len(old) == len(arrays)
        if is_same and all(map(_is_close, old or (), arrays)):
            continue
        if not all(any(_is_close(kept, each) for kept in returned) for each in arrays):
            why = f"it edits {name} in place, which is not kept: return the new value."
            raise contract.refuse(method, hook, why)


def _are_close(first: Any, second: Any) -> bool:
    """Whether two structures hold the same numbers; rounding may differ on a GPU."""
    arrays = [*_arrays(first)], [*_arrays(second)]
    return len(arrays[0]) == len(arrays[1]) and all(map(_is_close, *arrays))


def _is_close(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    if (one == other).all() or one.dtype.kind not in "iuf":
        return bool((one == other).all())
    near = np.abs(one - other) <= _ABSOLUTE + _RELATIVE * np.abs(other)
    return bool((near | (np.isnan(one) & np.isnan(other))).all())


def _arrays(value: Any) -> Iterator[Any]:
    """The tensors in a hook's result, as arrays."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if contract.is_a(value, Mapping):
        value = [*value.values()]
    if contract.is_a(value, (list, tuple)):
        for each in value:
            yield from _arrays(each)
    elif hasattr(value, "numpy"):
        yield value.numpy()
    elif contract.is_a(value, (bool, int, float, np.ndarray)):
        yield np.asarray(value)


def _again(argument: Any) -> Any:
    """A hook's argument for one of two calls, with lists that it may change."""
    if hasattr(argument, "anew"):
        return argument.anew()
    if contract.is_a(argument, (Mapping, method_lib.Server)):
        return copy.deepcopy(argument)
    return list(argument) if contract.is_a(argument, list) else argument


class _Watched:
    """Passes reads of attributes on, and tells a function their names."""

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
    """Returns the value in a wrapper that refuses reads of missing attributes."""

    def refuse(name: str) -> None:
        if name in missing:
            raise contract.NeedError(_UNSEEN.format(name))

    return _Watched(value, refuse)


class References(Mapping[str, Any]):
    """Reference models in the trial: the local model stands for all."""

    def __init__(self, model: Any, names: Sequence[str], hooks: TrialHooks):
        """Keeps all three.

        Args:
          model: The model.
          names: The names of the reference models.
          hooks: Where reads are noted.
        """
        self._model, self._names, self._hooks = model, names, hooks

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise contract.NeedError(
                f"there is no model {name!r}{contract.near(name, self._names)}; a term"
                f" may read {', '.join(self._names)}."
            )
        self._hooks.references.add(name)
        return self._model

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
