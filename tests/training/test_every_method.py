"""What is true of every method: one small process of each, built once for all."""

import asyncio
import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import comparison
from tests.training import every_method
from tff_reg import data, experiment, models, runtime, training
from tff_reg.experiment.rounds import progress

# Every kind of state, broadcast and client; `--slow` runs the others too.
_ONE_OF_A_KIND = ("fedgkd",)
_NATIVE = ("scaffold+fedsam+man+fedavgm",)


def _all_but(names, chosen):
    """Those chosen, and the others marked as slow."""
    return [
        n if n in chosen else pytest.param(n, marks=pytest.mark.slow) for n in names
    ]


# Weights that depend on the cohort take a second exchange in a round.
_TWO_EXCHANGES = ("feddisco",)
_STATELESS = [
    n for n in every_method.NAMES if n not in (*every_method.STATEFUL, *_TWO_EXCHANGES)
]
_ALL_TERMS = every_method.sum_of(every_method.WITH_TERM)
_SUMS = [_ALL_TERMS, "mixup+stochdepth+freeze+fedasam", "scaffold+fedsam+man+fedavgm"]
_LATER_SUMS = ["feduv+fedetf+fedsol+fedcm+fedacg", "fedlc+fedlesam+fednova+man"]
_METHODS = [*every_method.NAMES, *_SUMS, *_LATER_SUMS]
# The ledger (tests/ledger.py) has two rounds of each of the others. The sum of all
# terms takes six seconds: it is twelve methods.
_EVERY_DAY = ["fedavg", "feddc", *_SUMS]


def _flat(structure):
    return tff.structure.flatten(
        tff.structure.from_container(structure, recursive=True)
    )


def _moved(element):
    """Every pixel by a rounding or two."""
    moved = element["x"] * np.float32(1 + 2e-7)
    return collections.OrderedDict(element, x=moved)


@pytest.mark.parametrize("name", _all_but([*_EVERY_DAY, *_LATER_SUMS], _EVERY_DAY))
def test_a_round_depends_on_nothing_but_its_arguments(contexts, name):
    process, clients = every_method.build(name), every_method.clients()
    is_stateful = bool(set(every_method.STATEFUL) & set(name.split("+")))
    kind = (
        training.StatefulLearningProcess
        if is_stateful
        else tff.learning.templates.LearningProcess
    )
    assert isinstance(process, kind)
    size = every_method.SIZE
    element = process.next.type_signature.parameter[1].member.element
    assert str(element) == f"<x=float32[?,{size},{size},1],y=int32[?],key=int64[2]>"
    with contexts("in_process"):
        once, weights = every_method.run(process, clients, 2)
        again, _ = every_method.run(process, clients, 2)
        start = process.get_model_weights(process.initialize())
    comparison.assert_equal(once, again)
    assert all(np.isfinite(w).all() for w in weights)
    assert not np.array_equal(weights[0], start.trainable[0])


@pytest.mark.parametrize("name", _all_but(_METHODS, _NATIVE))
def test_a_round_is_the_same_in_parallel_and_in_tffs_own_runtime(contexts, name):
    process = every_method.build(name)
    with contexts("two_at_a_time"):
        two, _ = every_method.run(process, every_method.clients(), 1)
    with contexts("tff"):
        native, _ = every_method.run(process, every_method.clients(), 1)
    with contexts("in_process"):
        ours, _ = every_method.run(process, every_method.clients(), 1)
        # The case is well-conditioned: a rounding of the images moves nothing much.
        moved = [client.map(_moved) for client in every_method.clients()]
        perturbed, _ = every_method.run(process, moved, 1)
    comparison.assert_equal(two, ours)
    comparison.assert_same(native, ours, rtol=1e-4, atol=1e-5)
    comparison.assert_same(perturbed, ours, rtol=3e-5, atol=3e-6)


# Without --slow, the numbers of both forms are compared below.
@pytest.mark.slow
@pytest.mark.parametrize("name", [*_STATELESS, "mixup+fedgkd+freeze"])
def test_stateless_processes_compile_to_both_forms(contexts, name):
    process, library = every_method.build(name), tff.backends.mapreduce
    with contexts("in_process"):
        forms = [
            # What on-device production takes.
            library.get_map_reduce_form_for_computation(process.next),
            library.get_distribute_aggregate_form_for_computation(process.next),
        ]
    assert isinstance(forms[0], library.MapReduceForm)
    assert not forms[0].securely_aggregates_tensors
    state_type = process.initialize.type_signature.result.member
    for form in forms:
        assert state_type.is_assignable_from(form.type_signature.result[0].member)


@pytest.mark.parametrize("name", _TWO_EXCHANGES)
def test_processes_of_two_exchanges_do_not(contexts, name):
    process, library = every_method.build(name), tff.backends.mapreduce
    with contexts("in_process"), pytest.raises(ValueError, match="dependent on aggreg"):
        library.get_map_reduce_form_for_computation(process.next)


