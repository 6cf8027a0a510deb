"""How TensorFlow Federated is imported, on today's TensorFlow and its own."""

import os
import pathlib
import subprocess

import pytest
import tensorflow as tf

from tests import commands
from tff_reg import seam
from tff_reg.lazy import tff

ROOT = pathlib.Path(__file__).parents[1]
IS_TODAY = tf.__version__ > "2.16"


@pytest.mark.skipif(not IS_TODAY, reason="TFF's own TensorFlow has all that it imports")
def test_what_is_left_out_says_why_when_it_is_called():
    with pytest.raises(ImportError, match="jax.computation is left out .* jax 0.4.14"):
        tff.jax.computation()
    import tensorflow_privacy  # noqa: PLC0415

    with pytest.raises(ImportError, match="DNNClassifier .* no estimators since 2.16"):
        tensorflow_privacy.DNNClassifier()

    with pytest.raises(ImportError, match="VectorizedDPKerasSGDOptimizer is left out"):

        class Mine(tensorflow_privacy.VectorizedDPKerasSGDOptimizer):
            pass


def test_tff_is_imported_after_tff_reg_without_what_takes_seconds_or_a_worker():
    """Nor a word, where TFF has no C++ worker. Five seconds: TensorFlow starts."""
    program = """
import os, sys
os.uname = lambda: os.uname_result(["Linux", "here", "6", "1", "aarch64"])
import numpy, tff_reg, tensorflow_federated as tff
from tff_reg import quiet
quiet.silence()
print(tff.__version__)
names = ["jax", "keras", "tf_keras", "scipy.stats", "tensorflow_probability.python"]
names += ["scipy.linalg"]
print([name for name in names if name in sys.modules])
import tensorflow as tf, tensorflow_probability as tfp
from scipy.optimize import brentq
tf.get_logger().warning("a remark")
minus_one = brentq(lambda x: x + 1.0, -2.0, 0.0)
print(tfp.distributions.Bernoulli(probs=1.0).sample().numpy() - minus_one)
try:
    tff.tensorflow.computation(lambda x: x + 1, numpy.int32)(1)
except RuntimeError as error:
    print(error)
"""
    done = commands.python(program, TF_CPP_MIN_LOG_LEVEL=None, GRPC_VERBOSITY=None)
    version, imported, sample, refusal = done.stdout.splitlines()
    assert version == seam.TFF_VERSION and sample == "2.0"
    assert imported == "[]" or not IS_TODAY
    assert done.stderr == ""
    assert refusal == (
        "TFF's C++ worker is a program for Linux on x86-64, and this is Linux on"
        " aarch64; use the in_process runtime (tff_reg.runtime)."
    )


@pytest.mark.parametrize(
    "version, words", [("2.13.1", "needs"), ("2.23.0", "not tried")]
)
def test_a_tensorflow_that_is_not_known_is_refused_in_one_sentence(version, words):
    found = tuple(int(part) for part in version.split(".")[:2])
    with pytest.raises(ImportError, match=f"{version} is here; .*{words}") as raised:
        seam._check_tensorflow(found, version)
    assert "2.14 to 2.22" in str(raised.value) and "\n" not in str(raised.value)


def test_a_tff_that_is_not_known_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "version.py").write_text("__version__ = '0.88.0'\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    with pytest.raises(
        ImportError, match="knows TensorFlow Federated 0.87.0, and 0.88"
    ):
        seam._check_tff(spec)


@pytest.mark.parametrize(
    "has_worker, words",
    [(True, "pip install --no-deps"), (False, "--platform=manylinux_2_31_x86_64")],
)
def test_without_tff_the_line_that_installs_it_is_said(monkeypatch, has_worker, words):
    monkeypatch.setattr(seam, "_found", lambda name, path: None)
    monkeypatch.setattr(seam, "has_native_worker_platform", lambda: has_worker)
    with pytest.raises(ModuleNotFoundError, match="is not installed .*" + words):
        seam.FINDER.find_spec("tensorflow_federated")


