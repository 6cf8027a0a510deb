import collections
import dataclasses
import functools
import gc
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import random_clients
from tests.training import every_method
from tff_reg import methods, models, runtime, settings, training
from tff_reg.lazy import keras
from tff_reg.methods import catalogue
from tff_reg.training import composition

CNN_FN = models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=3)
WHOLE = training.WholeClientData(batch_size=4)
_COSINE = training.schedules.warmup(2, training.schedules.cosine(9))


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _build.cache_clear()
    _with_adam.cache_clear()


def _run(process, clients, rounds):
    output, weights = every_method.run(process, clients, rounds)
    return weights, output.metrics


@functools.cache
def _build(name):
    return training.build(name, CNN_FN, client_data=WHOLE, total_rounds=2)


def _settings(name, **changes):
    """A method's settings, for so little data, and the same for all."""
    return training.ProcessSettings.of(name, batch_size=4, local_epochs=2, **changes)


def test_a_method_of_a_file_is_built_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue.REGISTRY, "_found", {})
    file = tmp_path / "mine.py"
    file.write_text(
        "from tff_reg import methods\n\n\n"
        "class Mine(methods.Method):\n    name = 'mine_of_a_file'\n"
    )
    with pytest.raises(ValueError, match="needs its file as well"):
        training.build("mine_of_a_file", CNN_FN)
    process = training.build("mine_of_a_file", CNN_FN, plugin=str(file))
    assert process.get_model_weights(process.initialize()).trainable


def test_an_evaluation_uses_the_adapted_model():
    name = "fedetf"  # Which has a classifier of its own.
    process = every_method.build(name)
    (client,) = random_clients.clients((8,))
    state = process.next(process.initialize(), [client]).state
    weights = process.get_model_weights(state)
    evaluation = training.build_evaluation(process)
    state = evaluation.set_model_weights(evaluation.initialize(), weights)
    (element,) = client
    batches = tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(x=element["x"], y=element["y"])
    ).batch(8)
    metrics = evaluation.next(state, [batches]).metrics["client_work"]["eval"]
    model = training.adapt_model_fn(
        every_method.model_fn, [catalogue.methods()[name]()]
    )()
    weights.assign_weights_to(model)
    logits = model.predict_on_batch(element["x"], False).numpy()
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    shares = exponents / exponents.sum(-1, keepdims=True)
    losses = -np.log(shares[np.arange(8), element["y"]])
    found = metrics["current_round_metrics"]["loss"]
    np.testing.assert_allclose(found, losses.mean(), rtol=1e-5)


def test_an_evaluation_of_another_librarys_process_is_refused():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        CNN_FN, tff.learning.optimizers.build_sgdm(0.1)
    )
    with pytest.raises(TypeError, match="did not build; .*build_fed_eval.model_fn"):
        training.build_evaluation(process)


def test_fedgkd_of_one_global_model_is_kd_of_half_the_strength():
    settings = _settings("fedgkd", client_momentum=0.0, client_weight_decay=0.0)
    hyperparameters = {
        "fedgkd": {"fedgkd_averaged_rounds": 1},
        "kd": {"kd_strength": 0.1},
    }
    clients = random_clients.clients((6, 9))
    weights = [
        _run(training.build_from_settings(name, CNN_FN, settings, own), clients, 2)[0]
        for name, own in hyperparameters.items()
    ]
    for a, b in zip(*weights):
        np.testing.assert_array_equal(a, b)


def test_fedgkd_averages_the_global_models_not_fedacgs_broadcasts():
    process = _build("fedgkd+fedacg")
    state, models_ = process.initialize(), []
    for _ in range(3):
        models_.append(process.get_model_weights(state).trainable[0])
        state = process.next(state, random_clients.clients((6, 9))).state
    history = state.finalizer["memory"]["averaged"]
    np.testing.assert_array_equal(history["models"][0][:3], models_[::-1])
    assert history["count"] == 3


def test_freeze_leaves_the_classifier_as_it_was():
    process = _build("freeze")
    start = process.get_model_weights(process.initialize())
    weights, _ = _run(process, random_clients.clients((6, 9)), 2)
    after = weights[len(start.trainable) :]
    assert [w.shape for w in after] == [(128, 3), (3,)]
    for a, b in zip(after, start.non_trainable):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(weights[0], start.trainable[0])


