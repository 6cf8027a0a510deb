"""Local-regularisation methods for federated learning, as processes of TFF.

Importing this package loads neither TensorFlow nor TensorFlow Federated; the
sub-packages that need them load them at first use (see `tff_reg.lazy`). They are there
when they are asked for: `tff_reg.methods`, `tff_reg.training`, `tff_reg.models`,
`tff_reg.data`, `tff_reg.runtime`, `tff_reg.experiment`, `tff_reg.analysis`,
`tff_reg.tasks`, `tff_reg.testing`.
"""

import importlib
from typing import Any

from tff_reg import kernels, seam

__version__ = "0.2.0"
# Where this is public, https://github.com/OWNER/NAME; empty until it is. The site, the
# notebooks, pyproject.toml and CITATION.cff name it only then; tests hold them to it.
REPOSITORY = ""

_ROOMS = (
    "analysis",
    "data",
    "experiment",
    "methods",
    "models",
    "runtime",
    "tasks",
    "testing",
    "training",
)

# Before TensorFlow and TFF are imported, whoever does.
kernels.choose()
seam.install()


def __getattr__(name: str) -> Any:
    """A sub-package, imported when it is asked for."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