USERS_OWN_KERAS = """
import os, sys
import tensorflow as tf
{first}
import tensorflow_federated as tff
from tff_reg import models, runtime, training

assert "TF_USE_LEGACY_KERAS" not in os.environ
assert tf.keras.Model.__module__.startswith("keras.")
runtime.use("in_process")
model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)
process = training.build("fedavg", model_fn)
batch = {{"x": tf.ones([4, 8, 8, 1]), "y": tf.zeros([4], tf.int32)}}
process.next(process.initialize(), [tf.data.Dataset.from_tensors(batch)])
assert "tf_keras" not in sys.modules

def of_tff(keras):
    L = keras.layers
    return tff.learning.models.from_keras_model(
        keras.Sequential([L.InputLayer((8, 8, 1)), L.Flatten(), L.Dense(3)]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=tf.nest.map_structure(tf.TensorSpec.from_tensor, batch),
    )
"""
needs_keras_3 = pytest.mark.skipif(
    not IS_TODAY, reason="TensorFlow 2.14 has Keras 2 alone"
)


@needs_keras_3
@pytest.mark.parametrize(
    "first",
    [
        "import keras, tff_reg",
        pytest.param("import tff_reg", marks=pytest.mark.slow),
    ],
)
def test_the_users_keras_stays_and_tffs_own_functions_take_keras_2(first):
    """Keras 2 is missed, then there. Ten seconds: both Kerases start, two processes."""
    then = """
from tff_reg import seam
found = seam._found
seam._found = lambda name, path: None if name == "tf_keras" else found(name, path)
try:
    of_tff(tf.keras)
except ImportError as error:
    print(error)
seam._found = found
import tf_keras
process = tff.learning.algorithms.build_weighted_fed_avg(
    lambda: of_tff(tf_keras), tff.learning.optimizers.build_sgdm(0.1)
)
dataset = tf.data.Dataset.from_tensors(batch)
output = process.next(process.initialize(), [dataset])
model = tf_keras.Sequential([tf_keras.layers.Dense(3)])
model(tf.ones([1, 2]))
assert tf.keras.Model.__module__.startswith("keras.")
weights = tff.learning.models.ModelWeights.from_model(model)
print(output.metrics["client_work"]["train"]["num_examples"], len(weights.trainable))
"""
    program = USERS_OWN_KERAS.format(first=first) + then
    done = commands.python(program, TF_USE_LEGACY_KERAS=None)
    assert done.stdout.splitlines()[-2:] == [
        "Keras 2, tf_keras, is not installed in this Python; this installs it: pip"
        f" install --no-deps {seam._keras_2()}",
        "4 2",
    ]


@needs_keras_3
def test_tffs_own_classes_derive_from_keras_2_wherever_they_are_read_first():
    program = """
import importlib, sys
import tff_reg, tensorflow_federated as tff
from tff_reg.seam import keras_later

def is_empty(value):
    return isinstance(value, keras_later._Empty)

for name, module in list(sys.modules.items()):
    assert not any(map(is_empty, vars(module).values())), name
assert "tf_keras" not in sys.modules
root = "tensorflow_federated.python."
words = importlib.import_module(
    root + "simulation.baselines.stackoverflow.word_prediction_models"
)
counters = importlib.import_module(root + "learning.metrics.counters")
print(int(counters.NumBatchesCounter()(0)), words.TransposableEmbedding.__mro__[1])
assert tff.learning.metrics.NumBatchesCounter is counters.NumBatchesCounter
assert not hasattr(counters, "Other") and not hasattr(tff.learning.metrics, "Other")
"""
    said = commands.python(program, TF_USE_LEGACY_KERAS=None).stdout.splitlines()[-1]
    assert said.startswith("1 <class 'tf_keras.")


def test_the_site_has_the_line_for_todays_tensorflow(monkeypatch):
    monkeypatch.setattr(seam.importlib.metadata, "version", lambda name: "2.21.0")
    monkeypatch.setattr(seam, "has_native_worker_platform", lambda: True)
    page = (ROOT / "docs" / "pages" / "start.md").read_text("utf-8")
    assert f"\n{seam.install_command()}\n" in page


def test_without_tff_a_command_ends_in_the_line_that_installs_it(tmp_path):
    python = commands.python_without_tff(tmp_path / "environment")
    (here := tmp_path / "here").mkdir()
    done = subprocess.run(
        [python, "-m", "tff_reg.commands", "run", "--process=fedavg"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "tff_reg: TensorFlow Federated is not installed in this Python; this installs"
        f" it: {seam.install_command()}"
    )
    assert not [*here.iterdir()]
