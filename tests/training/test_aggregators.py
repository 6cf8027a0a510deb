import collections
import functools
import json
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.experiment.own_runs import run_own
from tests.training import every_method
from tff_reg import models, runtime, settings, training
from tff_reg.data import digests
from tff_reg.experiment import RunConfig
from tff_reg.experiment.rounds import process_state
from tff_reg.methods import catalogue, method as method_lib
from tff_reg.training import aggregation, aggregator_settings, aggregators

L = tf.keras.layers
NUM_CLIENTS = 4
COUNTS = (6, 9)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    # Before TensorFlow's own end.
    _mean.cache_clear()
    _output_of_mean.cache_clear()


def _model_fn(norm=True, frozen=False, counters=0):
    """A model of few tensors, one of them BatchNorm's statistics."""
    scales = [L.Normalization(axis=None) for _ in range(counters)]
    norms = [L.BatchNormalization(center=False, scale=False, momentum=0.5)] * norm
    first, last = [tf.keras.initializers.GlorotUniform(seed) for seed in (1, 2)]
    hidden = L.Dense(3, use_bias=False, kernel_initializer=first, trainable=not frozen)
    network = models.from_keras_blocks(
        [[*scales, hidden, *norms, L.ReLU()], [L.Dense(3, kernel_initializer=last)]],
        input_shape=(4,),
    )
    return models.LearningModel(network)


def _client(seed, count):
    rng = np.random.default_rng(seed)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=(rng.normal(size=(count, 4)) + 2).astype(np.float32),
            y=rng.integers(0, 3, count).astype(np.int32),
            key=np.array([seed, 1], np.int64),
        )
    )


def _build(name, kind, model_fn=_model_fn, given=None, **strengths):
    cohort = len(COUNTS)
    arguments = dict(
        model_aggregator=aggregators.build_model_aggregator(
            kind, clients_per_round=cohort, **strengths
        ),
        averages_all_clients=False,
        total_rounds=2,
    )
    arguments["client_data"] = training.WholeClientData(batch_size=4)
    return training.build(
        name,
        model_fn,
        num_clients=NUM_CLIENTS,
        client_learning_rate=0.3,
        client_weighting="uniform",
        **{**arguments, **(given or {})},
    )


def _train(process):
    """The last output of two rounds of two clients."""
    data = [_client(seed, count) for seed, count in enumerate(COUNTS)]
    return every_method.run(process, data, 2)[0]


def _weights(process, state):
    weights = process.get_model_weights(state)
    assert len(weights.trainable) == 3 and len(weights.non_trainable) == 2
    return [*weights.trainable, *weights.non_trainable]


# Strengths with which a kind gives the mean, up to how exactly it does.
EXACT = {
    "robust": (dict(aggregator_zeroing=False, aggregator_clipping=False), 1e-6),
    "dp": (dict(dp_noise_multiplier=0.0, dp_clipping="fixed", dp_clip_norm=1e4), 1e-5),
    "secure": (dict(aggregator_zeroing=False, aggregator_clipping=False), 1e-5),
    "compressed": (
        dict(
            aggregator_zeroing=False,
            aggregator_clipping=False,
            compressed_bits=16,
            compressed_threshold=0,
        ),
        2e-3,
    ),
}


@functools.cache
def _mean(name):
    """The process that takes the mean; tests share it."""
    return _build(name, "mean")


@functools.cache
def _output_of_mean(name):
    return _train(_mean(name))


# Every kind, and a mean of updates and of uploads; with --slow all pairs.
PAIRS = {("fedavg", "dp"), ("scaffold", "compressed"), ("fedavg", "robust")}
PAIRS |= {("scaffold", "secure")}