def _keras_model():
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential(layers)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(model_fn=_keras_model), "model_fn returned a Sequential; it must return"),
        (dict(learning_rate_schedule=min), "give a schedule of tff_reg.training.sched"),
        (dict(methods=["fedprox"]), r"is \['fedprox'\]; give a list of methods, such"),
        (
            dict(client_optimizer_fn=keras.optimizers.Adam()),
            "client_optimizer_fn is a Adam; give a TFF optimiser, such as tff",
        ),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(changes, message):
    given = dict(
        model_fn=CNN_FN, methods=[], client_optimizer_fn=training.build_sgd(0.1)
    )
    with pytest.raises(TypeError, match=message):
        training.build_regularized(**{**given, **changes})


def test_client_data_of_the_wrong_type_are_refused_with_both_types():
    process = training.build_regularized(CNN_FN, [], training.build_sgd(0.1))
    examples = {"x": np.zeros([4, 4, 4, 1]), "y": np.zeros([4], np.int32)}
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    takes = (
        r"and the computation takes <x=float32\[\?,4,4,1\],y=int32\[\?\]>: name, cast"
    )
    with pytest.raises(TypeError, match=rf"<x=float64\[4,4,1\],y=int32>, {takes}"):
        process.next(process.initialize(), [dataset])


def test_means_of_different_numbers_of_models_are_refused():
    @dataclasses.dataclass(frozen=True)
    class OtherGKD(methods.FedGKD):
        name = "othergkd"

    both = [methods.FedGKD(), OtherGKD(averaged_rounds=3)]
    with pytest.raises(ValueError, match="share the memory 'averaged'"):
        training.build_regularized(CNN_FN, both, training.build_sgd(0.1))


@functools.cache
def _with_adam():
    return training.build(
        "fedavg",
        CNN_FN,
        client_data=WHOLE,
        server_optimizer="adam",
        server_learning_rate=0.125,
    )


def test_hparams_are_matched_by_their_names():
    process = _with_adam()
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert set(hparams["client_work"]) == {
        "learning_rate",
        "momentum",
        "weight_decay",
    }
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    loaded = json.loads(json.dumps(hparams, default=float, sort_keys=True))
    assert list(loaded["finalizer"]) != list(hparams["finalizer"])
    changed = process.set_hparams(state, loaded)
    assert process.get_hparams(changed) == hparams
    after = process.next(changed, random_clients.clients((6, 9))).state
    for a, b in zip(*(process.get_model_weights(s).trainable for s in (after, state))):
        np.testing.assert_array_equal(a, b)
    loaded["finalizer"]["lr"] = loaded["finalizer"].pop("learning_rate")
    with pytest.raises(TypeError, match="'lr'.*learning_rate, beta_1, beta_2, eps"):
        process.set_hparams(state, loaded)


def test_hparams_that_build_refuses_cannot_be_set():
    process = _build("fedacg")
    state = process.initialize()
    hparams = process.get_hparams(state)
    hparams["finalizer"]["learning_rate"] = np.float32(0.5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="fedacg makes the new model itself"
    ):
        process.set_hparams(state, hparams)


_ADAM = {"part": "finalizer", "build": tff.learning.optimizers.build_adam}
_SGDM = {"part": "client_work", "build": tff.learning.optimizers.build_sgdm}


@pytest.mark.parametrize(
    "of, name, value, words",
    [
        (_ADAM, "epsilon", 0.0, "epsilon must be above 0 and finite"),
        (_SGDM, "learning_rate", np.inf, "learning_rate must be at least 0 and finite"),
    ],
)
def test_hparams_out_of_range_are_refused_by_setting_and_by_building(
    of, name, value, words
):
    process = _with_adam()
    hparams = process.get_hparams(process.initialize())
    hparams[of["part"]][name] = np.float32(value)
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        process.set_hparams(process.initialize(), hparams)
    made = of["build"](**{"learning_rate": 0.1, name: value})
    with pytest.raises(ValueError, match=words):
        training.build_regularized(CNN_FN, [], made, made)


def test_a_server_optimizer_is_a_setting():
    hparams = _with_adam().get_hparams(_with_adam().initialize())["finalizer"]
    assert hparams["learning_rate"] == 0.125
    assert hparams["epsilon"] == np.float32(1e-3)
    assert hparams["beta_2"] == np.float32(0.99)


@pytest.mark.parametrize(
    "overrides, error, message",
    [
        (dict(fedprox_strenght=1.0), TypeError, "unknown setting 'fedprox_strenght'"),
        (dict(mu=1.0), TypeError, r"setting 'mu' \(did you mean fedprox_strength\?\)"),
        (dict(man_strength=1.0), ValueError, "man_strength is not a setting"),
        (dict(server_optimizer="lamb"), ValueError, "sgd, adam, yogi, adagrad"),
    ],
)
def test_build_raises_on_settings_it_does_not_know(overrides, error, message):
    with pytest.raises(error, match=message):
        training.build("fedprox", CNN_FN, **overrides)


