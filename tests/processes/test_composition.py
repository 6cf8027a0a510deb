import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import client
from tff_reg import models
from tff_reg import processes
from tff_reg import runtime
from tff_reg.processes import catalog

MODEL_FN = models.build_model_fn(
    "resnet8", image_shape=(6, 6, 1), num_classes=3, norm="batch"
)
CNN_FN = models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=3)
WHOLE = client.WholeClientData(batch_size=4)
REGULARIZED = [n for n in catalog.names() if catalog.parse(n)]


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


def _clients(size, counts=(6, 9)):
    result = []
    for seed, count in enumerate(counts):
        rng = np.random.default_rng(seed)
        result.append(
            tf.data.Dataset.from_tensors(
                collections.OrderedDict(
                    x=rng.normal(size=(count, size, size, 1)).astype(np.float32),
                    y=rng.integers(0, 3, count).astype(np.int32),
                    key=np.array([seed, 1], np.int64),
                )
            )
        )
    return result


def _run(process, clients, rounds):
    state = process.initialize()
    for _ in range(rounds):
        output = process.next(state, clients)
        state = output.state
    weights = process.get_model_weights(state)
    return [*weights.trainable, *weights.non_trainable], output.metrics


def _settings(name, **changes):
    """A method's settings, for so little data, and the same for all."""
    return dataclasses.replace(
        catalog.settings(name), batch_size=4, local_epochs=2, **changes
    )


@pytest.mark.parametrize("name", REGULARIZED)
def test_strength_zero_is_fedavg_to_the_bit_over_three_rounds(name):
    clients = _clients(6)
    settings = _settings(name)

    def run(process, strengths):
        return _run(
            processes.build_from_settings(process, MODEL_FN, settings, strengths),
            clients,
            3,
        )

    plain, _ = run("fedavg", {})
    zero, metrics = run(name, {f"{name}_strength": 0.0})
    for a, b in zip(zero, plain):
        np.testing.assert_array_equal(a, b)
    assert metrics["client_work"]["train"][f"{name}/term"] > 0
    regularized, _ = run(name, {})
    assert any(not np.array_equal(a, b) for a, b in zip(regularized, plain))


@pytest.mark.parametrize("name", catalog.names())
def test_processes_are_plain_learning_processes_fit_for_devices(name):
    model_fn = MODEL_FN if name == "fedalign" else CNN_FN
    size = 6 if name == "fedalign" else 4
    process = processes.build(name, model_fn, client_data=WHOLE)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    element = process.next.type_signature.parameter[1].member.element
    assert str(element) == (
        f"<x=float32[?,{size},{size},1],y=int32[?],key=int64[2]>"
    )
    # What on-device production takes.
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    assert isinstance(form, tff.backends.mapreduce.MapReduceForm)


_AGGREGATORS = {
    "robust": tff.learning.robust_aggregator,
    "compression": tff.learning.compression_aggregator,
    "secure": tff.learning.secure_aggregator,
    "private": lambda: tff.learning.dp_aggregator(
        noise_multiplier=1e-3, clients_per_round=2
    ),
    "unweighted": tff.aggregators.UnweightedMeanFactory,
}


@pytest.mark.parametrize("kind", _AGGREGATORS)
def test_takes_any_aggregator(kind):
    # With BatchNorm, so that statistics go through the aggregator too.
    model_fn = models.build_model_fn(
        "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
    )
    aggregator = _AGGREGATORS[kind]()
    process = processes.build(
        "fedprox", model_fn, client_data=WHOLE, model_aggregator=aggregator
    )
    weights, metrics = _run(process, _clients(4), 1)
    start = process.get_model_weights(process.initialize())
    assert all(np.isfinite(w).all() for w in weights)
    assert not np.allclose(weights[0], start.trainable[0], atol=1e-7)
    assert metrics["finalizer"]["update_non_finite"] == 0


def test_hparams_can_be_set():
    process = processes.build("fedprox", CNN_FN, client_data=WHOLE)
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert set(hparams["client_work"]) == {"learning_rate", "momentum", "weight_decay"}
    assert hparams["finalizer"]["learning_rate"] == 1.0
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    state = process.set_hparams(state, hparams)
    output = process.next(state, _clients(4))
    for a, b in zip(
        process.get_model_weights(output.state).trainable,
        process.get_model_weights(state).trainable,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("server", ["sgd", "adam", "yogi", "adagrad"])
def test_server_optimizers_are_settings(server):
    process = processes.build(
        "fedavg",
        CNN_FN,
        client_data=WHOLE,
        server_optimizer=server,
        server_learning_rate=0.125,
    )
    hparams = process.get_hparams(process.initialize())
    assert hparams["finalizer"]["learning_rate"] == 0.125
    if server == "adam":
        assert hparams["finalizer"]["epsilon"] == np.float32(1e-3)


@pytest.mark.parametrize(
    "overrides, error, message",
    [
        (dict(fedprox_strenght=1.0), TypeError, "unknown setting 'fedprox_strenght'"),
        (dict(man_strength=1.0), ValueError, "man_strength is not a setting"),
        (dict(server_optimizer="lamb"), ValueError, "sgd, adam, yogi, adagrad"),
        (dict(learning_rate_schedule="step"), ValueError, "constant, exponential"),
        (dict(client_weighting="sizes"), ValueError, "num_examples, uniform"),
        (dict(fedprox_strength=-1.0), ValueError, "must be a finite number"),
    ],
)
def test_build_raises_on_settings_it_does_not_know(overrides, error, message):
    with pytest.raises(error, match=message):
        processes.build("fedprox", CNN_FN, **overrides)


def test_a_model_that_lacks_what_a_method_needs_is_refused_with_a_sentence():
    with pytest.raises(models.MissingCapabilityError, match="cannot run at width 0.25"):
        processes.build("fedalign", CNN_FN, client_data=WHOLE)


def test_builders_take_the_arguments_of_tff_in_their_order():
    server = tff.learning.optimizers.build_sgdm(0.5)
    process = processes.build_fed_prox(
        CNN_FN,
        0.1,
        client.build_sgd(0.1),
        server,
        tff.learning.ClientWeighting.UNIFORM,
        None,
        tff.aggregators.MeanFactory(),
        tff.learning.metrics.sum_then_finalize,
        tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
    assert process.get_hparams(process.initialize())["finalizer"]["learning_rate"] == 0.5
