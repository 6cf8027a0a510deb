"""What TFF does with plain learning processes: forms for devices, programs."""

import asyncio
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import client
from tff_reg import data
from tff_reg import experiment
from tff_reg import models
from tff_reg import processes
from tff_reg import runtime
from tff_reg.experiment import progress
from tff_reg.processes import catalog
from tests import random_clients

CNN_FN = models.build_model_fn(
    "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
)
RESNET_FN = models.build_model_fn("resnet8", image_shape=(6, 6, 1), num_classes=3)
# These need what the CNN does not have: width, branches.
NEEDS_RESNET = ("fedalign", "gradaug", "stochdepth")
STATEFUL = ("moon", "scaffold", "feddyn", "feddc", "fedspeed")
STATELESS = [name for name in catalog.names() if name not in STATEFUL]


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield
    _build.cache_clear()


@functools.lru_cache(maxsize=None)
def _build(name):
    return processes.build(
        name,
        RESNET_FN if name in NEEDS_RESNET else CNN_FN,
        client_data=client.WholeClientData(batch_size=4),
        num_clients=3,
    )


@pytest.mark.parametrize("name", STATELESS)
def test_every_stateless_process_compiles_to_both_forms(name):
    process = _build(name)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    library = tff.backends.mapreduce
    form = library.get_map_reduce_form_for_computation(process.next)
    assert not form.securely_aggregates_tensors
    form_type = form.type_signature.result[0].member
    assert process.initialize.type_signature.result.member.is_assignable_from(form_type)
    form = library.get_distribute_aggregate_form_for_computation(process.next)
    form_type = form.type_signature.result[0].member
    assert process.initialize.type_signature.result.member.is_assignable_from(form_type)


@pytest.mark.parametrize("name", STATEFUL)
def test_processes_with_client_state_do_not(name):
    process = _build(name)
    assert isinstance(process, processes.StatefulLearningProcess)
    with pytest.raises(TypeError):
        tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)


def _assert_is(output, expected):
    """Compares what a form gives with what `next` does."""
    _assert_same(output["state"], expected.state, at_least=12)
    _assert_same(output["metrics"], expected.metrics, at_least=5)


def _assert_same(found, expected, at_least):
    found, expected = [
        tff.structure.flatten(tff.structure.from_container(each, recursive=True))
        for each in (found, expected)
    ]
    assert len(found) == len(expected) >= at_least
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _run_map_reduce(form, state, clients):
    """A round as a platform runs it: only the form's TensorFlow computations."""
    sent = form.prepare(state)
    halves = []
    for part in (clients[:2], clients[2:]):
        total = form.zero()
        for data in part:
            update, *secure = form.work(data, sent)
            assert not tf.nest.flatten(secure)
            total = form.accumulate(total, update)
        halves.append(total)
    aggregate = form.report(form.merge(*halves))
    return form.update(state, (aggregate, (), (), ()))


@pytest.mark.parametrize("name", ["fedavg", "fedgkd+man"])
def test_a_round_of_the_map_reduce_form_gives_the_numbers_of_next(name):
    process = _build(name)
    clients, state = random_clients.clients((6, 9, 5)), process.initialize()
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    expected = process.next(state, clients)
    _assert_is(_run_map_reduce(form, state, clients), expected)


def test_a_round_of_the_distribute_aggregate_form_gives_the_numbers_of_next():
    process = _build("fedprox")
    clients, state = random_clients.clients((6, 9, 5)), process.initialize()
    library = tff.backends.mapreduce
    form = library.get_distribute_aggregate_form_for_computation(process.next)

    @tff.federated_computation(*process.next.type_signature.parameter)
    def round_of_form(state, data):
        sent, kept = form.server_prepare(state)
        results = form.client_work(data, form.server_to_client_broadcast(sent))
        aggregate = form.client_to_server_aggregation(kept, results)
        return form.server_result(kept, aggregate)

    expected = process.next(state, clients)
    _assert_is(round_of_form(state, clients), expected)


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


@pytest.mark.parametrize("name", STATELESS)
def test_every_stateless_process_trains_in_a_program_and_resumes(name, tmp_path):
    process = _build(name)
    side = 6 if name in NEEDS_RESNET else 4
    rng = np.random.default_rng(0)
    clients = data.ArrayClientData(
        rng.normal(size=(24, side, side, 1)).astype(np.float32),
        rng.integers(0, 3, 24),
        np.split(np.arange(24), [8, 15]),
    )

    def source():
        return data.SeededDataSource(clients, seed=5)

    parameter = process.next.type_signature.parameter
    assert parameter[1].is_assignable_from(source().federated_type)
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
    found, wanted = [
        tff.structure.flatten(tff.structure.from_container(each, recursive=True))
        for each in (state, expected.state)
    ]
    assert len(found) == len(wanted) >= 12
    for a, b in zip(found, wanted):
        np.testing.assert_array_equal(a, b)
    for name, value in released[2]["model_metrics"].items():
        assert expected.rows[1][f"training/{name}"] == pytest.approx(value)
    if side == 4:
        # The means and variances of two norms; Freeze's classifier stays.
        others, start = [
            process.get_model_weights(each).non_trainable
            for each in (state, process.initialize())
        ]
        moved = [not np.array_equal(a, b) for a, b in zip(others, start)]
        assert sum(moved) == 4
