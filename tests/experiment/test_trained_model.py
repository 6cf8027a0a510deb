"""The model of a result, and the Keras model of a file that a run wrote."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_zoo
from tff_reg import data, experiment, methods, models, runtime, training
from tff_reg.data import augmentation
from tff_reg.experiment import progress
from tff_reg.experiment.rounds import checkpoints

SHAPE = (8, 8, 1)
NORMALIZE = augmentation.normalize((0.4,), (0.2,))


@pytest.fixture(params=keras_zoo.KERASES)
def keras(request):
    return keras_zoo.KERASES[request.param]


def _user_model(keras, activation="softmax"):
    L = keras.layers
    keras.utils.set_random_seed(0)
    layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.2)]
    last = L.Dense(3, activation=activation)
    model = keras.Sequential([keras.Input(SHAPE), *layers, L.Flatten(), last])
    model.compile(loss="sparse_categorical_crossentropy")
    return model


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
                process.model_fn,
                x,
                y,
                preprocess_fn=normalize,
                metrics={"highest": lambda y, p: p.max(axis=-1)},
            ),
            progress=progress.Silence(),
            **options,
        )


def _assert_as_evaluated(predicted, result):
    accuracy = np.mean(np.argmax(predicted, axis=1) == _examples()[1])
    assert accuracy == pytest.approx(result.rows[-1]["evaluation/accuracy"])
    highest = np.mean(np.max(predicted, axis=1))
    assert highest == pytest.approx(result.rows[-1]["evaluation/highest"], rel=1e-5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.filterwarnings("ignore:The model .* returns no probabilities")
def test_a_results_model_preprocesses_and_is_saved(keras, tmp_path, activation):
    def root(x):
        return tf.sqrt(tf.cast(x, tf.float32))

    model_fn = models.from_keras(_user_model(keras, activation))
    result = _run(model_fn, normalize=root)
    predicted = result.model.predict(_examples()[0])
    expected = model_fn.keras_model(result.weights)(root(_examples()[0]))
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    _assert_as_evaluated(predicted, result)
    result.model.save(tmp_path / "model")
    signature = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (found,) = signature(tf.constant(_examples()[0])).values()
    np.testing.assert_allclose(found, predicted, rtol=1e-5, atol=1e-6)


def test_without_preprocessing_it_is_a_copy_of_the_users_model(keras):
    model = _user_model(keras)
    before, model_fn = model.get_weights(), models.from_keras(model)
    first, second = (_run(model_fn, normalize=None).model for _ in range(2))
    assert isinstance(first, keras.Model) and first is not second
    for result, other, own, old in zip(
        *(each.get_weights() for each in (first, second, model)), before, strict=True
    ):
        np.testing.assert_array_equal(result, other)
        np.testing.assert_array_equal(own, old)
    assert not np.array_equal(first.get_weights()[0], before[0])


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
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
    store = checkpoints.CheckpointStore(tmp_path / "checkpoints")
    for name in ("final_weights.npz", store.latest().part("server_state.npz")):
        for variable in model.weights:
            variable.assign(np.zeros(variable.shape))
        found = model_fn.keras_model(tmp_path / name)
        assert found is model
        _assert_as_evaluated(found.predict(normalized, verbose=0), result)
    other = models.from_keras(keras_zoo.NETWORKS["sequential"].build(keras))
    with pytest.raises(ValueError, match="are not of the model"):
        other.keras_model(tmp_path / "final_weights.npz")


@pytest.mark.parametrize("keras", keras_zoo.ONE_A_DAY, indirect=True)
def test_a_keras_model_cannot_hold_the_layer_of_a_method(keras):
    replaced = _run(
        models.from_keras(_user_model(keras)), [methods.FedETF()], normalize=None
    )
    with pytest.raises(ValueError, match="was replaced by a SimplexClassifier"):
        _ = replaced.model
