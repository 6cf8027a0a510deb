"""Clients on several devices, seen from where their operations were placed.

Four virtual CPU devices stand for GPUs. They have to be set up before TensorFlow
starts, hence a process of its own, some seven seconds, which reports what it saw.
"""

import collections
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

_SCRIPT = textwrap.dedent("""
    import json, os, sys
    from tff_reg import runtime
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 4
    )
    tf.debugging.set_log_device_placement(True)  # to standard error

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
        for names in (["CPU:0"], ["CPU:1", "CPU:3"]):
            runtime.use("in_process", devices=names, clients_in_parallel=1)
            data = [client(i) for i in range(8)]
            case = f"{loop} {len(names)}"
            os.write(2, f"=== {case}\\n".encode())
            result = next_round(1.0, data)
            os.write(2, b"=== end\\n")
            report[case] = {
                "names": names,
                "result": np.asarray(result).tobytes().hex(),
            }
    print(json.dumps(report))
""")

# How TensorFlow logs where the placer puts an operation, and where a call runs.
_PLACED = re.compile(r"placer\.cc:\d+\] .*: \((\w+)\): \S*/device:(\S+)")
_CALLED = re.compile(r"Executing op __inference_wrapped_function.* in .*device:(\S+)")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """By case: the script's report, where operations were placed, calls by device."""
    # In a file, because AutoGraph reads the source.
    script = tmp_path_factory.mktemp("devices") / "script.py"
    script.write_text(_SCRIPT)
    finished = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    case = "end"
    for line in finished.stderr.splitlines():
        if line.startswith("=== "):
            case = line[4:]
            if case != "end":
                found[case]["placed"] = collections.defaultdict(set)
                found[case]["calls"] = collections.Counter()
        if case == "end":
            continue
        if match := _PLACED.search(line):
            found[case]["placed"][match.group(1)].add(match.group(2))
        if match := _CALLED.search(line):
            found[case]["calls"][match.group(1)] += 1
    return found


@pytest.mark.parametrize("loop", ["iterator", "reduce"])
def test_each_device_does_its_share_of_the_clients(report, loop):
    # One call more makes a device ready, and runs nothing.
    assert report[f"{loop} 1"]["calls"] == {"CPU:0": 9}
    assert report[f"{loop} 2"]["calls"] == {"CPU:1": 5, "CPU:3": 5}


@pytest.mark.parametrize("loop", ["iterator", "reduce"])
def test_model_operations_and_variables_are_on_the_clients_device(report, loop):
    for op in ("MatMul", "VarHandleOp", "AssignSubVariableOp"):
        placed = report[f"{loop} 2"]["placed"][op] | report[f"{loop} 1"]["placed"][op]
        assert placed == {"CPU:0", "CPU:1", "CPU:3"}, op


@pytest.mark.parametrize("loop", ["iterator", "reduce"])
def test_input_pipelines_stay_on_the_first_cpu(report, loop):
    for devices in (1, 2):
        placed = report[f"{loop} {devices}"]["placed"]
        pipeline = {op: where for op, where in placed.items() if "Iterator" in op}
        assert pipeline
        for op, where in pipeline.items():
            assert where == {"CPU:0"}, op
        assert "ReduceDataset" not in placed


def test_results_are_bitwise_equal_on_any_number_of_devices(report):
    assert len({found["result"] for found in report.values()}) == 1
