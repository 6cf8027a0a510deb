"""The methods, one file each; `method.Method` is their base class.

    from tff_reg import methods
    methods.FedProx(strength=0.1)

`methods.CLASS` is the class of a method, built-in or from an installed package; `names`
returns the methods' names. TensorFlow is loaded at its first use, not at import.
"""

from typing import Any

from tff_reg.methods.catalogue import (
    UnknownProcessError,
    build,
    hyperparameters,
    methods,
    names,
    parse,
    settings,
)
from tff_reg.methods.checks import IncompatibleMethodsError
from tff_reg.methods.contract import ContractError, HookError
from tff_reg.methods.memories import initial_weights, recent, sent, shared, zeros
from tff_reg.methods.method import (
    CLASSIFIER,
    DRIFT,
    EXACT_UPLOADS,
    FEATURES,
    FIRST_STATE,
    ONE_LABEL,
    RATE,
    SERVER,
    UNIFORM_WEIGHTING,
    Method,
)
from tff_reg.methods.states import Batch, Change, Finished, Local, Server, Step, Term

__all__ = [
    "CLASSIFIER",
    "DRIFT",
    "EXACT_UPLOADS",
    "FEATURES",
    "FIRST_STATE",
    "ONE_LABEL",
    "RATE",
    "SERVER",
    "UNIFORM_WEIGHTING",
    "Batch",
    "Change",
    "ContractError",
    "Finished",
    "HookError",
    "IncompatibleMethodsError",
    "Local",
    "Method",
    "Server",
    "Step",
    "Term",
    "UnknownProcessError",
    "build",
    "initial_weights",
    "methods",
    "names",
    "parse",
    "recent",
    "sent",
    "settings",
    "shared",
    "hyperparameters",
    "zeros",
]


def __getattr__(name: str) -> Any:
    """Returns the class of a method by the class's name."""
    # Python also calls this for submodules that are not imported yet.
    if name[:1].isupper():
        for found in methods().values():
            if found.__name__ == name:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
