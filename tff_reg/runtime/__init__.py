"""Where TFF computations run: in this process, or in TFF's C++ workers.

    import tff_reg.runtime

    tff_reg.runtime.use("in_process")   # or: with tff_reg.runtime.running(...):
    print(tff_reg.runtime.describe())
    process.next(state, client_data)    # any TFF computation, unchanged

Importing this package imports neither TensorFlow nor TFF; `use` does.
"""

from tff_reg.runtime.choice import (
    KINDS,
    Options,
    describe,
    outside_programs,
    program_context,
    running,
    shutdown,
    use,
    worker_pid,
)
from tff_reg.runtime.devices import NoGpuError
from tff_reg.runtime.worker_process import WorkerError

__all__ = [
    "KINDS",
    "NoGpuError",
    "Options",
    "WorkerError",
    "describe",
    "outside_programs",
    "program_context",
    "running",
    "shutdown",
    "use",
    "worker_pid",
]
