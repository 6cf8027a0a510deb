"""Tests of tff_reg/quiet.py and of how light `import tff_reg` is."""

import pytest

from tests import commands

NOISY = """
from tff_reg import quiet
from tff_reg.lazy import tf, tff
quiet.silence(verbose=True)
tff.federated_computation
tf.get_logger().warning("a remark")
print(tf.function(lambda x: x + 1)(tf.ones([])).numpy())
"""


# That nothing is printed by default is in test_seam.py.
@pytest.mark.slow
def test_verbose_brings_the_noise_back():
    done = commands.python(NOISY, TF_CPP_MIN_LOG_LEVEL=None, GRPC_VERBOSITY=None)
    assert done.stdout == "2.0\n"
    assert "cpu_feature_guard" in done.stderr  # C++, level info
    assert "a remark" in done.stderr  # TensorFlow's Python logger


def test_a_variable_that_the_user_has_set_is_kept():
    program = "import os, tff_reg; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    assert commands.python(program, TF_CPP_MIN_LOG_LEVEL="1").stdout == "1\n"


def test_data_tasks_and_configs_are_known_without_a_heavy_library():
    program = """
import sys
from tff_reg import data, quiet, tasks
from tff_reg.experiment.config import run_config as config
for name in tasks.names():
    tasks.defaults(name)
config.RunConfig(process="fedalign", hyperparameters={"fedalign_width": 0.5})
print(*(name.partition(".")[0] for name in sys.modules))
"""
    heavy = {"tensorflow", "tensorflow_federated", "numpy", "sklearn", "matplotlib"}
    assert not heavy & set(commands.python(program).stdout.split())


def test_sub_packages_are_there_when_they_are_asked_for():
    program = (
        "import tff_reg; print(tff_reg.methods.FedProx(0.1).strength, "
        "tff_reg.runtime.KINDS, hasattr(tff_reg, 'nothing'),"
        " sorted(dir(tff_reg)))"
    )
    printed = commands.python(program).stdout
    assert printed.startswith("0.1 (") and printed.endswith(
        " False ['compare', 'run']\n"
    )
