"""Keras 2 is taken from one place, whatever `tf.keras` is, and Keras 3 is refused."""

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import experiment, models, seam, training

IS_TODAY = tf.__version__ > "2.16"
needs_keras_3 = pytest.mark.skipif(
    not IS_TODAY, reason="TensorFlow 2.14 has Keras 2 alone"
)


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
