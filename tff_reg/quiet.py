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
import logging
import os
import sys
import warnings
from collections.abc import Iterator

from tff_reg.seam import keras_later

# TF_CPP_MIN_LOG_LEVEL: 3 leaves fatal messages only. 2 would leave three lines at error
# level about cuDNN, cuFFT and cuBLAS factories registered twice, which TensorFlow 2.14
# prints on every machine. Failures of operations and of gRPC are Python exceptions.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}
_VERBOSE = {"TF_CPP_MIN_LOG_LEVEL": "0", "GRPC_VERBOSITY": "INFO"}
# The beginning of warnings that the libraries raise about each other.
_WARNINGS = "(Deprecated call to `)?pkg_resources"


def silence(verbose: bool = False) -> None:
    """Silences the start-up messages, or lets all of them through.

    Called when `tff_reg` is imported; has an effect until TensorFlow is. What the user
    has set in the environment stays, unless `verbose` asks for all messages.
    """
    if verbose:
        os.environ.update(_VERBOSE)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("default" if verbose else "ignore", message=_WARNINGS)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    logger = logging.getLogger("tensorflow")  # AutoGraph's and Keras's remarks, too.
    logger.setLevel(logging.NOTSET if verbose else logging.ERROR)
    if not verbose:
        logger.addFilter(_is_about_something_used)


def _is_about_something_used(record: logging.LogRecord) -> bool:
    """Drops what TensorFlow logs for every assertion of TFF's secure sums."""
    return "Object was never used" not in str(record.msg)


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of TensorFlow, whose import is unheard, and without Keras."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                with unheard(), keras_later.refused():
                    execute(module)

            spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Drops all output to standard error in the body of a `with` statement.

    C++ libraries write there before they read any setting.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    sys.stderr.flush()
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # There is no standard error.
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
