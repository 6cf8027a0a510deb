"""Digests of examples, of their split and of functions, by which runs are compared.

Those of examples are computed from the arrays in memory, so the location of the files
does not matter. SHA-256 takes about a second for two gigabytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg.lazy import np

EXAMPLES, SPLIT, TEST_EXAMPLES = "examples", "split", "test_examples"
# Names in `config.json`: of the digest of all examples, and of that of their split.
DATA, DEALT = "digest_of_data", "digest_of_split"
# The same of the user's functions, which are the arguments of these names.
FUNCTIONS = {
    f"digest_of_{n}": n for n in ("sample_fn", "client_dataset_fn", "evaluate")
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def together(parts: Mapping[str, str]) -> str:
    """Returns one digest of several."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def recorded(parts: Mapping[str, str]) -> dict[str, str]:
    """Returns the digests of examples and split by their names in `config.json`."""
    examples = {name: value for name, value in parts.items() if name != SPLIT}
    found = {DATA: together(examples)} if examples else {}
    return {**found, DEALT: parts[SPLIT]} if SPLIT in parts else found


def client_ids(count: int) -> list[str]:
    """Returns the default names of `count` clients: client_0000, client_0001, ..."""
    digits = max(4, len(str(count - 1)))
    return [f"client_{row:0{digits}d}" for row in range(count)]


def of_examples(*arrays: Any) -> str:
    """Returns the digest of the types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_function(function: Any) -> str:
    """Returns the digest of a function's code and of the values that it closes over.

    They include its defaults and the attributes of a callable object or a method's
    object. Functions that it calls are not part of it, unless they are closed over.
    What it collects in this process does not change the digest: it is that of the first
    call. Several functions are a tuple.
    """
    if isinstance(function, tuple):
        text = f"tuple({','.join(map(_first_content, function))})"
    else:
        text = _first_content(function)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_FIRST: dict[tuple[int, int], str] = {}


def _first_content(function: Any) -> str:
    """Returns the content of a function when it was first seen."""
    owner = getattr(function, "__self__", function)
    key = id(owner), id(getattr(function, "__func__", function))
    if key not in _FIRST:
        text = _content(function)
        try:
            weakref.finalize(owner, _FIRST.pop, key, None).atexit = False
        except TypeError:  # A plain value.
            return text
        _FIRST[key] = text
    return _FIRST[key]


def _content(value: Any, within: tuple = ()) -> str:
    """Returns a text that another process finds for the same code and values."""
    if isinstance(value, (*_PLAIN, np.generic)):
        return repr(value)
    if any(value is each for each in within):  # A function that calls itself.
        return ""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    parts: list[Any] = []
    if isinstance(value, (tuple, list, set, frozenset)):
        parts = [*value]
    elif isinstance(value, dict):
        parts = [*value.items()]
    elif isinstance(value, np.ndarray):
        parts = (
            value.ravel().tolist() if value.dtype.hasobject else [of_examples(value)]
        )
    elif isinstance(value, types.MethodType):
        parts = [*_attributes(value.__self__), value.__func__]
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, *sorted(value.keywords.items())]
    elif isinstance(value, types.CodeType):
        name = value.co_code.hex()
        parts = [value.co_names, value.co_consts]
    elif isinstance(value, types.FunctionType):
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        named = sorted((value.__kwdefaults__ or {}).items())
        parts = [value.__code__, value.__defaults__, *named, *closed]
    elif hasattr(value, "__wrapped__"):  # A `tf.function`, or one with a cache.
        parts = [value.__wrapped__]
    elif hasattr(value, "get_config"):  # A metric of Keras, which numbers its name.
        with contextlib.suppress(NotImplementedError):  # A sub-classed model.
            name += json.dumps({**value.get_config(), "name": ""}, default=str)
    elif not isinstance(value, type):
        call = callable(value) and type(value).__call__
        is_callable = isinstance(call, types.FunctionType)
        if is_callable or dataclasses.is_dataclass(value):
            parts = _attributes(value)
        parts += [call] if is_callable else []
    texts = [_content(each, (*within, value)) for each in parts]
    if isinstance(value, (set, frozenset, dict)):
        texts.sort()
    return f"{name}({','.join(texts)})"


def _attributes(value: Any) -> list[Any]:
    """Returns the attributes of an object that its digest depends on."""
    if dataclasses.is_dataclass(value):
        return [getattr(value, each.name) for each in dataclasses.fields(value)]
    if hasattr(value, "get_config") or isinstance(value, type):
        return [value]
    if hasattr(value, "digests"):  # Client data, whose other attributes may differ.
        return [value.digests]
    return sorted(getattr(value, "__dict__", {}).items())


def of_split(client_ids: Sequence[str], positions: Sequence[Any]) -> str:
    """Returns the digest of a split of the examples into clients."""
    digest = hashlib.sha256(json.dumps(list(client_ids)).encode("utf-8"))
    for of_client in positions:
        own = np.ascontiguousarray(of_client, "<i8")
        digest.update(len(own).to_bytes(8, "little"))
        digest.update(own.tobytes())
    return digest.hexdigest()