@pytest.mark.parametrize(
    "name, kind",
    [
        pytest.param(name, kind, marks=[pytest.mark.slow][(name, kind) in PAIRS :])
        for name in ("fedavg", "scaffold", "feddyn")
        for kind in EXACT
    ],
)
def test_all_aggregators_give_the_mean_without_clipping_and_noise(name, kind):
    plain = _output_of_mean(name)
    expected = _weights(_mean(name), plain.state)
    before = _weights(_mean(name), _mean(name).initialize())
    assert not any(np.allclose(e, b, atol=1e-3) for e, b in zip(expected, before))
    strengths, tolerance = EXACT[kind]
    process = _build(name, kind, **strengths)
    output = _train(process)
    for found, value in zip(_weights(process, output.state), expected):
        np.testing.assert_allclose(found, value, atol=tolerance)
    if name != "fedavg":
        # What the server remembers, of uploads and of the updates.
        memories = [o.state.finalizer["memory"] for o in (output, plain)]
        assert memories[0].keys() == memories[1].keys() != set()
        for found, value in zip(*map(tf.nest.flatten, memories)):
            np.testing.assert_allclose(found, value, atol=tolerance)
            assert np.abs(value).max() > 0.01
    metrics = [o.metrics["client_work"]["train"] for o in (output, plain)]
    for key in ("loss", "accuracy", "num_examples"):
        np.testing.assert_allclose(metrics[0][key], metrics[1][key], rtol=2e-3)


@pytest.mark.parametrize(
    "name", [pytest.param("scaffold", marks=pytest.mark.slow), "fedprox"]
)
def test_tffs_own_factories_make_every_sum_secure(name):
    given = dict(
        model_aggregator=tff.learning.secure_aggregator(zeroing=False),
        metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
    )
    process = _build(name, "mean", functools.partial(_model_fn, norm=False), given)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    if name == "fedprox":
        forms = tff.backends.mapreduce
        form = forms.get_map_reduce_form_for_computation(process.next)
        assert form.securely_aggregates_tensors
        return
    before = process.get_model_weights(process.initialize())
    after = process.get_model_weights(_train(process).state)
    assert all(np.any(a != b) for a, b in zip(after.trainable, before.trainable))


@pytest.mark.parametrize("kind", ["mean", "robust", "compressed"])
def test_a_client_without_a_batch_is_as_none(kind):
    strengths = (
        dict(aggregator_zeroing=True, aggregator_clipping=True)
        if kind != "mean"
        else {}
    )
    form = training.WholeClientData(batch_size=4, drop_remainder=True)
    built = aggregators.build_model_aggregator(kind, clients_per_round=3, **strengths)
    given = {"model_aggregator": built, "client_data": form}
    process = _build("scaffold", "mean", given=given)
    data = [_client(seed, count) for seed, count in enumerate((*COUNTS, 2))]
    found, expected = (
        every_method.run(process, each, 3)[0].state for each in (data, data[:2])
    )
    for one, other in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


def _unweighted_factories():
    """TFF's unweighted aggregators of updates, and ours."""
    library = tff.learning
    yield aggregators.build_model_aggregator("dp", clients_per_round=20)
    yield tff.aggregators.UnweightedMeanFactory()
    yield tff.aggregators.SumFactory()
    yield library.dp_aggregator(0.1, 20)
    yield library.ddp_secure_aggregator(0.1, 20)
    for build in (
        library.robust_aggregator,
        library.compression_aggregator,
        library.secure_aggregator,
    ):
        yield build(weighted=False)


def test_no_aggregator_loses_the_weights_of_a_method_that_weighs_clients():
    kinds = catalogue.methods().values()
    weighing = [kind for kind in kinds if method_lib.overrides(kind, "weigh")]
    assert weighing
    for kind in weighing:
        for factory in _unweighted_factories():
            with pytest.raises(ValueError, match=f"{kind.name} weighs the clients"):
                _build(kind.name, "mean", given={"model_aggregator": factory})


def test_the_state_of_an_aggregator_is_restored_from_a_file(tmp_path):
    model_fn = functools.partial(_model_fn, norm=False)
    process = _build("scaffold", "dp", model_fn, dp_noise_multiplier=0.1)
    output = _train(process)
    (tmp_path / "state.npz").write_bytes(process_state.written(output.state))
    read = process_state.read_state(tmp_path / "state.npz", like=process.initialize())
    for found, value in zip(tf.nest.flatten(read), tf.nest.flatten(output.state)):
        np.testing.assert_array_equal(found, value)
    assert all(map(tf.nest.flatten, read.aggregator.values()))
    assert list(read.aggregator) == ["updates", "uploads"]


