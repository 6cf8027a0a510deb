"""The choice of oneDNN's kernels for TensorFlow on CPUs.

By default TensorFlow (2.14 and 2.21) uses oneDNN's kernels only on CPUs with
AVX512-VNNI, AVX512-BF16 or AMX. On others it uses Eigen's, and training takes up to
twice as long; `bin/bench kernels` measures both.
"""

from __future__ import annotations

import os
import sys

from tff_reg.lazy import tf_port

# TensorFlow's variable: "1" for oneDNN's kernels, "0" for Eigen's.
VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def choose() -> None:
    """Chooses oneDNN's kernels for this process and its child processes.

    A value set by the user stays. Once TensorFlow is imported, nothing is changed, so
    that TFF's workers use the same kernels as this process.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")


def describe() -> str:
    """Returns the kernels that TensorFlow uses: 'oneDNN' or 'Eigen'."""
    return "oneDNN" if tf_port.IsMklEnabled() else "Eigen"