def test_a_model_without_a_needed_capability_is_refused():
    with pytest.raises(ValueError, match="cannot run at width 0.25"):
        training.build("fedalign", CNN_FN, client_data=WHOLE)


@pytest.mark.parametrize(
    "drop_remainder, mean_examples, steps",
    [(False, 10, 6), (True, 10, 4)],
)
def test_local_steps_of_a_mean_client_respect_drop_remainder(
    monkeypatch, drop_remainder, mean_examples, steps
):
    monkeypatch.setattr(composition, "_build", lambda *arguments: arguments[-1])
    settings = training.ProcessSettings(
        batch_size=4, local_epochs=2, drop_remainder=drop_remainder
    )
    arguments = training.build_from_settings(
        "scaffold", CNN_FN, settings, {}, mean_examples=mean_examples
    )
    assert arguments["client_data"].drop_remainder == drop_remainder
    assert arguments["population"].local_steps == steps


def test_garbage_is_collected_again_after_a_build_that_failed():
    def model_fn():
        assert not gc.isenabled()
        raise KeyError("no model")

    with pytest.raises(KeyError, match="no model"):
        training.build("fedavg", model_fn)
    assert gc.isenabled()


@pytest.mark.parametrize(
    "given, words",
    [
        ({"local_epochs": 2}, "client_data=true has them: give a tff_reg"),
        (
            {"client_optimizer_fn": training.build_sgd(0.1), "client_momentum": 0.9},
            "client_momentum=0.9: client_optimizer_fn=true replaces",
        ),
        (
            {
                "client_optimizer_fn": training.build_sgd(0.1),
                "learning_rate_schedule": "listed",
                "client_learning_rates": (0.1,),
            },
            "client_learning_rates=0.1: client_optimizer_fn=true",
        ),
        (
            {"learning_rate_schedule": "cosine"},
            "the cosine schedule needs the number of all rounds",
        ),
        (
            {
                "learning_rate_schedule": "listed",
                "client_learning_rates": (0.1,),
                "client_learning_rate": 0.4,
            },
            "client_learning_rates has the rate",
        ),
        (
            {"process": "freeze"},
            "the cosine schedule needs the number of all rounds",
        ),  # Of the paper.
        (
            {"learning_rate_schedule": "exponential"},
            "learning_rate_schedule=exponential needs it",
        ),
        (
            {
                "process": "man",
                "learning_rate_schedule": "step",
                "learning_rate_milestones": (5, 8),
            },
            "learning_rate_schedule=step needs it",
        ),
    ],
)
def test_settings_of_a_process_without_effect_are_refused(given, words):
    with pytest.raises(settings.SettingError, match=words):
        training.build(given.pop("process", "fedavg"), CNN_FN, **given)


def test_a_process_says_for_which_numbers_it_was_built():
    dp = training.aggregators.PrivateMeanFactory(0.0, 7)
    given = {"client_weighting": "uniform", "model_aggregator": dp}
    cosine = {"learning_rate_schedule": "cosine", "total_rounds": 9, "num_clients": 3}
    processes = [
        training.build("fedavg", CNN_FN, **given, **cosine),
        training.build_regularized(
            *(CNN_FN, [], training.build_sgd(0.1)),
            client_weighting=tff.learning.ClientWeighting.UNIFORM,
            model_aggregator=dp,
            population=training.Population(3),
            learning_rate_schedule=_COSINE,
        ),
        training.build(
            *("fedavg", CNN_FN),
            **given,
            total_rounds=9,
            server_learning_rate_schedule="cosine",
            population=training.Population(3),
        ),
    ]
    for process in processes:
        expected = {"num_clients": 3, "clients_per_round": 7, "total_rounds": 9}
        assert process.assumed == expected
    free = training.build(
        *("fedavg", CNN_FN),
        learning_rate_schedule="exponential",
        learning_rate_decay=1.0,  # Given, even if it is that of no schedule.
    )
    assert set(free.assumed.values()) == {None}
    rate = {"client_learning_rate": lambda round_num: 0.1 / round_num}
    of_rates = training.build("fedavg", CNN_FN, total_rounds=9, **rate)
    assert of_rates.assumed["total_rounds"] == 9
