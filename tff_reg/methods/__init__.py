"""The methods, one file each; `method.Method` is what a method is.

    from tff_reg.methods import fedprox
    fedprox.FedProx(strength=0.1)

`catalogue` has them by name. Nothing here loads TensorFlow before it is used.
"""

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
