"""`use`, `running`, `describe`, `shutdown`."""

import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import runtime
from tff_reg.runtime import context, devices


@pytest.fixture(autouse=True)
def _nothing_chosen():
    yield
    runtime.shutdown()


def _increment():
    return tff.tensorflow.computation(lambda x: x + 1, np.int32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(kind="gpu"), "runtime=gpu: there is no such runtime; choose one of"),
        (dict(kind="in_process", devices=[]), "is empty"),
        (dict(kind="in_process", devices="GPU:²"), "or GPU:1, found .GPU:²"),
        (dict(kind="in_process", devices=["CPU:0", "cpu:0"]), "named twice"),
        (dict(kind="in_process", devices="CPU:77"), "no device CPU:77; it has CPU:0"),
        (
            dict(kind="in_process", data_on_nodes=True),
            "data_on_nodes=true: it is for runtime=ray, not in_pr",
        ),
        (dict(kind="ray", ray_address="a"), "host:port, found 'a'"),
        (dict(kind="ray", ray_address="a:0"), "host:port, found 'a:0'"),
    ],
    ids=str,
)
def test_wrong_choices_are_refused(arguments, message):
    runtime.use("in_process", clients_in_parallel=1)
    before = runtime.describe()
    with pytest.raises(ValueError, match=message) as caught:
        runtime.use(**arguments)
    assert "\n" not in str(caught.value)
    assert runtime.describe() == before


def test_requiring_a_gpu_fails_where_there_is_none(monkeypatch):
    monkeypatch.setattr(
        devices.tf.config, "list_physical_devices", lambda kind=None: []
    )
    with pytest.raises(runtime.NoGpuError, match="TensorFlow sees none"):
        runtime.use("in_process", require_gpu=True)


def test_computations_without_clients_values_have_the_default_number():
    @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER))
    def shared(x):
        sent = tff.federated_broadcast(x)
        return sent, tff.federated_sum(sent)

    @tff.federated_computation
    def count():
        return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(values)

    with runtime.running("in_process", default_num_clients=3):
        assert shared(1.5) == (1.5, 4.5)
        assert (count(), total([]), total([1, 1])) == (3, 0, 2)
    with runtime.running("in_process"):
        assert count() == 0


def test_describe_says_where_clients_run():
    assert "TFF's own default context" in runtime.describe()
    runtime.use("in_process", devices="CPU:0", clients_in_parallel=3)
    expected = "clients run in process on 1 CPU device (3 at a time)"
    assert runtime.describe() == expected


@pytest.mark.parametrize("tf32", [False, True])
def test_gpus_compute_in_float32_and_deterministically_unless_asked(tf32, monkeypatch):
    calls = []
    config = tf.config.experimental
    card = {"device_name": "H", "compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(config, "enable_op_determinism", lambda: calls.append("same"))
    monkeypatch.setattr(config, "get_device_details", lambda gpu: card)
    devices.set_arithmetic(not tf32, tf32)
    assert config.tensor_float_32_execution_enabled() is tf32
    assert calls == ([] if tf32 else ["same"])
    assert devices.description(["GPU:0", "GPU:1"], 1) == (
        "clients run in process on 2 GPU devices (1 at a time on each), H, "
        + ("TF32" if tf32 else "float32")
    )
    devices.set_arithmetic(True, False)


def test_a_runtime_leaves_tensorflow_in_float32():
    config = tf.config.experimental
    with runtime.running("in_process", devices="CPU:0", tf32=True):
        assert config.tensor_float_32_execution_enabled()
    with runtime.running("in_process", devices="CPU:0"):
        assert not config.tensor_float_32_execution_enabled()
        with runtime.running("in_process", devices="CPU:0", tf32=True):
            assert config.tensor_float_32_execution_enabled()
        assert not config.tensor_float_32_execution_enabled()


def test_running_ends_with_what_was_in_use_before():
    original = tff.framework.get_context_stack().current
    with runtime.running("in_process", clients_in_parallel=1):
        inner = runtime.describe()
        with pytest.raises(KeyError), runtime.running("in_process", devices="CPU:0"):
            raise KeyError
        assert runtime.describe() == inner
        assert _increment()(1) == 2
    assert tff.framework.get_context_stack().current is original


def _runs_here():
    """Whether a computation runs in this process."""
    builds = context.PLANS.builds
    assert _increment()(1) == 2
    return context.PLANS.builds > builds


def test_a_runtime_applies_to_all_threads():
    original = tff.framework.get_context_stack().current
    entered, leave = threading.Event(), threading.Event()

    def work():
        with runtime.running("in_process"):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    assert "in process" in runtime.describe() and _runs_here()
    leave.set()
    thread.join()
    with runtime.running("in_process"), futures.ThreadPoolExecutor(1) as pool:
        assert _runs_here() and pool.submit(_runs_here).result()
    assert tff.framework.get_context_stack().current is original
    assert original.invoke.__self__ is original


def test_a_program_context_needs_a_runtime():
    with pytest.raises(RuntimeError, match="No runtime is in use"):
        runtime.program_context()


def test_intra_op_threads_do_not_depend_on_clients_in_parallel(monkeypatch):
    """They have an influence on the last bits of gradients."""
    threading = devices.tf.config.threading
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.setattr(devices, "cores", lambda: 32)
    wanted = []
    monkeypatch.setattr(threading, "set_intra_op_parallelism_threads", wanted.append)
    for clients_in_parallel in (1, 2, None):
        runtime.use("in_process", clients_in_parallel=clients_in_parallel)
    assert wanted == [4, 4, 4]