@pytest.mark.parametrize("name", _all_but(every_method.STATEFUL, ["feddc"]))
def test_processes_with_client_state_do_not(contexts, name):
    with contexts("in_process"), pytest.raises(TypeError):
        tff.backends.mapreduce.get_map_reduce_form_for_computation(
            every_method.build(name).next
        )


def _run_map_reduce(form, state, clients):
    """A round as a platform runs it: only the form's TensorFlow computations."""
    sent = form.prepare(state)
    halves = []
    for part in (clients[:2], clients[2:]):
        total = form.zero()
        for dataset in part:
            update, *secure = form.work(dataset, sent)
            assert not tf.nest.flatten(secure)
            total = form.accumulate(total, update)
        halves.append(total)
    aggregate = form.report(form.merge(*halves))
    result = form.update(state, (aggregate, (), (), ()))
    return result["state"], result["metrics"]


def _run_distribute_aggregate(form, process, state, clients):
    @tff.federated_computation(*process.next.type_signature.parameter)
    def round_of_form(state, data):
        sent, kept = form.server_prepare(state)
        results = form.client_work(data, form.server_to_client_broadcast(sent))
        aggregate = form.client_to_server_aggregation(kept, results)
        return form.server_result(kept, aggregate)

    result = round_of_form(state, clients)
    return result["state"], result["metrics"]


def _linear_model():
    """Few weights: TFF compiles the forms of a deep network for long."""
    layers = tf.keras.layers
    first = [layers.Flatten(), layers.BatchNormalization()]
    size = every_method.SIZE
    return models.LearningModel(
        models.from_keras_blocks(
            [first, [layers.Dense(3)]], input_shape=(size, size, 1)
        )
    )


# Memories of the server, a model that is sent in another's place, and averages.
@pytest.mark.parametrize("name", ["fedgkd+fedcm+fedacg"])
def test_both_forms_give_the_numbers_of_next(contexts, name):
    settings, clients = every_method.settings(name), every_method.clients()
    process = training.build_from_settings(name, _linear_model, settings, {})
    library = tff.backends.mapreduce
    with contexts("in_process"):
        state = process.initialize()
        expected = process.next(state, clients)
        form = library.get_map_reduce_form_for_computation(process.next)
        found = [_run_map_reduce(form, state, clients)]
        form = library.get_distribute_aggregate_form_for_computation(process.next)
        found.append(_run_distribute_aggregate(form, process, state, clients))
    for state, metrics in found:
        for got, wanted, at_least in (
            (state, expected.state, 12),
            (metrics, expected.metrics, 5),
        ):
            got, wanted = _flat(got), _flat(wanted)
            assert len(got) == len(wanted) >= at_least
            for a, b in zip(got, wanted):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _run_program(process, source, total_rounds, directory):
    """Trains in a program; returns its last state and the metrics it released."""
    states, metrics = (tff.program.MemoryReleaseManager() for _ in range(2))
    with tff.framework.get_context_stack().install(runtime.program_context()):
        asyncio.run(
            tff.learning.programs.train_model(
                train_process=process,
                train_data_source=source,
                train_per_round_clients=2,
                train_total_rounds=total_rounds,
                program_state_manager=tff.program.FileProgramStateManager(directory),
                model_output_manager=states,
                train_metrics_manager=metrics,
                evaluation_manager=None,
                evaluation_periodicity=1,
            )
        )
    (state,) = states.values().values()
    return state, metrics.values()


@pytest.mark.parametrize("name", _all_but(_STATELESS, _ONE_OF_A_KIND))
def test_stateless_processes_train_in_a_program_and_resume(name, tmp_path):
    process = every_method.build(name)
    rng = np.random.default_rng(0)
    clients = data.ArrayClientData(
        rng.normal(size=(24, every_method.SIZE, every_method.SIZE, 1)).astype("f"),
        rng.integers(0, 3, 24),
        np.split(np.arange(24), [8, 15]),
    )

    def source():
        return data.SeededDataSource(clients, seed=5)

    parameter = process.next.type_signature.parameter
    assert parameter[1].is_assignable_from(source().federated_type)
    with runtime.running("in_process"):
        _, released = _run_program(process, source(), 1, tmp_path)
        assert list(released) == [1]
        state, released = _run_program(process, source(), 2, tmp_path)
        assert list(released) == [2]
        expected = experiment.train(
            process,
            clients,
            total_rounds=2,
            clients_per_round=2,
            seed=5,
            progress=progress.Silence(),
        )
        found, wanted = _flat(state), _flat(expected.state)
        assert len(found) == len(wanted) >= 12
        for a, b in zip(found, wanted):
            np.testing.assert_array_equal(a, b)
        for metric, value in released[2]["model_metrics"].items():
            if metric.endswith("/not_finite"):  # A run says it, in no column.
                assert value == 0
                continue
            assert expected.rows[1][f"training/{metric}"] == pytest.approx(value)
        # The means and variances of the norms; Freeze's classifier stays.
        others, start = [
            process.get_model_weights(each).non_trainable
            for each in (state, process.initialize())
        ]
    moved = [not np.array_equal(a, b) for a, b in zip(others, start)]
    assert sum(moved) == 8
