"""Functions among the settings of a run, as `config.json` records them."""

from __future__ import annotations

import functools
import hashlib
import platform
import types
from collections.abc import Iterable, Mapping
from typing import Any


def described(function: Any) -> str:
    """Returns a text that changes when a function computes something else.

    It is made of what Python compiled, so comments and layout do not count: the
    function's code and constants, its default arguments, the values that it has from
    where it was defined, and Python's version, on which the code depends. What the
    function calls is known by its name only.

    >>> from tff_reg.experiment.config import functions
    >>> texts = [functions.described(lambda x, rate=rate: rate) for rate in (0.1, 0.2)]
    >>> texts[0] == texts[1]
    False

    Args:
      function: A function, a `functools.partial` or another object that is called.

    Returns:
      Its name, the version and a digest; for another object the name of its class and
      a digest of its attributes.
    """
    digest = hashlib.sha256(repr(_parts(function)).encode()).hexdigest()[:10]
    name = getattr(function, "__name__", type(function).__name__)
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{name} {version} {digest}"


def _parts(value: Any) -> Any:
    """What `repr` shows of a value, without addresses in memory."""
    if isinstance(value, types.MethodType):
        return [_parts(value.__func__), _parts(value.__self__)]
    if isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
        return [_code(value.__code__), *map(_parts, [*defaults, *cells])]
    if isinstance(value, functools.partial):
        return [*map(_parts, (value.func, value.args, value.keywords))]
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    if isinstance(value, Mapping):
        return [(str(key), _parts(each)) for key, each in value.items()]
    if isinstance(value, Iterable) and not hasattr(value, "shape"):
        return [*map(_parts, value)]
    own = vars(value) if hasattr(value, "__dict__") else {}
    plain = (bool, int, float, str)
    return [
        type(value).__qualname__,
        sorted((name, each) for name, each in own.items() if isinstance(each, plain)),
    ]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Of a function that is not defined yet.
        return None


def _code(code: types.CodeType) -> Any:
    constants = [
        _code(each) if isinstance(each, types.CodeType) else _constant(each)
        for each in code.co_consts
    ]
    return [code.co_code, code.co_names, code.co_varnames, constants]


def _constant(value: Any) -> Any:
    """A constant; sets have no order that lasts."""
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
