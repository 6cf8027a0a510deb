"""Which kernels TensorFlow computes with."""

import pytest

from tests import commands
from tff_reg import kernels

_REPORT = "print(kernels.describe(), os.environ.get(kernels.VARIABLE))"


@pytest.mark.parametrize(
    "given, program, expected",
    [
        (None, f"import os; from tff_reg import kernels; {_REPORT}", "oneDNN 1"),
        # A start of TensorFlow each.
        pytest.param(
            "0",
            f"import os; from tff_reg import kernels; {_REPORT}",
            "Eigen 0",
            marks=pytest.mark.slow,
        ),
        # Too late: children are told nothing else than what holds here.
        (
            None,
            "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''; import tensorflow; "
            f"from tff_reg import kernels; {_REPORT}",
            "None",
        ),
    ],
)
def test_the_users_choice_counts_then_onednn(given, program, expected):
    done = commands.python(program, **{kernels.VARIABLE: given})
    assert done.stdout.strip().endswith(expected)
