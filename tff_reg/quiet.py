"""Silences the start-up messages of TensorFlow, TFF and gRPC.

These are about 40 lines for an import and a round: missing CUDA drivers, CPU features,
plug-ins registered twice, the libraries' use of deprecated functions. Some come from
C++ before Python's logging is set up, so they must be switched off in the environment
before TensorFlow is imported. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

# Variables, unless set by the user. Child processes (TFF's C++ worker) inherit them.
#
# TF_CPP_MIN_LOG_LEVEL: 3 leaves fatal messages only. 2 would leave three lines at error
# level about cuDNN, cuFFT and cuBLAS factories registered twice, which TensorFlow 2.14
# prints on every machine. Failures of operations are Python exceptions in any case.
# GRPC_VERBOSITY: gRPC's failures are exceptions too.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}
_VERBOSE = {"TF_CPP_MIN_LOG_LEVEL": "0", "GRPC_VERBOSITY": "INFO"}

# Beginnings of warnings that the libraries raise about each other.
_WARNINGS = (
    "pkg_resources is deprecated",
    "Deprecated call to `pkg_resources",
)


# TensorFlow 2.21 writes these to stderr on import, before it reads the variables.
_REMARK = re.compile(rb"WARNING: All log messages before absl::InitializeLog|I\d{4} ")


def silence_at_import() -> None:
    """Makes the import of TensorFlow call `silence`, unless it was called before.

    Nothing changes before TensorFlow is imported, and nothing at all if the user has
    set TF_CPP_MIN_LOG_LEVEL to 0.
    """
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _TensorFlowFinder(decide=True))


def silence(verbose: bool = False) -> None:
    """Silences the start-up messages, or lets all of them through.

    Call it before TensorFlow is imported; afterwards it has little effect.
    Environment variables that the user has set are left as they are.

    Args:
        verbose: Whether to let them through, as `--verbosity=0` or more does.
    """
    sys.meta_path[:] = [
        each for each in sys.meta_path if not isinstance(each, _TensorFlowFinder)
    ]
    for name, value in (_VERBOSE if verbose else _QUIET).items():
        os.environ.setdefault(name, value)
    if verbose:
        return
    for beginning in _WARNINGS:
        warnings.filterwarnings("ignore", message=beginning)
    # AutoGraph's and Keras's remarks; errors stay.
    logger = logging.getLogger("tensorflow")
    logger.setLevel(logging.ERROR)
    logger.addFilter(_is_about_something_used)
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _TensorFlowFinder())


def _is_about_something_used(record: logging.LogRecord) -> bool:
    """Returns False for TensorFlow's "Object was never used", and True otherwise.

    TensorFlow logs it for every assertion in the graphs of TFF's secure aggregation.
    """
    return "Object was never used" not in str(record.msg)


class _TensorFlowFinder:
    """Import finder for TensorFlow, used once; its loader drops TensorFlow's remarks.

    With `decide`, `silence` has not been called yet: the finder calls it.
    """

    def __init__(self, decide: bool = False):
        self._decide = decide

    def find_spec(self, name, path=None, target=None):
        del target
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        if self._decide:
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
                return None
            silence()
            return importlib.util.find_spec(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Wrapper of a loader that drops remarks while the module is executed."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        with _without_remarks():
            self._loader.exec_module(module)


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Drops TensorFlow's remarks from C++'s output to the standard error.

    Python's own output goes through at once, because Ctrl-C may end the process here.
    """
    try:
        kept = os.dup(2)
    except OSError:  # There is no standard error.
        yield
        return
    stderr = sys.stderr
    with tempfile.TemporaryFile() as file:
        # The stream stays open: absl keeps a reference to it.
        sys.stderr = os.fdopen(kept, "w", buffering=1, errors="backslashreplace")
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            sys.stderr = stderr
            file.seek(0)
            for line in file:
                if not _REMARK.match(line):
                    os.write(2, line)
