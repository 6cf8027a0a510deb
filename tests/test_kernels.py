"""Which kernels TensorFlow computes with."""

import os

import pytest

from tests import commands
from tff_reg import kernels

_REPORT = "print(kernels.describe(), os.environ.get(kernels.VARIABLE))"


def test_onednn_is_chosen_unless_the_user_chose():
    chosen = os.environ[kernels.VARIABLE]  # By `import tff_reg` in the tests' set-up.
    assert kernels.describe() == {"1": "oneDNN", "0": "Eigen"}[chosen]


@pytest.mark.slow  # A start of TensorFlow each.
@pytest.mark.parametrize(
    "given, program, expected",
    [
        ("0", f"import os; from tff_reg import kernels; {_REPORT}", "Eigen 0"),
        # Too late: children are told nothing else than what holds here.
        (
            None,
            "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''; import tensorflow; "
            f"from tff_reg import kernels; {_REPORT}",
            "None",
        ),
    ],
)
def test_the_users_choice_counts(given, program, expected):
    done = commands.python(program, **{kernels.VARIABLE: given})
    assert done.stdout.strip().endswith(expected)
