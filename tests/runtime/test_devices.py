"""Clients on several devices, seen from where their operations were placed.

Four virtual CPU devices stand for GPUs. They have to be set up before TensorFlow
starts, hence a process of its own, which reports what it saw.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

_SCRIPT = textwrap.dedent("""
    import json, re, sys
    from tff_reg import quiet, runtime
    quiet.silence()
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 4
    )
    from tensorflow.python.eager import context

    DATA = tff.SequenceType(tff.TensorType(np.float32, [None, 3]))

    def training(loop):
        @tff.tensorflow.computation(np.float32, DATA)
        def train(model, batches):
            weights = tf.Variable(tf.fill([3, 2], model))
            @tf.function
            def run():
                if loop == "iterator":
                    for batch in iter(batches):
                        weights.assign_sub(tf.matmul(batch, tf.matmul(batch, weights),
                                                     transpose_a=True))
                else:
                    def step(seen, batch):
                        weights.assign_sub(tf.matmul(batch, tf.matmul(batch, weights),
                                                     transpose_a=True))
                        return seen + 1
                    batches.reduce(0, step)
                return weights.read_value()
            return run()

        @tff.federated_computation(
            tff.FederatedType(np.float32, tff.SERVER),
            tff.FederatedType(DATA, tff.CLIENTS),
        )
        def next_round(model, batches):
            return tff.federated_mean(
                tff.federated_map(train, (tff.federated_broadcast(model), batches)))
        return next_round

    def client(index):
        examples = 0.1 * np.sin(np.arange(24.0) + index).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(
            examples.reshape(8, 3)).map(lambda x: x * 1.0).batch(4)

    report = {}
    for loop in ("iterator", "reduce"):
        next_round = training(loop)
        for devices in (1, 2, 4):
            names = [f"CPU:{i}" for i in range(devices)]
            if devices == 2:
                names = ["CPU:1", "CPU:3"]
            runtime.use("in_process", devices=names, clients_in_parallel=1)
            data = [client(i) for i in range(8)]
            context.context().enable_run_metadata()
            result = next_round(1.0, data)
            metadata = context.context().export_run_metadata()
            context.context().disable_run_metadata()
            places = {}
            for stats in metadata.step_stats.dev_stats:
                device = stats.device.rpartition("device:")[2]
                for node in stats.node_stats:
                    label = node.timeline_label or node.node_name
                    op = re.search(r"= ?(\\w+)\\(", label)
                    op = op.group(1) if op else label
                    places.setdefault(op, {}).setdefault(device, 0)
                    places[op][device] += 1
            report[f"{loop} {devices}"] = {
                "places": places,
                "result": np.asarray(result).tobytes().hex(),
                "describe": runtime.describe(),
                "names": names,
            }
    print(json.dumps(report))
""")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    # In a file, because AutoGraph reads the source.
    script = tmp_path_factory.mktemp("devices") / "script.py"
    script.write_text(_SCRIPT)
    finished = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.parametrize("loop", ["iterator", "reduce"])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_each_device_does_its_share_of_the_clients(report, loop, devices):
    found = report[f"{loop} {devices}"]
    matmuls = found["places"]["MatMul"]
    # 8 clients, 2 batches each, 2 products a batch.
    assert matmuls == {name: 32 // devices for name in found["names"]}
    assert set(found["places"]["VarHandleOp"]) == set(found["names"])


@pytest.mark.parametrize("loop", ["iterator", "reduce"])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_input_pipelines_stay_on_the_first_cpu(report, loop, devices):
    places = report[f"{loop} {devices}"]["places"]
    pipeline = {op: where for op, where in places.items() if "Iterator" in op}
    assert pipeline
    for op, where in pipeline.items():
        assert set(where) == {"CPU:0"}, op
    assert "ReduceDataset" not in places


def test_results_are_equal_to_the_bit_on_any_number_of_devices(report):
    assert len({found["result"] for found in report.values()}) == 1


def test_describe_names_the_devices(report):
    assert (
        report["reduce 4"]["describe"]
        == "clients run in process on 4 CPU devices (1 at a time on each)"
    )
