"""The methods, one file each; `method.Method` is what a method is.

    from tff_reg import methods
    methods.FedProx(strength=0.1)

`methods.NAME` is the class of a method, ours or an installed package's; `names` lists
them. Nothing here loads TensorFlow before it is used.
"""

from importlib import util
from typing import Any

from tff_reg.methods.catalogue import (
    MethodError,
    UnknownProcessError,
    build,
    methods,
    names,
    parse,
    settings,
    strengths,
)
from tff_reg.methods.method import (
    IncompatibleMethodsError,
    Local,
    Method,
    Server,
    Step,
    Term,
)

__all__ = [
    "IncompatibleMethodsError",
    "Local",
    "Method",
    "MethodError",
    "Server",
    "Step",
    "Term",
    "UnknownProcessError",
    "build",
    "methods",
    "names",
    "parse",
    "settings",
    "strengths",
]


def __getattr__(name: str) -> Any:
    """The class of a method by the class's name."""
    # An import asks here first for modules of this package that are not loaded yet.
    if util.find_spec(f"{__name__}.{name}") is None:
        for found in methods().values():
            if found.__name__ == name:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
