"""Keras 2 is taken from one place, whatever `tf.keras` is, and Keras 3 is refused."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests import commands
from tff_reg import experiment, models, seam, training
from tff_reg.lazy import keras

IS_TODAY = tf.__version__ > "2.16"
needs_keras_3 = pytest.mark.skipif(
    not IS_TODAY, reason="TensorFlow 2.14 has Keras 2 alone"
)
TRAINING = """
import json
import tensorflow as tf
tf.zeros([])  # TensorFlow is in use, on as many threads, whether Keras 3 is or not.
{first}
from tff_reg import data, experiment, methods, models, runtime, training
from tff_reg.experiment import progress
from tff_reg.lazy import keras, np
import sklearn.datasets

runtime.use("in_process")
x, y = sklearn.datasets.load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[:400]
clients = data.ArrayClientData(x, y, np.array_split(np.arange(400), 4))
model_fn = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=10)
found = []
process = training.build_regularized(
    model_fn,
    [methods.FedProx(0.1)],
    training.build_sgd(0.05, momentum=0.9),
    client_data=training.WholeClientData(batch_size=32, local_epochs=1),
)
rows = experiment.train(
    process,
    clients,
    total_rounds=2,
    clients_per_round=2,
    evaluate=experiment.CentralEvaluation(model_fn, x, y),
    progress=progress.Silence(),
).rows
found += [float(row[key]) for row in rows for key in row if "loss" in key]
print(json.dumps([tf.keras.Model.__module__, keras.Model.__module__, found]))
"""
KERAS_3_FIRST = "import keras; keras.layers.Dense(3)(tf.zeros([1, 2])); tf.keras.Model"


@pytest.mark.slow  # Two processes; tests/test_seam.py has the quick ones.
@needs_keras_3
def test_where_keras_3_is_in_use_already_training_gives_the_same_digits():
    outputs = []
    for first in ("", KERAS_3_FIRST):
        program = TRAINING.format(first=first)
        done = commands.python(program, TF_USE_LEGACY_KERAS=None)
        outputs.append(json.loads(done.stdout.splitlines()[-1]))
    assert all(each[0].startswith("keras.") for each in outputs)
    assert keras.Model.__module__.startswith("tf_keras.")
    assert [each[1] for each in outputs] == [keras.Model.__module__] * 2
    losses = outputs[0][2]
    assert len(losses) == 4 and losses[0] > losses[2]
    assert outputs[1][2] == losses


def _model(keras_3):
    return keras_3.Sequential([keras_3.Input([4]), keras_3.layers.Dense(3)])


def _central_evaluation(keras_3):
    images = np.zeros((2, 4), np.float32)
    experiment.CentralEvaluation(lambda: _model(keras_3), images, np.zeros(2, int))


DOORS = {
    "LearningModel": lambda keras_3: models.LearningModel(_model(keras_3)),
    "model_fn": lambda keras_3: training.build("fedavg", _model(keras_3)),
    "what model_fn makes": lambda keras_3: training.build(
        "fedavg", lambda: _model(keras_3)
    ),
    "CentralEvaluation": _central_evaluation,
}


@needs_keras_3
@pytest.mark.parametrize("door", DOORS)
def test_where_a_keras_model_is_given_itself_it_is_said_which_call_takes_it(door):
    import keras as keras_3  # noqa: PLC0415

    with pytest.raises(TypeError, match=r"tff_reg\.models\.from_keras\(model\)"):
        DOORS[door](keras_3)


@needs_keras_3
def test_without_keras_2_the_line_that_installs_it_is_said(monkeypatch):
    monkeypatch.setattr(seam, "_found", lambda name, path: None)
    release = ".".join(tf.__version__.split(".")[:2])
    with pytest.raises(seam.MissingError) as raised:
        seam.keras()
    assert str(raised.value) == (
        "Keras 2, tf_keras, is not installed in this Python; this installs it: pip"
        f" install --no-deps tf_keras~={release}.0"
    )


@pytest.mark.parametrize(
    "tensorflow, wanted",
    [("2.14.1", ""), ("2.19.1", "~=2.19.0"), ("2.22.0rc0", "~=2.21.0")],
)
def test_pip_gets_the_keras_2_of_the_tensorflow_that_is_there(
    monkeypatch, tensorflow, wanted
):
    monkeypatch.setattr(seam.importlib.metadata, "version", lambda name: tensorflow)
    assert seam.install_command().partition(" tf_keras")[2] == wanted
