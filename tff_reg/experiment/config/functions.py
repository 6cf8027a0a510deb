"""Digests of the functions among a run's settings, for `config.json`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tff_reg.lazy import np

# Of more bytes a text has their digest.
_LONGEST = 10_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_HOLDING = (*_CONTAINERS, types.FunctionType, types.MethodType, functools.partial)


def described(function: Any, *, of_objects: bool = True) -> str:
    """Returns a text that changes when a function computes something else.

    It covers the compiled function, so comments and layout do not count: the bytecode
    and constants, default arguments, values of closure and global variables, and
    Python's version, on which the bytecode depends. Functions that it calls are covered
    by their names only.

    >>> from tff_reg.experiment.config import functions
    >>> texts = [functions.described(lambda x, rate=rate: rate) for rate in (0.1, 0.2)]
    >>> texts[0] == texts[1]
    False

    Args:
      function: A function, a `functools.partial` or another object that is called.
      of_objects: Whether the attributes of objects that it holds count.

    Returns:
      Its name, Python's version and a digest; for another object the name of its class
      and a digest of its attributes, except variables and iterators, which change.
    """
    parts = repr(_parts(function, (), of_objects))
    digest = hashlib.sha256(parts.encode()).hexdigest()[:10]
    name = getattr(function, "__name__", type(function).__name__)
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{name} {version} {digest}"


def _parts(value: Any, around: tuple[Any, ...], of_objects: bool) -> Any:
    """Returns the content of a value, whose `repr` has no addresses in memory.

    Args:
      value: The value.
      around: The values that contain it: a function may refer to itself.
      of_objects: As for `described`.
    """
    if isinstance(value, _PLAIN):
        return value
    if any(value is each for each in around):
        return None
    around = (*around, value)

    def parts(values: Iterable[Any]) -> list[Any]:
        return [_parts(each, around, of_objects) for each in values]

    if isinstance(value, types.MethodType):
        return parts([value.__func__, value.__self__])
    if isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
        known = _globals_of(value.__code__, value.__globals__)
        return [_code(value.__code__), *parts([*defaults, *cells, *known])]
    if isinstance(value, functools.partial):
        return parts([value.func, value.args, value.keywords])
    if isinstance(value, Mapping):
        return [(str(k), *parts([each])) for k, each in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, parts(value)))
    changes = isinstance(value, Iterator) or hasattr(value, "assign_add")
    changes = changes or hasattr(value, "element_spec")  # A data set may not end.
    if hasattr(value, "__array__") and not changes:
        array = np.asarray(value)
        content = array.tolist() if array.dtype.hasobject else array.tobytes()
        if len(content) > _LONGEST:
            content = hashlib.sha256(content).hexdigest()
        return [array.dtype.str, array.shape, *parts([content])]
    if isinstance(value, Iterable) and not hasattr(value, "shape") and not changes:
        return parts(value)
    own = _attributes(value) if of_objects and not changes else {}
    return [type(value).__qualname__, *parts(sorted(own.items(), key=lambda x: x[0]))]


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes that determine a result; other objects are left out."""
    own = getattr(value, "__dict__", {})
    if not hasattr(value, "update_state"):
        return {
            name: each
            for name, each in own.items()
            if isinstance(each, (*_PLAIN, *_HOLDING)) or hasattr(each, "__array__")
        }
    # A Keras metric's other attributes are its name, which Keras numbers, its
    # accumulated values, and whether it is built.
    found = {n: v for n, v in own.items() if isinstance(v, _PLAIN) and "buil" not in n}
    with contextlib.suppress(NotImplementedError):
        found.update(value.get_config())
    return {n: v for n, v in found.items() if n not in ("name", "_name")}


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return None


def _code(code: types.CodeType) -> Any:
    constants = [
        _code(each) if isinstance(each, types.CodeType) else _constant(each)
        for each in code.co_consts
    ]
    return [code.co_code, code.co_names, code.co_varnames, constants]


def _globals_of(code: types.CodeType, known: Mapping[str, Any]) -> list[Any]:
    """Returns the plain global values, containers and arrays that code names."""
    found = [known[name] for name in code.co_names if name in known]
    found = [
        each
        for each in found
        if isinstance(each, (*_PLAIN, *_CONTAINERS)) or hasattr(each, "__array__")
    ]
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [*found, *(value for each in inner for value in _globals_of(each, known))]


def _constant(value: Any) -> Any:
    """Returns a constant; a set as a sorted list, since its order is not fixed."""
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
