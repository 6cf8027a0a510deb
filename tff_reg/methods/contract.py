"""Checks that a method is written as `Method` says.

Names are checked when the class is made, results when a hook is called.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import linecache
import os
import random
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf

PAGE = "docs/pages/tutorials/add_a_method.md"
# Names of the contract of version 0.1, and what stands in their place.
_REPLACED = {
    "initial_client_memory": "client_memory",
    "initial_server_memory": "server_memory",
    "update_server": "update_memory and next_model",
    "displacement": "gradient",
    "displacement_loss": "gradient",
    "displaces": "gradient",
    "displaces_by_gradient": "gradient",
    "scale": "Finished(scale=...) of finish",
    "sent": "server_memory with methods.sent",
    "brings": "required_settings",
    "claims": "exclusive",
    "reference_models": "nothing: step.outputs_of(name) is enough",
    "measurement_names": "nothing: Term(measurements={...}) is enough",
    "records_activations": "nothing: step.outputs.activations is enough",
    "is_random": "nothing: step.key is enough",
    "needs_class_counts": "nothing: step.class_counts is enough",
    "needs_network": "nothing: reading step.outputs is enough",
    "needs_population": "nothing: reading server.num_clients is enough",
    "needs_gradients": "nothing: reading local.taken is enough",
    "needs_learning_rate": "nothing: reading local.hparams is enough",
    "needs_one_label": "needs = {methods.ONE_LABEL}",
    "needs_exact_uploads": "needs = {methods.EXACT_UPLOADS}",
    "needs_uniform_weighting": "needs = {methods.UNIFORM_WEIGHTING}",
}
_SIMILAR = 0.7


class ContractError(TypeError):
    """A class of a method is not written as `Method` says."""


class HookError(ValueError):
    """A hook failed, or returned what it must not.

    Its message names the method, the hook, and where there is one the author's line.
    """


class NeedError(ValueError):
    """A hook read what this process does not have; the message says what to give."""


class NetworkNeededError(TypeError):
    """A method looks inside the network of a model that shows none."""


class ClassifierNeededError(ValueError):
    """A method needs a classifier, and the network is none."""


# They name the method or the setting by themselves.
_OF_OURS = (
    HookError,
    NetworkNeededError,
    ClassifierNeededError,
    settings.SettingError,
)


def near(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing if no name is like it."""
    close = difflib.get_close_matches(name, list(names), 1, _SIMILAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_class(cls: type, base: type, sets: Mapping[str, Mapping[str, str]]) -> None:
    """Checks the names that a method's class has.

    Args:
      cls: The class.
      base: `Method`.
      sets: By an attribute's name, the constants that it may hold, by their names.

    Raises:
      ContractError: If one is of the old contract, or looks like a misspelt one, a hook
        takes other arguments than `Method`'s, or an attribute holds a value that does
        not exist.
    """
    where = f"{cls.__name__} ({_file_of(cls)})"
    public = [name for name in dir(base) if not name.startswith("_")]
    hooks = [name for name in public if inspect.isfunction(getattr(base, name))]
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        is_field = name in cls.__dict__.get("__annotations__", {})
        if name in _REPLACED and not is_field:
            raise ContractError(
                f"{where} has {name!r}, of the contract for methods before version 0.2:"
                f" in its place is {_REPLACED[name]}. See {PAGE}."
            )
        fields = getattr(base_of(cls), "__dataclass_fields__", {})
        if name in fields and not is_field:
            raise ContractError(
                f"{where}: {name} = {value!r} would not count, as {name} is a setting of"
                f" the class that it extends: write `{name}: {fields[name].type} = ...`."
            )
        inherited = any(hasattr(parent, name) for parent in cls.__bases__)
        alike = hooks if inspect.isfunction(value) else sorted({*public} - {*hooks})
        if not inherited and not is_field and (hint := near(name, alike)):
            raise ContractError(
                f"{where} has {name!r}, which is no hook and no attribute of a method"
                f"{hint} A helper of your own may have a name that begins with '_'."
            )
        hook = getattr(base, name, None)
        if inspect.isfunction(hook) and inspect.isfunction(value):
            _check_signature(where, name, value, hook)
    for name, allowed in sets.items():
        value = getattr(cls, name)
        if isinstance(value, str) or any(i not in allowed.values() for i in value):
            raise ContractError(
                f"{where}: {name} = {value!r}; give a tuple of constants of"
                f" tff_reg.methods: {', '.join(allowed)}."
            )


def base_of(cls: type) -> type:
    """The class that another one extends."""
    return cls.__mro__[1]


def check_made(cls: type) -> None:
    """Checks that the decorator made fields of a class's settings.

    Raises:
      ContractError: If one is left, as without it or without its type.
    """
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            raise ContractError(
                f"{cls.__name__} ({_file_of(cls)}): {name} is no setting yet: write"
                f" @dataclasses.dataclass(frozen=True) above the class, and `{name}:"
                " float = ...` with its type."
            )


def _check_signature(where: str, name: str, given: Any, hook: Any) -> None:
    count = len(inspect.signature(hook).parameters)
    example = [f"x{i}" for i in range(count)]
    try:
        inspect.signature(given).bind(*example)
    except TypeError:
        takes = ", ".join(inspect.signature(hook).parameters)
        raise ContractError(f"{where}: {name} must take ({takes}).") from None


def _file_of(cls: type) -> str:
    module = inspect.getmodule(cls)
    return os.path.basename(getattr(module, "__file__", None) or "interactive")


def call(method: Any, hook: str, *arguments: Any) -> Any:
    """Calls a hook of a method.

    Args:
      method: The method.
      hook: The hook's name.
      *arguments: The hook's.

    Returns:
      What it returns.

    Raises:
      HookError: If it fails; the message begins with `<method>.<hook> (<file>, line
        <number>)` and holds the author's own line.
    """
    return run(method, hook, getattr(method, hook), *arguments)


def run(method: Any, hook: str, function: Any, *arguments: Any) -> Any:
    """Calls a function of a method in the place of a hook, as `call`."""
    import numpy as np  # Not before a hook is called.

    drawn = random.getstate(), np.random.get_state()[2]
    try:
        result = function(*arguments)
        if drawn != (random.getstate(), np.random.get_state()[2]):
            raise NeedError(
                "it draws one of Python's or NumPy's random numbers, once when the"
                " process is built and never again: take tf.random.stateless_normal(...,"
                " seed=key) with step.key, or the key of change_batch."
            )
        return result
    except _OF_OURS:
        raise
    except Exception as error:  # A hook may raise anything.
        raise HookError(_told(method, hook, error)) from error


def _told(method: Any, hook: str, error: Exception) -> str:
    own = _files_of(method)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename in own]
    told = _text_of(error)
    if not mine:
        return f"{method.name}.{hook}: {told}"
    last = mine[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    shown = f", `{line}`" if line else ""
    file = os.path.basename(last.filename)
    return f"{method.name}.{hook} ({file}, line {last.lineno}{shown}): {told}"


def _text_of(error: Exception) -> str:
    text, kind = " ".join(str(error).split()) or "no message", type(error).__name__
    if isinstance(error, NeedError):
        return text
    if kind == "OperatorNotAllowedInGraphError" or any(
        sign in text for sign in ("no attribute 'numpy'", "not 'SymbolicTensor'")
    ):
        return (
            "the value of a tensor is not known while the process is built: take"
            " tf.where or tf.cond in place of `if`, and no .numpy(). To look at values,"
            " build with debug_eager (--debug_eager)."
        )
    return f"{kind}: {text}"


def _files_of(method: Any) -> set[str]:
    """The files of a method's class and of the classes that it extends."""
    found: set[str] = set()
    for cls in type(method).__mro__:
        for value in vars(cls).values():
            function = getattr(value, "fget", value)
            if inspect.isfunction(function) and cls.__name__ != "Method":
                found.add(function.__code__.co_filename)
    return {file for file in found if not file.endswith("dataclasses.py")}


def refuse(method: Any, hook: str, why: str) -> HookError:
    """The error of a hook that returned what it must not."""
    function = getattr(type(method), hook, None)
    code = getattr(function, "__code__", None)
    if code is None or type(method).__name__ == "Method":
        return HookError(f"{method.name}.{hook}: {why}")
    file, line = os.path.basename(code.co_filename), code.co_firstlineno
    return HookError(f"{method.name}.{hook} ({file}, line {line}): {why}")


def spec(value: Any) -> str:
    """A tensor's data type and shape in words, or what else a value is."""
    if value is None:
        return "None"
    if not hasattr(value, "dtype"):
        return f"{type(value).__name__} {value!r:.60}"
    shape = tf.TensorShape(value.shape)
    sizes = "of unknown rank" if shape.rank is None else str(shape.as_list())
    return f"{tf.as_dtype(value.dtype).name} {sizes}"


def check_like(
    method: Any, hook: str, values: Any, expected: Sequence[Any], what: str = "weight"
) -> list[Any]:
    """Checks that a hook returned one tensor for each of others, and like it.

    Args:
      method: The method.
      hook: The hook's name.
      values: What it returned.
      expected: Tensors or variables.
      what: What each of them is, for the message.

    Returns:
      The values in a list.

    Raises:
      HookError: If their number, a shape or a data type is another.
    """
    if not isinstance(values, (list, tuple)):
        why = f"it must return a list, a tensor a {what}, not {spec(values)}."
        raise refuse(method, hook, why)
    if len(values) != len(expected):
        raise refuse(
            method,
            hook,
            f"it must return {len(expected)} tensors, one a {what} and in their order,"
            f" but returned {len(values)}.",
        )
    for i, (value, other) in enumerate(zip(values, expected)):
        if not _is_like(value, other):
            raise refuse(
                method, hook, f"tensor {i} must be {spec(other)}, is {spec(value)}."
            )
    return list(values)


def _is_like(value: Any, other: Any) -> bool:
    if not hasattr(value, "dtype"):
        return False
    is_type = tf.as_dtype(value.dtype) == tf.as_dtype(other.dtype)
    return is_type and tf.TensorShape(value.shape).is_compatible_with(other.shape)


def check_structure(
    method: Any, hook: str, what: str, value: Any, expected: Any
) -> Any:
    """Checks that a structure of tensors is like another one.

    Args:
      method: The method.
      hook: The hook's name.
      what: What the structure is, such as `memory 's'`.
      value: The structure.
      expected: The other one.

    Returns:
      The value, packed as `expected`.

    Raises:
      HookError: If it is another structure, or a shape or a data type is another.
    """
    flat, others = tf.nest.flatten(value), tf.nest.flatten(expected)
    if isinstance(expected, Mapping) and isinstance(value, Mapping) and {*value} != {*expected}:
        why = f"{what} must hold {sorted(expected)}, as at first, not {sorted(value)}."
        raise refuse(method, hook, why)
    if len(flat) != len(others):
        raise refuse(
            method,
            hook,
            f"{what} must hold {len(others)} tensors, as at first, but holds"
            f" {len(flat)}.",
        )
    for i, (one, other) in enumerate(zip(flat, others)):
        if not _is_like(one, other):
            raise refuse(
                method,
                hook,
                f"tensor {i} of {what} must be {spec(other)}, as at first, is"
                f" {spec(one)}.",
            )
    return tf.nest.pack_sequence_as(expected, flat)


def check_names(
    method: Any, hook: str, what: str, given: Any, declared: Iterable[str]
) -> None:
    """Checks that a hook returned a mapping whose names are declared.

    Raises:
      HookError: If one is not.
    """
    if not isinstance(given, Mapping):
        raise refuse(
            method, hook, f"{what} must be a mapping of names, not {spec(given)}."
        )
    known = list(declared)
    for name in given:
        if name not in known:
            hint = near(name, known) or f"; it declares {', '.join(known) or 'none'}."
            why = f"{what} has {name!r}, which the class does not declare{hint}"
            raise refuse(method, hook, why)


def check_scalar(
    method: Any, hook: str, what: str, value: Any, dtype: Any = None
) -> Any:
    """Checks that a value is a scalar, of a data type if one is given.

    Returns:
      The value as a tensor; Python numbers become one.

    Raises:
      HookError: If it is not.
    """
    if isinstance(value, (bool, int, float)):
        return tf.constant(value, dtype or tf.float32)
    has_type = hasattr(value, "dtype")
    is_scalar = has_type and tf.TensorShape(value.shape).rank in (0, None)
    if not is_scalar or (dtype is not None and value.dtype != dtype):
        kind = "a number" if dtype is None else f"a {tf.as_dtype(dtype).name} scalar"
        raise refuse(method, hook, f"{what} must be {kind}, is {spec(value)}.")
    return value
