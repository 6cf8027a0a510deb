"""Digests of examples, of their split and of models, by which runs are compared.

Those of examples are computed from the arrays in memory, so the location of the files
does not matter. SHA-256 takes about a second for two gigabytes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import dis
import functools
import hashlib
import json
import re
import sys
import types
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from absl import flags

from tff_reg.lazy import np, tree

EXAMPLES, SPLIT, TEST_EXAMPLES = "examples", "split", "test_examples"
# Names in `config.json`: of the digest of all examples, and of that of their split.
DATA, DEALT = "digest_of_data", "digest_of_split"
# Those of the user's Keras model and its weights.
KERAS_MODEL, KERAS_WEIGHTS = "keras_model", "keras_weights"
# That of the initial weights of our networks that are from a file.
INITIAL_WEIGHTS = "digest_of_initial_weights"
# That of the user's own metrics and sampling.
FUNCTIONS = "digest_of_functions"
# That of each client's work, speed and attack, which depend on the split and the seed.
WORK = "digest_of_unequal_work"
# What they are of, in words.
WORDS = {
    DATA: "data",
    DEALT: "split of the data into clients",
    INITIAL_WEIGHTS: "initial weights from a file",
    FUNCTIONS: "code of its metrics or sampling",
    WORK: "work, speeds or attacks of the clients",
    **dict.fromkeys((KERAS_MODEL, "keras_blocks", "keras_loss"), "Keras model"),
    KERAS_WEIGHTS: "initial weights of the Keras model",
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_STANDARD = frozenset(sys.stdlib_module_names)
# Their factories and queries show nothing but hold their arguments.
_OF_AGGREGATORS = ("tensorflow_federated", "tensorflow_privacy")


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
    """Returns the digest of the types, shapes and values of arrays, also in dicts."""
    digest = hashlib.sha256()
    for array in tree.flatten(arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_tests(x: Any, y: Any, subsets: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digest of test examples and of their subsets' names and masks."""
    masks = [*map(np.asarray, subsets.values())]
    names = [np.array([*subsets])] if subsets else []
    return {TEST_EXAMPLES: of_examples(x, y, *masks, *names)}


