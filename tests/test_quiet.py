"""Tests of tff_reg/quiet.py and of how light `import tff_reg` is."""

import pytest

from tests import commands

UNSET = {"TF_CPP_MIN_LOG_LEVEL": None, "GRPC_VERBOSITY": None}
USE_TENSORFLOW = """
from tff_reg import quiet
quiet.silence(verbose={verbose})
import tensorflow_federated, tensorflow as tf
tf.get_logger().warning("a remark")
print(tf.function(lambda x: x + 1)(tf.ones([])).numpy())
"""


@pytest.mark.slow
def test_nothing_is_printed_by_the_libraries_by_default():
    done = commands.python(USE_TENSORFLOW.format(verbose=False), **UNSET)
    assert (done.stdout, done.stderr) == ("2.0\n", "")


@pytest.mark.slow
def test_verbose_brings_the_noise_back():
    done = commands.python(USE_TENSORFLOW.format(verbose=True), **UNSET)
    assert done.stdout == "2.0\n"
    assert "cpu_feature_guard" in done.stderr  # C++, level info
    assert "pkg_resources is deprecated" in done.stderr  # a Python warning
    assert "a remark" in done.stderr  # TensorFlow's Python logger


@pytest.mark.parametrize("verbose", [False, True])
def test_variables_that_the_user_has_set_are_kept(verbose):
    program = (
        "from tff_reg import quiet; import os;"
        f"quiet.silence(verbose={verbose}); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    assert commands.python(program, TF_CPP_MIN_LOG_LEVEL="1").stdout == "1\n"


def test_data_tasks_and_configs_are_known_without_a_heavy_library():
    program = """
import sys
from tff_reg import data, quiet, tasks
from tff_reg.experiment.config import run_config as config
for name in tasks.names():
    tasks.defaults(name)
config.RunConfig(process="fedalign", strengths={"fedalign_width": 0.5})
print(*(name.partition(".")[0] for name in sys.modules))
"""
    heavy = {"tensorflow", "tensorflow_federated", "numpy", "sklearn", "matplotlib"}
    assert not heavy & set(commands.python(program).stdout.split())


# In a Python of its own: whoever imports tff_reg first starts TensorFlow silently.
START = "import tff_reg, tensorflow as tf; print(tf.function(lambda: 2)().numpy())"


def test_importing_the_package_silences_the_start_unless_the_user_wants_it():
    done = commands.python(START, **UNSET)
    assert (done.stdout, done.stderr) == ("2\n", "")
    done = commands.python(START, **{**UNSET, "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert "cpu_feature_guard" in done.stderr


def test_importing_the_package_changes_no_variable_before_tensorflow_is():
    program = "import os, tff_reg; print('TF_CPP_MIN_LOG_LEVEL' in os.environ)"
    assert commands.python(program, **UNSET).stdout == "False\n"


def test_every_public_name_is_completed_before_it_is_used():
    program = """
import importlib, sys
import tff_reg
print("tensorflow" in sys.modules, *sorted(tff_reg.__all__), len(dir(tff_reg)))
for name in [n for n in dir(tff_reg) if n.islower() and not n.startswith("_")]:
    if name in ("run", "compare"):
        continue
    room = importlib.import_module(f"tff_reg.{name}")
    assert name in dir(tff_reg), name
    assert not {*getattr(room, "__all__", ())} - {*dir(room)}, name
"""
    assert commands.python(program).stdout == "False compare run 13\n"


def test_sub_packages_are_there_when_they_are_asked_for():
    program = (
        "import tff_reg; print(tff_reg.methods.FedProx(0.1).strength, "
        "tff_reg.runtime.KINDS, hasattr(tff_reg, 'nothing'),"
        " 'analysis' in dir(tff_reg))"
    )
    printed = commands.python(program).stdout
    assert printed.startswith("0.1 (") and printed.endswith(" False True\n")