def test_private_noise_has_the_deviation_of_its_multiplier_and_is_new_every_time():
    norm, multiplier, cohort, size = 2.0, 3.0, 5, 20000
    factory = aggregators.build_model_aggregator(
        "dp",
        clients_per_round=cohort,
        dp_noise_multiplier=multiplier,
        dp_clipping="fixed",
        dp_clip_norm=norm,
    )
    process = factory.create(tff.TensorType(np.float32, [size]))
    state = process.initialize()
    values = [np.zeros(size, np.float32)] * cohort
    first, second = [process.next(state, values).result for _ in range(2)]
    expected = multiplier * norm / cohort
    assert np.std(first) == pytest.approx(expected, rel=0.03)
    assert np.std(first - second) == pytest.approx(math.sqrt(2) * expected, rel=0.03)


@pytest.mark.parametrize(
    "name, frozen, aggregator",
    [
        ("freeze", False, None),
        pytest.param(
            *("fedavg", True, tff.learning.ddp_secure_aggregator(0.1, 20)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["freeze", "ddp"],
)
def test_frozen_weights_get_no_noise(name, frozen, aggregator):
    model_fn = functools.partial(_model_fn, norm=False, frozen=frozen)
    given = {"model_aggregator": aggregator} if aggregator else {}
    process = _build(name, "dp", model_fn, given, dp_noise_multiplier=0.1)
    before = process.get_model_weights(process.initialize())
    after = process.get_model_weights(_train(process).state)
    for old, new in zip(before.non_trainable, after.non_trainable, strict=True):
        np.testing.assert_array_equal(new, old)
    assert len(after.non_trainable) == (1 if frozen else 2)
    assert all(np.any(w != b) for w, b in zip(after.trainable, before.trainable))


@pytest.mark.parametrize(
    "aggregator, counters",
    [
        (aggregators.PrivateMeanFactory(0.1, 5), 0),
        (aggregators.PrivateMeanFactory(0.1, 5), 2),
        (tff.learning.dp_aggregator(0.1, 5, zeroing=True), 0),
    ],
    ids=["ours", "ours, with integer constants", "TFF's"],
)
def test_noise_on_running_variances_is_refused(aggregator, counters):
    model_fn = functools.partial(_model_fn, counters=counters)
    with pytest.raises(ValueError, match="adds noise.*running variances.*'group'"):
        training.build("fedavg", model_fn, model_aggregator=aggregator)


@pytest.mark.parametrize(
    "name, kind, changes",
    [
        ("fednova", "robust", dict(aggregator_clipping=False)),
        ("fedavg", "robust", {}),
    ],
)
def test_exact_sums_refuse_aggregators_that_change_them(name, kind, changes):
    model_fn = functools.partial(_model_fn, norm=False)
    averages = name == "fedavg"
    whose = "all_clients" if averages else name.partition("+")[0]
    it = "averages_all_clients" if averages else "this method"
    with pytest.raises(ValueError, match=f"{whose} needs exact sums .*without {it}"):
        _build(name, kind, model_fn, dict(averages_all_clients=averages), **changes)


def test_properties_of_aggregators_are_known_declared_or_missed(monkeypatch):
    said = []
    monkeypatch.setattr(aggregation.logging, "warning", said.append)
    parts = [[tff.TensorType(np.float32, [2])]] * 2
    update_type = tff.types.to_type(tff.learning.models.ModelWeights(*parts))
    build = functools.partial(
        aggregation.build_update_aggregator,
        update_type=update_type,
        has_statistics=True,
    )
    unknown = tff.learning.robust_aggregator()
    build(unknown)
    assert "unknown whether this aggregator adds noise" in said.pop()
    with pytest.raises(ValueError, match="fednova needs exact sums"):
        build(unknown, needing_exact=["fednova"])
    declared = aggregators.declare(unknown, adds_noise=False, keeps_sums=True)
    only_adds = aggregators.build_model_aggregator(
        "robust", clients_per_round=2, **EXACT["robust"][0]
    )
    for exact in (None, declared, only_adds):
        build(exact, needing_exact=["fednova"])
    assert not said


def test_private_sums_clip_each_client_and_divide_by_the_cohort():
    factory = aggregators.build_model_aggregator(
        "dp",
        clients_per_round=4,
        dp_noise_multiplier=0.0,
        dp_clipping="fixed",
        dp_clip_norm=1.0,
    )
    uploads_type = tff.types.to_type(
        collections.OrderedDict(s=[tff.TensorType(np.float32, [2])])
    )
    process = aggregation.build_upload_aggregator(factory, uploads_type)
    uploads = [
        collections.OrderedDict(s=[np.array(value, np.float32)])
        for value in ([30.0, 40.0], [0.3, 0.0])
    ]
    output = process.next(process.initialize(), uploads, [1, 1])
    sums, count = output.result
    np.testing.assert_allclose(sums["s"][0], [0.9, 0.8], rtol=1e-5)
    assert count == 4


_TYPES = (tff.TensorType(np.float32, [2]), tff.TensorType(np.float32))


def _bounded(kind):
    built = aggregators.build_model_aggregator(kind, clients_per_round=3)
    return built.create(*_TYPES)


def _rounds_of(process, cohorts):
    """The results and states of rounds; a cohort is a list of (update, weight)."""
    state, seen = process.initialize(), []
    for cohort in cohorts:
        values = [np.array(value, np.float32) for value, _ in cohort]
        output = process.next(state, values, [weight for _, weight in cohort])
        state = output.state
        seen.append([*tf.nest.flatten((state, output.result))])
    return seen


COHORT = [([0.3, 0.4], 1.0), ([2.0, 1.5], 2.0), ([0.0, -7.0], 3.0)]
IDLE = [([0.0, 0.0], 0.0)] * 4


@pytest.mark.parametrize("kind", [k for k in aggregator_settings.KINDS if k[0] in "rc"])
def test_bounds_are_tffs_and_those_of_the_clients_that_trained(kind):
    # An update of length 0 says nothing of the others' lengths.
    alone = _rounds_of(_bounded(kind), [COHORT] * 3)
    beside = _rounds_of(_bounded(kind), [COHORT + IDLE] * 3)
    np.testing.assert_equal(beside, alone)
    assert any(np.any(a != b) for a, b in zip(*alone[:2]))
    if kind == "robust":
        plain = _rounds_of(
            tff.learning.robust_aggregator().create(*_TYPES), [COHORT] * 3
        )
        assert [seen[-1].tolist() for seen in plain] == [s[-1].tolist() for s in alone]


@pytest.mark.parametrize("kind", [k for k in aggregator_settings.KINDS if k[0] in "rc"])
def test_a_round_in_which_nobody_trains_leaves_an_aggregators_state(kind):
    first, second = _rounds_of(_bounded(kind), [COHORT, IDLE])
    np.testing.assert_equal(second[:-1], first[:-1])


def test_robust_aggregation_drops_outliers():
    factory = aggregators.build_model_aggregator("robust", clients_per_round=3)
    process = aggregation.build_update_aggregator(
        factory, tff.TensorType(np.float32, [2])
    )
    values = [np.array(v, np.float32) for v in ([0.1, 0.2], [1e6, 0.0], [0.3, 0.0])]
    output = process.next(process.initialize(), values, [1.0, 1.0, 2.0])
    np.testing.assert_allclose(output.result, [0.7 / 4, 0.2 / 4], rtol=1e-5)


def test_every_argument_of_an_aggregator_is_in_what_a_process_was_built_from():
    of_kind = {"robust": {}, "dp": {"dp_clipping": "fixed"}, "compressed": {}}
    of_kind |= {"secure": {}, "trimmed_mean": {}, "krum": {}}
    changes = dict(
        aggregator_zeroing=False,
        aggregator_clipping=False,
        dp_noise_multiplier=0.5,
        dp_clipping="adaptive",
        dp_clip_norm=0.7,
        compressed_bits=4,
        compressed_threshold=3,
        malicious_share=0.1,
        krum_selected=2,
    )
    known = settings.settings_of(aggregator_settings.AggregatorSettings)
    for kind, base in of_kind.items():
        own = [
            each.name
            for each in known
            if each.name in changes and not each.why_not_beside({"aggregator": kind})
        ]
        found = {"": base, **{name: {**base, name: changes[name]} for name in own}}
        texts = {
            digests.described(
                aggregators.build_model_aggregator(kind, clients_per_round=99, **given)
            )
            for given in found.values()
        }
        assert len(texts) == len(found), kind


def test_refuses_a_name_that_it_does_not_know():
    with pytest.raises(
        ValueError, match="noise_multiplier is 1e-300; it must be 0, or"
    ):
        aggregators.PrivateMeanFactory(1e-300, 20)
    with pytest.raises(ValueError, match="choose one of mean, robust, dp"):
        aggregators.build_model_aggregator("loudest", clients_per_round=2)


def test_drift_follows_from_means(in_process):
    updates = [[[3.0, 4.0], [1.0]], [[0.0, 5.0], [-2.0]], [[0.0, 0.0], [0.0]]]
    updates = [[np.array(part, np.float32) for part in each] for each in updates]
    weights = np.array([1.0, 3.0, 0.0], np.float32)
    kind = tff.types.to_type([(np.float32, [2]), (np.float32, [1])])
    aggregator = tff.aggregators.MeanFactory().create(kind, tff.TensorType(np.float32))
    groups = {"all": [0, 1], "head": [1]}
    process = aggregation.with_drift(aggregator, kind, groups)
    output = process.next(process.initialize(), updates, [*weights])
    shares = weights / weights.sum()
    for name, places in groups.items():
        rows = np.array([np.concatenate([u[i] for i in places]) for u in updates])
        mean, norms = shares @ rows, np.linalg.norm(rows, axis=1)
        length, found = np.linalg.norm(mean), output.measurements["drift"][name]
        cosines = rows @ mean / np.where(norms == 0, 1, norms) / length
        assert found["norm"] == pytest.approx(shares @ norms)
        assert found["cosine"] == pytest.approx(shares @ cosines, rel=1e-5)
        squares = ((rows - mean) ** 2).sum(axis=1)
        divergence = np.sqrt(shares @ squares) / length
        assert found["divergence"] == pytest.approx(divergence, rel=1e-5)


def test_a_small_divergence_does_not_cancel(in_process):
    rng = np.random.default_rng(0)
    mean, apart = (rng.normal(size=1000).astype(np.float32) for _ in range(2))
    apart *= np.float32(1e-4 * np.linalg.norm(mean) / np.linalg.norm(apart))
    kind = tff.types.to_type([(np.float32, [1000])])
    aggregator = tff.aggregators.MeanFactory().create(kind, tff.TensorType(np.float32))
    process = aggregation.with_drift(aggregator, kind, {"all": [0]})
    updates = [[mean + apart], [mean - apart]]
    output = process.next(process.initialize(), updates, [1.0, 1.0])
    found = output.measurements["drift"]["all"]
    assert found["divergence"] == pytest.approx(1e-4, rel=1e-2)


def test_a_run_is_the_same_with_it_and_has_columns_for_blocks(tmp_path):
    given = dict(process="scaffold", total_rounds=2, metrics={}, sample_fn=None)
    folders = [tmp_path / "plain", tmp_path / "measured"]
    plain, measured = (
        run_own(**given, output_dir=folder, drift=folder.name == "measured")
        for folder in folders
    )
    for one, other in zip(plain.weights.trainable, measured.weights.trainable):
        np.testing.assert_array_equal(one, other)
    last = measured.rows[-1]
    whole, *blocks = (last[f"drift/{g}/norm"] for g in ("all", "block1", "classifier"))
    assert max(blocks) < whole <= sum(blocks)
    assert (folders[1] / "drift.png").exists()
    configs = [json.loads((f / "config.json").read_text("utf-8")) for f in folders]
    sent, same = (config["bytes_per_client"] for config in configs)
    assert sent == same and sent[1] > 0


def test_sums_alone_do_not_show_drift():
    with pytest.raises(settings.SettingError, match="is for aggregator=mean, not dp"):
        RunConfig(process="fedavg", drift=True, aggregator="dp").resolved()
    private = training.aggregators.build_model_aggregator("robust", clients_per_round=2)
    with pytest.raises(ValueError, match="measures_drift needs the plain mean"):
        given = dict(model_aggregator=private, measures_drift=True)
        training.build("fedavg", lambda: None, **given)
