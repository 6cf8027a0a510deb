"""The Keras model of a result, of a file that a run wrote, and of a user's own task."""

import json
import subprocess
import sys
import types

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import data, experiment, methods, models, runtime, tasks, training
from tff_reg.data import augmentation
from tff_reg.experiment import progress
from tff_reg.experiment.report import export, trained
from tff_reg.lazy import todays_keras
from tff_reg.models import as_keras

SHAPE = (8, 8, 1)
NORMALIZE = augmentation.normalize((0.4,), (0.2,))
# Run elsewhere: neither tff_reg nor TFF may be needed.
READER = """
import sys
import numpy as np
import {keras} as keras

model = keras.models.load_model(sys.argv[1], compile=False)
np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
assert not {{"tensorflow_federated", "tff_reg"}} & set(sys.modules)
"""


def _user_model(keras):
    L = keras.layers
    keras.utils.set_random_seed(0)
    layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.2)]
    last = L.Dense(3, activation="softmax")
    return keras.Sequential([keras.Input(SHAPE), *layers, L.Flatten(), last])


def _examples():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (60, *SHAPE)).astype(np.uint8)
    return x, (x.mean(axis=(1, 2, 3)) > 127).astype(np.int32) + (x[:, 0, 0, 0] > 127)


def _run(model_fn, chosen=(), normalize=NORMALIZE, **options):
    x, y = _examples()
    preprocess_fn = None
    if normalize is not None:

        def preprocess_fn(x, key):
            return normalize(x)

    process = training.build_regularized(
        model_fn,
        list(chosen),
        training.build_sgd(0.05),
        client_data=training.WholeClientData(
            batch_size=10, preprocess_fn=preprocess_fn, example_dtype="uint8"
        ),
    )
    with runtime.running("in_process"):
        return experiment.train(
            process,
            data.ArrayClientData(x, y, np.array_split(np.arange(60), 3)),
            total_rounds=2,
            clients_per_round=2,
            evaluate=experiment.CentralEvaluation(
                process.model_fn, x, y, preprocess_fn=normalize
            ),
            progress=progress.Silence(),
            **options,
        )


def _assert_as_evaluated(predicted, result):
    accuracy = np.mean(np.argmax(predicted, axis=1) == _examples()[1])
    assert accuracy == pytest.approx(result.rows[-1]["evaluation/accuracy"])


def _read_elsewhere(keras, model, folder):
    """What a saved model predicts in a process that has Keras alone."""
    path, images = folder / "model.keras", folder / "images.npy"
    model.save(path)
    np.save(images, _examples()[0])
    program = READER.format(keras=keras.Model.__module__.partition(".")[0])
    command = [sys.executable, "-I", "-c", program, path, images, folder / "found.npy"]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
    return np.load(folder / "found.npy")


def test_a_results_model_is_the_users_own_after_the_preprocessing(keras, tmp_path):
    model = _user_model(keras)
    result = _run(models.from_keras(model))
    found = result.model
    assert found is result.model and found.layers[-1] is model
    predicted = _read_elsewhere(keras, found, tmp_path)
    np.testing.assert_allclose(predicted.sum(axis=1), 1, rtol=1e-5)
    _assert_as_evaluated(predicted, result)
    # Without one it is the model itself.
    assert _run(models.from_keras(model), normalize=None).model is model


def test_a_results_model_of_our_network_is_read_without_us(tmp_path):
    model_fn = models.build_model_fn("resnet8", image_shape=SHAPE, num_classes=3)
    result = _run(model_fn)
    logits = _read_elsewhere(todays_keras, result.model, tmp_path)
    _assert_as_evaluated(logits, result)
    model = model_fn()
    result.weights.assign_weights_to(model)
    expected = model.predict_on_batch(NORMALIZE(_examples()[0]), training=False)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", [[], [methods.Freeze()]])
def test_the_users_model_reads_what_a_run_wrote(keras, tmp_path, chosen):
    model = _user_model(keras)
    model_fn = models.from_keras(model)
    names = experiment.CentralEvaluation(model_fn, *_examples()).weight_names
    result = _run(
        model_fn,
        chosen,
        output_dir=tmp_path,
        weight_names=None if chosen else names,
    )
    normalized = np.asarray(NORMALIZE(_examples()[0]))
    checkpoint = "checkpoints/round_000002/server_state.npz"
    for name in ("final_weights.npz", checkpoint):
        for variable in model.weights:
            variable.assign(np.zeros(variable.shape))
        found = model_fn.keras_model(tmp_path / name)
        assert found is model
        _assert_as_evaluated(found.predict(normalized, verbose=0), result)
    other = models.from_keras(keras_zoo.NETWORKS["sequential"].build(keras))
    with pytest.raises(ValueError, match="are not of the model"):
        other.keras_model(tmp_path / "final_weights.npz")


def test_a_run_of_a_users_task_and_model_is_exported(keras, tmp_path):
    L = keras.layers
    layers = [L.Flatten(), L.Dense(10, activation="softmax")]
    model_fn = models.from_keras(keras.Sequential([keras.Input(SHAPE), *layers]))

    def build(task, **of_task):
        return attrs.evolve(tasks.build("digits", **of_task), model_fn=model_fn)

    own = types.SimpleNamespace(
        names=lambda: ["mine"],
        defaults=lambda name: tasks.defaults("digits"),
        check_data=lambda name, data_dir: None,
        build=build,
    )
    run_dir = tmp_path / "run"
    config = experiment.RunConfig(
        process="fedprox", task="mine", scale="tiny", output_dir=str(run_dir)
    )
    result = experiment.run(config, tasks=own, progress=progress.Silence())
    for format, name in (("keras", "model.keras"), ("saved_model", "model")):
        run = trained.load(run_dir, tasks=own)
        metadata = export.export(run, format, tmp_path / name)
        stored = json.loads(metadata.read_text("utf-8"))
        assert stored["output"] == "probabilities, in the order of class_names"
        assert stored["model"] == model_fn.plan.model.name
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    images, labels = run.task.test_arrays()
    predicted = np.argmax(loaded.predict(images, verbose=0), axis=1)
    accuracy = result.summary["final_accuracy"]
    assert np.mean(predicted == labels) == pytest.approx(accuracy)


def test_what_gives_no_keras_model_says_why():
    keras = todays_keras
    weights = models.initial_weights(models.from_keras(_user_model(keras)))
    with pytest.raises(as_keras.ExportError, match="Only a process of tff_reg"):
        as_keras.of_process(object(), weights)
    curved = _run(
        models.from_keras(_user_model(keras)),
        normalize=lambda x: tf.sqrt(tf.cast(x, tf.float32)),
    )
    with pytest.raises(as_keras.ExportError, match="not a scale and a shift"):
        _ = curved.model
    x = np.zeros((1, 8, 8, 3), np.uint8)
    mixing = (
        lambda x: x[..., ::-1] - tf.constant([1.0, 2.0, 3.0]),
        lambda x: x[:, ::-1],
    )
    for mix in mixing:
        L = keras.layers
        coloured = keras.Sequential([keras.Input(x.shape[1:]), L.Flatten(), L.Dense(3)])
        network = models.from_keras(coloured)().network
        with pytest.raises(as_keras.ExportError, match="not a scale and a shift"):
            as_keras.build_keras_model(
                network, lambda x, mix=mix: mix(tf.cast(x, tf.float32)), "uint8"
            )
    plain = _user_model(keras)
    replaced = _run(models.from_keras(plain), [methods.FedETF()])
    with pytest.raises(ValueError, match="was replaced by a SimplexClassifier"):
        _ = replaced.model