def of_functions(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digest of the user's functions and Keras's metrics, if any.

    Other objects may change while they are used, and only have names.
    """
    functions = (types.FunctionType, functools.partial)
    found = {
        name: of_config(each) if hasattr(each, "get_config") else described(each)
        for name, each in given.items()
        if isinstance(each, functions) or hasattr(each, "get_config")
        if not str(getattr(each, "__module__", "")).startswith("tff_reg.")
    }
    return {FUNCTIONS: together(found)} if found else {}


def of_value(value: Any) -> str:
    """Returns a digest of a value, such as a Keras layer's settings and code."""
    return _short(_content(value, {}))


def described(value: Any) -> str:
    """Returns a value as a text, in which code, arrays and long parts are digests."""
    return _content(value, {})


def is_own(module: Any) -> bool:
    """Returns whether a module, by its name, is of the user, not of a package."""
    top = str(module).partition(".")[0]
    file = getattr(sys.modules.get(str(module)), "__file__", None) or ""
    return top not in _STANDARD | {"tff_reg", "tasks"} and "-packages" not in file


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _content(value: Any, seen: MutableMapping[int, tuple[Any, str]]) -> str:
    """Returns a text that another process finds for the same code and values.

    `seen` has the values so far, which are kept, and their texts by their `id`.
    """
    if isinstance(value, (*_PLAIN, np.generic)):
        return str(value) if isinstance(value, np.generic) else repr(value)
    name = getattr(value, "__qualname__", type(value).__qualname__)
    name = "" if type(value) in (dict, list, tuple) else name
    if id(value) not in seen:
        seen[id(value)] = value, name  # For one that contains itself.
        texts: list[str] = []
        # What has no such value, as a lock or an open file, is its type's name.
        with contextlib.suppress(Exception):
            parts = _parts(value)
            if isinstance(parts, dict):
                for k, v in parts.items():
                    key = k if isinstance(k, str) else _content(k, seen)
                    texts.append(f"{key}={_content(v, seen)}")
            elif isinstance(parts, (set, frozenset)):  # In no order.
                texts += [_content(v, collections.ChainMap({}, seen)) for v in parts]
            else:
                texts += [_content(each, seen) for each in parts]
            if isinstance(parts, (dict, set, frozenset)):
                texts.sort()
        text = f"{name}({', '.join(texts)})" if texts or not name else name
        is_code = isinstance(value, (types.CodeType, types.FunctionType, type))
        if texts and (is_code or len(text) > 200):
            text = f"{name}:{_short(text)}"
        seen[id(value)] = value, text
    return seen[id(value)][1]


def _parts(value: Any) -> Any:
    """Returns what a value consists of; a dict has names."""
    kind = type(value)
    if isinstance(value, (dict, tuple, list, set, frozenset)):
        return value
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, types.FunctionType):
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        code = [value.__code__, _globals(value)] if is_own(value.__module__) else []
        return value.__defaults__, value.__kwdefaults__, *closed, *code
    if isinstance(value, type):
        own = is_own(value.__module__)
        held = {"bases": value.__bases__, **vars(value)} if own else {}
        return {
            name: each
            for name, each in held.items()
            if isinstance(each, types.FunctionType) or not name.startswith("__")
        }
    if isinstance(value, types.ModuleType):
        return (value.__name__,)  # A run's code has the user's files.
    if isinstance(value, property):
        return value.fget, value.fset
    if hasattr(value, "__wrapped__"):  # A `tf.function`, or one with a cache.
        return (value.__wrapped__,)
    if hasattr(value, "digests"):  # Client data, whose other attributes may differ.
        return (value.digests,)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return array.ravel().tolist() if array.dtype.hasobject else [of_examples(array)]
    if hasattr(value, "get_config"):  # Of Keras. Weights may have random values.
        fixed = getattr(value, "non_trainable_weights", ())
        # The configs of Keras's losses lack their arguments.
        given = getattr(value, "_fn_kwargs", None)
        values = [*map(np.asarray, fixed)]
        return kind, of_config(value), given, values, values_of(value)
    if is_own(kind.__module__) or kind.__module__.split(".")[0] in _STANDARD:
        reduced = value.__reduce_ex__(2)
        parts = (reduced,) if isinstance(reduced, str) else reduced[1:]
        parts = [[*each] if hasattr(each, "__next__") else each for each in parts]
        return [kind, *parts]
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if kind.__module__.partition(".")[0] in _OF_AGGREGATORS and not callable(value):
        own = dict(vars(value)) if hasattr(value, "__dict__") else {}
        for name, function in vars(kind).items():  # Of a class within a function.
            cells = getattr(function, "__closure__", None) or ()
            own |= {f"{name} {n}": cell.cell_contents for n, cell in enumerate(cells)}
        return {name: v for name, v in own.items() if not isinstance(v, type)}
    simple = (*_PLAIN, np.generic, dict, tuple, list, types.FunctionType)
    return {  # Other objects of packages may differ between processes.
        name: each
        for name, each in vars(value).items()
        if isinstance(each, simple) or hasattr(each, "__array__")
        if name.strip("_") != "name"
    }


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Returns the globals that a function names, but parsed flags."""
    codes, found = [function.__code__], {}
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for each in dis.get_instructions(code):
            if each.opname == "LOAD_GLOBAL" and each.argval in function.__globals__:
                value = function.__globals__[each.argval]
                if not isinstance(value, (argparse.Namespace, flags.FlagValues)):
                    found[each.argval] = value
    return found


def values_of(value: Any) -> dict[str, Any]:
    """Returns a Keras object's own callables, and the values that own code names."""
    own = [vars(kind) for kind in type(value).__mro__ if is_own(kind.__module__)]
    code = [getattr(each, "__code__", None) for k in own for each in k.values()]
    # Keras numbers names, and wraps `build`.
    named = {n for c in code if c for n in c.co_names} - {"name", "build"}
    plain = (*_PLAIN, np.generic, types.FunctionType)

    def is_value(each: Any) -> bool:
        leaves = tree.flatten(each) if isinstance(each, (list, tuple, dict)) else [each]
        return all(
            isinstance(leaf, plain)
            or dataclasses.is_dataclass(leaf)
            or (hasattr(leaf, "__array__") and not hasattr(leaf, "assign"))
            for leaf in leaves
        )

    return {
        name: each
        for name, each in vars(value).items()
        if (name in named and is_value(each))
        or (callable(each) and is_own(getattr(each, "__module__", "tff_reg")))
        if not hasattr(getattr(each, "__self__", each), "weights")  # Layers.
    }


def of_config(value: Any) -> str:
    """Returns the config of an object of Keras with its layers' names numbered."""
    try:
        text = json.dumps(value.get_config(), default=described)
    except NotImplementedError:  # Of the user's own class.
        shapes = [tuple(each.shape) for each in getattr(value, "weights", ())]
        text = repr([type(value).__qualname__, shapes])
    # Keras numbers layer names, so two copies of a network may have different names.
    for number, name in enumerate(
        dict.fromkeys(re.findall(r'"name": ("[^"]*")', text))
    ):
        text = re.sub(f"{re.escape(name)}(?!:)", f'"#{number}"', text)
    return text


def of_split(client_ids: Sequence[str], positions: Sequence[Any]) -> str:
    """Returns the digest of a split of the examples into clients."""
    digest = hashlib.sha256(json.dumps(list(client_ids)).encode("utf-8"))
    for of_client in positions:
        own = np.ascontiguousarray(of_client, "<i8")
        digest.update(len(own).to_bytes(8, "little"))
        digest.update(own.tobytes())
    return digest.hexdigest()
