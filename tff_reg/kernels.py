"""Which kernels TensorFlow computes with on CPUs: oneDNN's.

TensorFlow (2.14 and 2.21) takes oneDNN's by itself only where the CPU has AVX512-VNNI,
AVX512-BF16 or AMX, and its own (Eigen's) elsewhere, with which training takes up to
twice as long; `bin/bench kernels` measures both.
"""

from __future__ import annotations

import os
import sys

from tff_reg.lazy import tf_port

# TensorFlow's: "1" for oneDNN's kernels, "0" for Eigen's.
VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def choose() -> None:
    """Chooses oneDNN's kernels, here and in what this process starts.

    What the user has set stays. Once TensorFlow is imported it is too late: then
    nothing is changed, so that TFF's workers compute with what this process does.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")


def describe() -> str:
    """Returns the kernels that TensorFlow computes with: 'oneDNN' or 'Eigen'."""
    return "oneDNN" if tf_port.IsMklEnabled() else "Eigen"
