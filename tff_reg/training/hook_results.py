"""Checks of hooks' results: a term, a changed batch or pass, the end of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tff_reg.methods import contract, method as method_lib
from tff_reg.training import hooks as hooks_lib

# Names of measurements that are reported for every method.
RESERVED = ("term", "share", "not_finite")


def term(method: method_lib.Method, given: Any, dtype: tf.DType):
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


def changed(
    hooks: hooks_lib.Hooks,
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


def finished(
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
