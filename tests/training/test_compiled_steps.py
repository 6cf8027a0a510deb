"""Steps compiled by XLA, beside the same steps as TensorFlow runs them."""

import collections
import dataclasses
import warnings

import numpy as np
import pytest

from tests.training import every_method
from tff_reg import experiment, models, training
from tff_reg.experiment.rounds import progress, runs
from tff_reg.lazy import tf
from tff_reg.runtime import devices, graph_rewrites, visits

pytestmark = pytest.mark.usefixtures("in_process")


def _process(name, compile_steps=True, **changes):
    return training.build_from_settings(
        name,
        lambda: every_method.model_fn(dtype="float64"),
        dataclasses.replace(every_method.settings(name), local_epochs=1, **changes),
        {},
        compile_steps=compile_steps,
        example_dtype="float64",
    )


def _round(name, compile_steps):
    process = _process(name, compile_steps)
    data = every_method.clients(dtype="float64")
    output, weights = every_method.run(process, data, 1)
    of_float32 = tf.nest.map_structure(np.float32, output.metrics["client_work"])
    return [*weights, *tf.nest.flatten(of_float32)]


# Gamma variables, and widths and sizes that are drawn in each step.
REFUSED = {"mixup": "mixup.change_batch", "gradaug": "gradaug.term"}


@pytest.mark.parametrize("name", every_method.NAMES)
def test_every_method_but_two_compiles_and_all_give_the_same(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled, plain = (_round(name, each) for each in (True, False))
    said = [m for m in (str(w.message) for w in caught) if "XLA cannot" in m]
    assert len(said) == (name in REFUSED), said
    assert all(REFUSED[name] in each for each in said), said
    for a, b in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_processes_that_are_built_alike_share_what_is_compiled(monkeypatch):
    """TensorFlow keeps it by the function's name, in memory and on the disk."""
    names, prepare = [], graph_rewrites.prepare

    def recorded(graph_def, **arguments):
        found = prepare(graph_def, **arguments)
        functions = graph_def.library.function
        names.append([f.signature.name for f in functions])
        return found

    monkeypatch.setattr(graph_rewrites, "prepare", recorded)
    compiled = []
    for changes in ({}, {}, {"max_gradient_norm": 3.0}, {"drop_remainder": True}):
        names.clear()
        every_method.run(
            _process("fedprox", **changes), every_method.clients(dtype="float64"), 1
        )
        compiled.append({n for each in names for n in each if "compiled_" in n})
    assert compiled[0] and compiled[0] == compiled[1] == compiled[3]
    assert compiled[2] and not compiled[0] & compiled[2]


def test_steps_are_compiled_by_default_where_there_is_a_gpu(monkeypatch):
    config = experiment.RunConfig(process="fedavg", task="digits", scale="tiny")

    def compiles(**changes):
        resolved = dataclasses.replace(config, **changes).resolved()
        return (
            runs.CheckedRun(resolved)
            .prepare(progress.Silence())
            .process.description.training.compile_steps
        )

    assert not compiles() and compiles(compile_steps="true")
    monkeypatch.setattr(devices, "are_gpus", lambda names: names is None)
    assert compiles() and not compiles(compile_steps="false")
    assert not compiles(devices=("CPU:0",)) and not compiles(debug_eager=True)


def test_what_cannot_be_compiled_is_refused():
    for wrong in ({"client_data": training.BatchedData()}, {"debug_eager": True}):
        arguments = {"client_data": training.WholeClientData(4), **wrong}
        with pytest.raises(ValueError, match="whole-client form, and no debug_eager"):
            training.build_regularized(
                every_method.model_fn,
                [],
                training.build_sgd(0.1),
                compile_steps=True,
                **arguments,
            )


def _keras_round(layers, x, y, num_classes=4):
    """A compiled round of a Keras model on one client's examples."""
    keras = tf.keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *layers(keras)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model_fn = models.from_keras(model, loss_fn=loss)
    process = training.build_regularized(
        model_fn,
        [],
        training.build_sgd(0.1),
        client_data=training.WholeClientData(4),
        compile_steps=True,
    )
    key = np.array([0, 1], np.int64)
    element = collections.OrderedDict(x=x, y=y.astype("int32"), key=key)
    return process.next(process.initialize(), [tf.data.Dataset.from_tensors(element)])


def test_what_xla_would_not_check_is_checked_or_not_compiled():
    ids, labels = np.arange(16).reshape(8, 2) % 9, np.arange(8) % 4

    def embedding(keras):
        return [
            keras.layers.Embedding(8, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]

    with (
        pytest.warns(UserWarning, match="leave the check .* out"),
        pytest.raises(visits.ClientError, match="indices.* = 8"),
    ):
        _keras_round(embedding, ids.astype("int32"), labels)
    x = np.ones([8, 3], np.float32)
    with pytest.raises(visits.ClientError, match="a label is 4, and the model has 4"):
        _keras_round(lambda keras: [keras.layers.Dense(4)], x, labels + 1)


def test_a_model_that_draws_is_not_compiled():
    def dropout(keras):
        return [keras.layers.Dropout(0.5), keras.layers.Dense(4)]

    x = np.ones([8, 3], np.float32)
    with pytest.warns(UserWarning, match="has dropout or noise"):
        _keras_round(dropout, x, np.arange(8) % 4)
