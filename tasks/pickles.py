"""Reads pickles of arrays, numbers, texts and containers, and nothing else.

CIFAR's official "python version" is a set of pickles, and a pickle may call any
function. Here it may only use the names with which NumPy arrays are pickled. These
names do not lead to NumPy but to the small classes below, which check their arguments.
"""

from __future__ import annotations

import pickle
from typing import Any

from tff_reg.lazy import np
from tff_reg.tasks.task_defaults import DataError

# Whole numbers, real numbers and truth values of fixed size.
_KINDS = frozenset("iufb")


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


_ADMITTED = {
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("_codecs", "encode"): _Encode,
    ("__builtin__", "bytes"): _Bytes,
    ("builtins", "bytes"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}")
        return _ADMITTED[module, name]


def load(path: str) -> dict[str, Any]:
    """Reads a pickled dict of arrays and containers.

    Python 2's texts become `str`; arrays are read-only.

    Raises:
      DataError: If the file cannot be read, is cut off, is no pickled dict, or has more
        than arrays and containers.
    """
    try:
        with open(path, "rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
        if not isinstance(content, dict):
            raise DataError(f"{path} is not the pickled dict that it should be.")
        return {
            key: value.array if isinstance(value, _Reconstruct) else value
            for key, value in content.items()
        }
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    except _Refused as error:
        raise DataError(
            f"{path} is refused: it asks for {error}, which no data set needs."
        ) from error
    except DataError:
        raise
    # For cut off or damaged files the unpickler raises almost any error.
    except Exception as error:  # pylint: disable=broad-except
        raise DataError(
            f"{path} is damaged or no pickle ({type(error).__name__}); unpack the "
            "download again."
        ) from error
