"""`bin/export`: what TensorFlow makes of the SavedModel, without this package."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import commands
from tests.training import every_method
from tff_reg import models, tasks, training
from tff_reg.commands import export as export_command, run as run_command
from tff_reg.data import augmentation
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import trained_model
from tff_reg.methods import catalogue

# Run elsewhere and by path: neither tff_reg nor TFF may be needed.
READER = """
import sys
import numpy as np
import tensorflow as tf

images, path, output = sys.argv[1:]
signature = tf.saved_model.load(path).signatures["serving_default"]
(logits,) = signature(tf.constant(np.load(images))).values()
np.save(output, logits)
assert not {"tensorflow_federated", "tff_reg"} & set(sys.modules)
"""


def test_tensorflow_predicts_what_the_run_evaluated(tmp_path):
    """Residual branches are scaled in evaluations. Eight seconds: TensorFlow starts."""
    run_dir, output = tmp_path / "run", tmp_path / "model"
    done = commands.call(
        run_command.main,
        "--process=stochdepth",
        "--stochdepth_survival_probability=0.5",
        "--scale=tiny",
        "--client_learning_rate=0.1",
        f"--output_dir={run_dir}",
    )
    assert done.returncode == 0, done.stderr
    done = commands.call(
        export_command.main, f"--run_dir={run_dir}", f"--output={output}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{output}: the model after round 1; ")
    stored = json.loads((output / "metadata.json").read_text())
    assert stored["class_names"] == list("0123456789")
    assert stored["input"] == {"shape": [None, 8, 8, 1], "dtype": "uint8"}
    assert stored["process"] == "stochdepth" and stored["weights"] == "server"
    assert stored["output"].startswith("logits, ")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}
    run = trained.load(run_dir, tasks=tasks)
    network = run.model().network
    with np.load(output / "weights.npz") as weights:
        np.testing.assert_array_equal(
            weights["stem/conv/kernel"], network.trainable_variables[0]
        )
    images, labels = run.task.test_arrays()
    np.save(tmp_path / "images.npy", images)
    paths = tmp_path / "images.npy", output, tmp_path / "logits.npy"
    command = [sys.executable, "-I", "-c", READER, *paths]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=240)
    found = np.load(paths[-1])
    expected = network(run.task.normalize_fn(images), models.ForwardPass()).logits
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    accuracy = np.mean(np.argmax(found, axis=1) == labels)
    assert accuracy == pytest.approx(summary["final_accuracy"])
    network.evaluation_branch_scales = None
    plain = network(run.task.normalize_fn(images), models.ForwardPass()).logits
    assert not np.allclose(plain, found, atol=1e-3)


@pytest.mark.parametrize("name", every_method.ADAPTING)
def test_what_a_method_makes_of_the_network_is_saved(name, tmp_path):
    method = catalogue.methods()[name]()
    model = training.adapt_model_fn(every_method.model_fn, [method])()
    normalize = augmentation.normalize((0.4,), (0.2,))
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 1)).astype(np.uint8)
    expected = model.predict_on_batch(normalize(images), False)
    spec = tf.TensorSpec([None, 4, 4, 1], tf.uint8)
    found = trained_model.TrainedModel(model, normalize, spec)
    np.testing.assert_allclose(found.predict(images), expected, rtol=2e-5, atol=2e-5)
    found.save(tmp_path / "model")
    signature = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (logits,) = signature(tf.constant(images)).values()
    np.testing.assert_array_equal(logits, found.predict(images))


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(run_dir=None), "--run_dir: it is missing; --help says what it is."),
        (dict(run_dir="nowhere"), "nowhere has no run; give the directory of one."),
        (
            dict(weights="last"),
            "--weights=last: there is no such weights; choose one of server,"
            " all_clients, best.",
        ),
        (dict(output="/"), "--output=/: it is there already; delete it first."),
        (dict(output="no/model"), "--output=no/model: there is no such directory."),
    ],
)
def test_what_is_wrong_is_said_in_a_line(changed, message):
    given = dict(run_dir="run", output="model")
    given.update(changed)
    done = commands.call(
        export_command.main, *(f"--{k}={v}" for k, v in given.items() if v is not None)
    )
    assert commands.refusal(done) == f"bin/export: {message}"


def test_a_clients_own_model_is_exported(tmp_path):
    """With the weights that clients share, and its own."""
    run_dir = tmp_path / "run"
    flags = ["--process=fedbn", "--norm=batch", "--scale=tiny", "--client_evaluation=1"]
    done = commands.call(run_command.main, *flags, f"--output_dir={run_dir}")
    assert done.returncode == 0, done.stderr
    found = {}
    for client in ("0", "client_0001", ""):
        output = tmp_path / f"model{client}"
        named = [f"--client={client}"] if client else []
        done = commands.call(
            export_command.main, f"--run_dir={run_dir}", f"--output={output}", *named
        )
        if client:
            assert done.returncode == 0, done.stderr
            assert "the model of client_000" in done.stdout
            with np.load(output / "weights.npz") as weights:
                found[client] = dict(weights)
    assert done.returncode == 2 and "Name one (bin/export" in done.stderr
    done = commands.call(
        export_command.main, f"--run_dir={run_dir}", "--output=x", "--client=client_9"
    )
    assert done.returncode == 2 and "--client=client_9: the run has" in done.stderr
    done = commands.call(
        export_command.main,
        *(f"--run_dir={run_dir}", "--output=x", "--client=0", "--weights=best"),
    )
    assert done.returncode == 2 and "--weights=best: a client's own" in done.stderr
    one, other = found.values()
    of_norm = ("gamma", "beta", "moving_mean", "moving_variance")
    for name, value in one.items():
        if not name.endswith(of_norm):
            np.testing.assert_array_equal(value, other[name])
    assert any(not np.array_equal(one[name], other[name]) for name in one)
