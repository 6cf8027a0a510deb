"""Reads pickles of arrays, numbers, texts and containers, and nothing else.

CIFAR's official "python version" and the splits of many a script are pickles, and a
pickle may call any function. Here it may only use the names with which NumPy's arrays
and numbers and Python's containers are pickled. These names do not lead to NumPy but to
the small classes below, which check their arguments.
"""

from __future__ import annotations

import pickle
from typing import Any

from tff_reg.lazy import np

# Whole numbers, real numbers and truth values of fixed size.
_KINDS = frozenset("iufb")


class PickleError(ValueError):
    """Raised for a file that cannot be read or is refused; says why."""


class _Refused(Exception):
    """Raised if a pickle has more than arrays, numbers, texts and containers."""


class _NoState:
    """Base of the admitted names; a pickle cannot change them."""

    __slots__ = ()

    def __setstate__(self, state):
        raise _Refused("a state where there is none")


class _ArrayClass(_NoState):
    """Stands for numpy.ndarray, an argument of `_Reconstruct` only."""

    __slots__ = ()

    def __new__(cls, *_):
        raise _Refused("numpy.ndarray called")


class _Encode(_NoState):
    """Stands for _codecs.encode: Python 3's way to write bytes in old protocols."""

    __slots__ = ()

    def __new__(cls, text="", encoding=""):
        if not isinstance(text, str) or encoding != "latin1":
            raise _Refused(f"an encoding {encoding!r}")
        return text.encode("latin1")


class _Bytes(_NoState):
    """Stands for bytes: Python 3's way to write empty bytes in old protocols."""

    __slots__ = ()

    def __new__(cls, *arguments):
        if arguments:
            raise _Refused("bytes made of something")
        return b""


class _DType:
    """Stands for numpy.dtype."""

    __slots__ = ("_code", "_order")

    def __init__(self, code="", align=False, copy=False):
        del align, copy
        code = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if not isinstance(code, str) or len(code) != 2 or code[0] not in _KINDS:
            raise _Refused(f"a data type {code!r}")
        self._code, self._order = code, "|"

    def __setstate__(self, state):
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        order = order.decode("ascii", "replace") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise _Refused(f"a byte order {order!r}")
        self._order = order

    def numpy(self):
        try:
            return np.dtype(self._order + self._code)
        except TypeError as error:
            raise _Refused(f"a data type {self._code!r}") from error


class _Reconstruct:
    """Stands for an array; `__setstate__` reads the array."""

    __slots__ = ("array",)

    def __init__(self, kind=None, shape=None, code=None):
        del shape, code
        if kind is not _ArrayClass:
            raise _Refused("an array of another class")
        self.array = None

    def __setstate__(self, state):
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("an array of unknown form")
        _, shape, dtype, is_fortran, content = state
        if isinstance(content, str):  # Python 2's bytes.
            content = content.encode("latin1")
        if (
            not isinstance(dtype, _DType)
            or not isinstance(content, bytes)
            or not isinstance(shape, tuple)
            or not all(type(size) is int and size >= 0 for size in shape)
        ):
            raise _Refused("an array of unknown form")
        flat = np.frombuffer(content, dtype.numpy())
        self.array = flat.reshape(shape, order="F" if is_fortran else "C")


class _FromBuffer(_NoState):
    """Stands for an array of protocol 5."""

    __slots__ = ("array",)

    def __init__(self, content=None, dtype=None, shape=None, order=None):
        if isinstance(content, bytearray):
            content = bytes(content)
        self.array = None
        read = _Reconstruct(_ArrayClass)
        read.__setstate__((1, shape, dtype, order == "F", content))
        self.array = read.array


class _Scalar(_NoState):
    """Stands for a number of NumPy."""

    __slots__ = ("array",)

    def __init__(self, dtype=None, content=None):
        read = _Reconstruct(_ArrayClass)
        read.__setstate__((1, (1,), dtype, False, content))
        self.array = np.asarray(read.array)[0]


class _Dict(dict):
    """Takes the place of `defaultdict` and `OrderedDict`; ignores their arguments."""

    def __init__(self, *_):
        super().__init__()

    def __setstate__(self, state):
        raise _Refused("a state where there is none")


class _List(_NoState):
    """Stands for list, an argument of `defaultdict` only."""

    __slots__ = ()

    def __new__(cls, *_):
        raise _Refused("list called")


class _Set(_NoState):
    """Stands for set: how protocols before 4 write it."""

    __slots__ = ()

    def __new__(cls, items=()):
        if not isinstance(items, list):
            raise _Refused("a set made of something")
        return set(items)


_ADMITTED = {
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy._core.multiarray", "scalar"): _Scalar,
    ("collections", "defaultdict"): _Dict,
    ("collections", "OrderedDict"): _Dict,
    ("_codecs", "encode"): _Encode,
    ("__builtin__", "bytes"): _Bytes,
    ("builtins", "bytes"): _Bytes,
    ("builtins", "bytearray"): _Bytes,
    ("__builtin__", "list"): _List,
    ("builtins", "list"): _List,
    ("__builtin__", "set"): _Set,
    ("builtins", "set"): _Set,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}")
        return _ADMITTED[module, name]


def _read(value: Any) -> Any:
    """Returns what was read, with the arrays in the place of what stands for them."""
    if isinstance(value, (_Reconstruct, _FromBuffer, _Scalar)):
        return value.array
    if isinstance(value, dict):
        return {_read(key): _read(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(map(_read, value))
    return value


def load(path: str) -> Any:
    """Reads a pickle of arrays and containers.

    Python 2's texts become `str`; arrays are read-only.

    Raises:
      PickleError: If the file cannot be read, is cut off, is no pickle, or has more
        than arrays and containers.
    """
    try:
        with open(path, "rb") as file:
            return _read(_Unpickler(file, encoding="latin1").load())
    except OSError as error:
        raise PickleError(f"{path} cannot be read ({error.strerror}).") from error
    except _Refused as error:
        raise PickleError(
            f"{path} is refused: it asks for {error}, which no data set needs."
        ) from error
    # For cut off or damaged files the unpickler raises almost any error.
    except Exception as error:  # pylint: disable=broad-except
        raise PickleError(
            f"{path} is damaged or no pickle ({type(error).__name__}); unpack the "
            "download again."
        ) from error
