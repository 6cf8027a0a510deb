"""Checks of a method against the contract that `Method` defines.

Names are checked when the class is made, results when a hook is called.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import linecache
import os
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from tff_reg import settings
from tff_reg.lazy import np, tf

PAGE = "docs/pages/tutorials/add_a_method.md"
_SIMILAR = 0.7


class ContractError(TypeError):
    """A method's class has a wrong name, signature or constant."""


class HookError(ValueError):
    """A hook failed or returned a wrong value.

    The message names the method, the hook, and the author's line if there is one.
    """


class NeedError(ValueError):
    """A hook uses something that is unavailable to it; the message has the remedy."""


class NetworkNeededError(TypeError):
    """A method needs the network of a model that does not show it."""


class ClassifierNeededError(ValueError):
    """A method needs a classifier, and the network is not one."""


# Errors whose message already names the method or the setting.
_OF_OURS = (
    HookError,
    NetworkNeededError,
    ClassifierNeededError,
    settings.SettingError,
)


def near(name: str, names: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?`, or an empty string without a similar name."""
    close = difflib.get_close_matches(name, list(names), 1, _SIMILAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_class(cls: type, base: type, sets: Mapping[str, Mapping[str, str]]) -> None:
    """Checks the names, hooks and constants of a method's class."""
    where = f"{cls.__name__} ({_file_of(cls)})"
    public = [name for name in dir(base) if not name.startswith("_")]
    hooks = [name for name in public if inspect.isfunction(getattr(base, name))]
    own: dict[str, Any] = dict(vars(cls))
    for name, value in own.items():
        if name.startswith("_"):
            continue
        _check_field(where, cls, name, value)
        is_field = name in cls.__dict__.get("__annotations__", {})
        inherited = any(hasattr(parent, name) for parent in cls.__bases__)
        # Static and class methods wrap a function.
        is_function = callable(getattr(value, "__func__", value))
        alike = hooks if is_function else sorted({*public} - {*hooks})
        if not inherited and not is_field and (hint := near(name, alike)):
            raise ContractError(
                f"{where} has {name!r}, which is no hook and no attribute of a method"
                f"{hint} Begin the name of your own helper with '_'."
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

    if isinstance(own.get("uploads"), str):
        raise ContractError(f"{where}: uploads must be a tuple, such as ('s',).")
    for name in ("client_memory", "server_memory"):
        given = own.get(name, {})
        if not (is_a(given, Mapping) or hasattr(given, "__get__")):
            raise ContractError(
                f"{where}: {name} must be a dict of first values by name, such as"
                " {'s': methods.zeros}."
            )
    _check_does_something(where, cls, base, hooks)


def _check_does_something(where: str, cls: type, base: type, hooks: list[str]) -> None:
    """Refuses a class that has public functions but overrides no hook."""
    own = [
        name
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]
    if own and not any(getattr(cls, name) is not getattr(base, name) for name in hooks):
        raise ContractError(
            f"{where} has {', '.join(map(repr, own))} and no hook, so that it would"
            f" train plain FedAvg; the hooks are {', '.join(hooks)}. See {PAGE}."
        )


def _check_field(where: str, cls: type, name: str, value: Any) -> None:
    """Refuses values that count for nothing, or that `dataclass` would refuse."""
    fields = getattr(cls, "__dataclass_fields__", {})  # Still the parents' fields.
    annotation = cls.__dict__.get("__annotations__", {}).get(name)
    is_field = annotation is not None and "ClassVar" not in str(annotation)
    kind = value.__class__.__name__
    if is_field and kind in ("dict", "list", "set"):
        better = "a tuple as its value" if kind == "list" else "it no type"
        raise ContractError(
            f"{where}: {name} is a setting, whose value cannot be a {kind}:"
            f" give {better}."
        )
    if name in fields and annotation is None:
        raise ContractError(
            f"{where}: {name} = {value!r} would not count, as {name} is a setting of"
            f" the class that it extends: write `{name}: {fields[name].type} = ...`."
        )


def check_made(cls: type) -> None:
    """Checks that `dataclass` turned all settings of a class into fields."""
    inherited = getattr(cls, "__dataclass_fields__", {})
    is_decorated = "__dataclass_fields__" in vars(cls)
    for name, value in vars(cls).items():
        if name in inherited and not is_decorated:
            raise ContractError(
                f"{cls.__name__} ({_file_of(cls)}): {name} = {value!r} would not count:"
                " write @dataclasses.dataclass(frozen=True) above the class."
            )
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


def run(method: Any, hook: str, function: Any, *arguments: Any) -> Any:
    """Calls a function of a method, usually a hook.

    An error becomes a HookError, whose message begins with `<method>.<hook> (<file>,
    line <number>)` and shows the author's line.
    """
    try:
        # The scope is in the names of operations, which TensorFlow's errors show.
        scope = tf.name_scope(f"{method.name}.{hook}".split()[0].lstrip("_"))
        with tf.variable_creator_scope(_no_variable), scope:
            return function(*arguments)
    except _OF_OURS:
        raise
    except Exception as error:  # A hook may raise anything.
        raise HookError(_format_hook_error(method, hook, error)) from error


def _no_variable(_: Any, **arguments: Any) -> Any:
    raise NeedError(
        "it makes a tf.Variable, which no other round and no checkpoint would have:"
        " keep numbers in the state that begin and keep return, or in a memory."
    )


def _format_hook_error(method: Any, hook: str, error: Exception) -> str:
    own = _files_of(method)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename in own]
    told = _text_of(error)
    if not mine or isinstance(error, NeedError):
        return str(refuse(method, hook, told))
    last = mine[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    shown = f", `{line}`" if line else ""
    file = os.path.basename(last.filename)
    return f"{method.name}.{hook} ({file}, line {last.lineno}{shown}): {told}"


def _text_of(error: Exception) -> str:
    text, kind = " ".join(str(error).split()) or "no message", type(error).__name__
    if isinstance(error, NeedError):
        return text
    is_symbolic = "SymbolicTensor" in text or "no attribute 'numpy'" in text
    if kind == "OperatorNotAllowedInGraphError" or is_symbolic:
        return (
            "a tensor has no value while the process is built: use tf.where or tf.cond"
            " instead of `if`, and no .numpy(). To look at values, build with"
            " debug_eager (--debug_eager)."
        )
    return f"{kind}: {text}"


def _files_of(method: Any) -> set[str]:
    """Returns the source files of a method's class and of its base classes."""
    found: set[str] = set()
    for cls in type(method).__mro__:
        for value in vars(cls).values():
            function = getattr(value, "fget", value)
            if inspect.isfunction(function) and cls.__name__ != "Method":
                found.add(function.__code__.co_filename)
    return {file for file in found if not file.endswith("dataclasses.py")}


def refuse(method: Any, hook: str, why: str) -> HookError:
    """Returns the error of a hook that returned a wrong value."""
    code = getattr(getattr(method, hook, None), "__code__", None)
    if code is None or type(method).__name__ == "Method":
        return HookError(f"{method.name}.{hook}: {why}")
    file, line = os.path.basename(code.co_filename), code.co_firstlineno
    return HookError(f"{method.name}.{hook} ({file}, line {line}): {why}")


def spec(value: Any) -> str:
    """Returns a tensor's data type and shape in words, or another value's type."""
    if value is None:
        return "None"
    if not hasattr(value, "dtype"):
        return f"{type(value).__name__} {value!r:.60}"
    shape = tf.TensorShape(value.shape)
    sizes = "of unknown rank" if shape.rank is None else str(shape.as_list())
    return f"{tf.as_dtype(value.dtype).name} {sizes}"


def is_a(value: Any, kinds: Any) -> bool:
    """Calls `isinstance` without narrowing to elements of a type unknown to pyright."""
    return isinstance(value, kinds)


def check(
    method: Any, hook: str, what: str, value: Any, like: Any, is_part: bool = False
) -> Any:
    """Checks names, number, shapes and data types of what a hook returned.

    Args:
      method: The method.
      hook: The hook's name.
      what: What is checked, in words.
      value: What was returned.
      like: An example: a mapping of names, a list of tensors in order, a tensor, for a
        scalar its data type, None for any number, or `...` for whatever.
      is_part: Whether names may be left out.

    Returns:
      The value; a number of Python's as a tensor.

    Raises:
      HookError: If the value is not like that.
    """

    def must(be: str, given: Any) -> HookError:
        return refuse(method, hook, f"{what} must be {be}, is {given}.")

    if is_a(like, Mapping):
        if not is_a(value, Mapping):
            raise must("a mapping of names", spec(value))
        names = [*like]
        for name in value:
            if name not in names:
                hint = near(name, names) or f"; it has {', '.join(names) or 'none'}."
                why = f"{what} has {name!r}, which the class does not declare{hint}"
                raise refuse(method, hook, why)
        if missing := [name for name in names if name not in value and not is_part]:
            raise refuse(method, hook, f"{what} lacks {', '.join(missing)}.")
        for name, each in value.items():
            check(method, hook, f"{what} {name!r}", each, like[name])
    elif is_a(like, (list, tuple)):
        is_list = is_a(value, (list, tuple))
        if not is_list or len(value) != len(like):
            given = f"{len(value)}" if is_list else spec(value)
            raise must(f"{len(like)} tensors, in order", given)
        for i, (each, other) in enumerate(zip(value, like)):
            check(method, hook, f"tensor {i} of {what}", each, other)
    elif like is None or is_a(like, tf.DType):
        if is_a(value, (bool, int, float, np.number)):
            return tf.constant(value, like or tf.float32)
        rank = tf.TensorShape(value.shape).rank if hasattr(value, "dtype") else -1
        if rank not in (0, None) or (like is not None and value.dtype != like):
            kind = "a number" if like is None else f"a {like.name} scalar"
            raise must(kind, spec(value))
    elif like is not ... and not (
        hasattr(value, "dtype")
        and tf.as_dtype(value.dtype) == tf.as_dtype(like.dtype)
        and tf.TensorShape(value.shape).is_compatible_with(like.shape)
    ):
        raise must(spec(like), spec(value))
    return value
