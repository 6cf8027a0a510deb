"""`bin/export`: what plain Keras makes of the files, without this package."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Run elsewhere and by path: neither tff_reg nor TFF may be needed.
READER = """
import importlib.util, json, sys
import numpy as np
import tensorflow as tf

assert importlib.util.find_spec("tff_reg") is None
kind, path, images, output = sys.argv[1:]
images = np.load(images)
if kind == "load_model":
    model = tf.keras.models.load_model(path)
    logits = model.predict(images, verbose=0)
else:
    signature = tf.saved_model.load(path).signatures["serving_default"]
    (logits,) = signature(tf.constant(images)).values()
assert "tensorflow_federated" not in sys.modules
np.save(output, logits)
"""


def _command(name, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "bin" / f"{name}.py"), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A round of stochastic depth: residual branches are scaled in evaluations."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = _command(
        "run",
        "--process=stochdepth",
        "--stochdepth_survival_probability=0.5",
        "--scale=tiny",
        "--client_learning_rate=0.1",
        f"--output_dir={path}",
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def expected(run_dir, tmp_path_factory):
    """Raw test images, and what the run's own model makes of them."""
    import tasks
    from tff_reg.experiment import trained

    run = trained.load(run_dir, tasks=tasks)
    images, _ = run.task.test_arrays()
    assert images.dtype == np.uint8
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, images)
    logits = run.model().predict_on_batch(run.task.normalize_fn(images), False)
    return path, np.asarray(logits), run


@pytest.mark.parametrize(
    "format, kinds",
    [("keras", ["load_model"]), ("saved_model", ["load_model", "saved_model"])],
)
def test_plain_keras_predicts_the_same(run_dir, expected, format, kinds, tmp_path):
    images, logits, run = expected
    output = tmp_path / ("model.keras" if format == "keras" else "model")
    done = _command(
        "export", f"--run_dir={run_dir}", f"--format={format}", f"--output={output}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{output}: the model after round 1; ")
    beside = tmp_path / "model.keras.metadata.json"
    metadata = beside if format == "keras" else output / "metadata.json"
    stored = json.loads(metadata.read_text())
    assert stored["class_names"] == list("0123456789")
    assert stored["input"] == {"shape": [None, 8, 8, 1], "dtype": "uint8"}
    assert stored["process"] == "stochdepth"
    left = {output} | ({beside} if format == "keras" else set())
    assert set(tmp_path.iterdir()) == left
    script = tmp_path / "reader.py"
    script.write_text(READER)
    for kind in kinds:
        found = tmp_path / f"{kind}.npy"
        subprocess.run(
            [sys.executable, "-I", script, kind, output, images, found],
            cwd=tmp_path,
            check=True,
            timeout=120,
        )
        np.testing.assert_allclose(np.load(found), logits, rtol=1e-5, atol=1e-5)
    # The branches' scales are in the model.
    network = run.model().network
    network.evaluation_branch_scales = None
    plain = network(run.task.normalize_fn(np.load(images))).logits
    assert not np.allclose(plain, logits, atol=1e-3)


def test_every_network_is_exported_and_read_back(tmp_path):
    import tensorflow as tf
    from tff_reg import models
    from tff_reg.data import augmentation
    from tff_reg.experiment import export

    normalize = augmentation.normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    # One of each kind of layer: those of the others are made of the same.
    for name, norm, projector in (
        ("cnn", "none", "univarfl"),
        ("resnet18_imagenet", "batch", "none"),
        ("mobilenet", "group", "moon"),
        ("shufflenet", "batch", "none"),
        ("squeezenet", "group", "none"),
    ):
        model = models.build_model_fn(
            name,
            image_shape=(32, 32, 3),
            num_classes=5,
            norm=norm,
            projector=projector,
        )()
        network = model.network
        for number, variable in enumerate(network.non_trainable_variables):
            noise = tf.random.stateless_uniform(variable.shape, (1, number))
            variable.assign_add(noise)
        logits = network(normalize(images)).logits
        path = tmp_path / f"{name}.keras"
        export.build_keras_model(network, normalize, "uint8").save(path)
        found = tf.keras.models.load_model(path, compile=False)(images)
        np.testing.assert_allclose(found, logits, rtol=2e-5, atol=2e-5, err_msg=name)


def test_preprocessing_that_is_no_scale_and_shift_is_refused():
    import tensorflow as tf
    from tff_reg import models
    from tff_reg.experiment import export

    model = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()
    with pytest.raises(export.ExportError, match="not a scale and a shift"):
        export.build_keras_model(
            model.network, lambda x: tf.sqrt(tf.cast(x, tf.float32)), "uint8"
        )


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(run_dir=None), "--run_dir is missing; --help says what it is."),
        (dict(run_dir="nowhere"), "nowhere has no run; give the directory of one."),
        (dict(format="onnx"), "--format=onnx: choose one of keras, saved_model."),
        (dict(output="model.h5"), "--output=model.h5: its name must end in .keras."),
        (dict(output="no/m.keras"), "--output=no/m.keras: there is no such directory."),
    ],
)
def test_what_is_wrong_is_said_in_a_line(changed, message):
    given = dict(run_dir="run", format="keras", output="model.keras")
    given.update(changed)
    done = _command(
        "export", *(f"--{k}={v}" for k, v in given.items() if v is not None)
    )
    assert done.returncode == 2
    assert done.stderr == f"bin/export: {message}\n"
