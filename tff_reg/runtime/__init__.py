"""Runtimes of TFF computations: this process, or Ray.

`use` and `running` choose the runtime for all TFF computations, which stay unchanged.
Importing this package imports neither TensorFlow nor TFF; `use` does.
"""

from tff_reg.runtime.choice import (
    describe,
    outside_programs,
    program_context,
    running,
    shutdown,
    use,
)
from tff_reg.runtime.devices import NoGpuError
from tff_reg.runtime.options import KINDS, WHERE, Options, RuntimeSettings
from tff_reg.seam import WorkerError

__all__ = [
    "KINDS",
    "NoGpuError",
    "Options",
    "RuntimeSettings",
    "WHERE",
    "WorkerError",
    "describe",
    "outside_programs",
    "program_context",
    "running",
    "shutdown",
    "use",
]
