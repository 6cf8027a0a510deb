"""Keras 2 is taken from one place, whatever `tf.keras` is, and Keras 3 is refused."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests import commands
from tff_reg import analysis, experiment, models, seam, training
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
from tff_reg.lazy import keras, np, sklearn_datasets

runtime.use("in_process")
x, y = sklearn_datasets.load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[:400]
clients = data.ArrayClientData(x, y, np.array_split(np.arange(400), 4))
model_fn = models.build_model_fn("resnet8", image_shape=(8, 8, 1), num_classes=10)
found = []
for chosen in ([], [methods.FedAlign(0.45)]):
    process = training.build_regularized(
        model_fn,
        chosen,
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
print(json.dumps([tf.keras.__name__, keras.Model.__module__, found]))
"""
KERAS_3_FIRST = "import keras; keras.layers.Dense(3)(tf.zeros([1, 2])); tf.keras.Model"


@needs_keras_3
def test_where_keras_3_is_in_use_already_training_gives_the_same_digits():
    outputs = []
    for first in ("", KERAS_3_FIRST):
        program = TRAINING.format(first=first)
        done = commands.python(program, TF_USE_LEGACY_KERAS=None)
        outputs.append(json.loads(done.stdout.splitlines()[-1]))
    assert [each[0] for each in outputs] == [
        "tf_keras.api._v2.keras",
        "keras._tf_keras.keras",
    ]
    assert keras.Model.__module__.startswith("tf_keras.")
    assert [each[1] for each in outputs] == [keras.Model.__module__] * 2
    losses = outputs[0][2]
    assert len(losses) == 8 and losses[0] > losses[2] and losses[4] > losses[6]
    assert outputs[1][2] == losses


def _from_keras_blocks(keras_3):
    layers = [keras_3.layers.Flatten(), keras_3.layers.Dense(3)]
    models.from_keras_blocks(layers, input_shape=(2, 2, 1))


def _from_a_sequential_block(keras_3):
    block = keras_3.Sequential([keras_3.layers.Flatten()])
    models.from_keras_blocks([block, keras.layers.Dense(3)], input_shape=(2, 2, 1))


def _build_regularized(keras_3):
    training.build_regularized(lambda: _model(keras_3), [], training.build_sgd(0.1))


def _central_evaluation(keras_3):
    images = np.zeros((2, 4), np.float32)
    experiment.CentralEvaluation(lambda: _model(keras_3), images, np.zeros(2, int))


def _hessian(keras_3):
    batch = (np.zeros((2, 4), np.float32), np.zeros(2, np.int32))
    analysis.Hessian(_model(keras_3), batch)


def _model(keras_3):
    return keras_3.Sequential([keras_3.Input([4]), keras_3.layers.Dense(3)])


DOORS = {
    "from_keras_blocks": _from_keras_blocks,
    "a Sequential as a block": _from_a_sequential_block,
    "LearningModel": lambda keras_3: models.LearningModel(_model(keras_3)),
    "build_model_fn": lambda keras_3: models.build_model_fn(
        _model(keras_3), image_shape=(8, 8, 1), num_classes=3
    ),
    "build_regularized": _build_regularized,
    "CentralEvaluation": _central_evaluation,
    "Hessian": _hessian,
    "singular values": lambda keras_3: analysis.spectra.classifier_singular_values(
        _model(keras_3)
    ),
}


@needs_keras_3
@pytest.mark.parametrize("door", DOORS)
def test_keras_3_is_refused_in_one_sentence_that_says_what_to_do(door):
    import keras as keras_3  # noqa: PLC0415

    with pytest.raises(TypeError) as raised:
        DOORS[door](keras_3)
    words = str(raised.value)
    assert words.endswith(
        " is of Keras 3, and tff_reg takes models and layers of Keras 2: build it with"
        " tf_keras (import tf_keras as keras)."
    )
    assert words.split()[0] in ("Sequential", "Flatten")


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
