"""Silences what TensorFlow, TFF and gRPC print when they start.

About 40 lines for an import and a round: missing CUDA drivers, CPU features, plug-ins
registered twice, deprecations among the libraries. They come partly from C++, before
any logging of Python's is set up, so they have to be switched off in the environment
and before TensorFlow is imported. Standard library only.
"""

from __future__ import annotations

import logging
import os
import warnings

# What is set unless the user has set it. Child processes (TFF's C++ worker) inherit it.
#
# TF_CPP_MIN_LOG_LEVEL: 3 leaves fatal messages only. 2 would leave three lines at error
# level about cuDNN, cuFFT and cuBLAS factories registered twice, which TensorFlow 2.14
# prints on every machine. Failures of operations are Python exceptions in any case.
# GRPC_VERBOSITY: gRPC's failures are exceptions too.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}
_VERBOSE = {"TF_CPP_MIN_LOG_LEVEL": "0", "GRPC_VERBOSITY": "INFO"}

# Beginnings of warnings that the libraries below us raise about each other.
_WARNINGS = (
    "pkg_resources is deprecated",
    "Deprecated call to `pkg_resources",
)


def silence(verbose: bool = False) -> None:
    """Silences start-up noise, or lets all of it through.

    To be called before TensorFlow is imported; afterwards it has little effect.
    Environment variables that the user has set are left as they are.

    Args:
        verbose: Let the noise through (what `--verbosity=0` or more asks for).
    """
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


def _is_about_something_used(record: logging.LogRecord) -> bool:
    """Whether a record is not TensorFlow's "Object was never used".

    It says so of every assertion that TFF's secure aggregation makes in a graph.
    """
    return "Object was never used" not in str(record.msg)
