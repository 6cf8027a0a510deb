"""`bin/export`: what plain Keras makes of the files, without this package."""

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
from tff_reg.lazy import todays_keras as keras
from tff_reg.methods import catalogue
from tff_reg.models import as_keras

# Run elsewhere and by path: neither tff_reg nor TFF may be needed.
READER = """
import sys
import keras
import numpy as np
import tensorflow as tf

images = np.load(sys.argv[1])
for kind, path, output in zip(*[iter(sys.argv[2:])] * 3):
    if kind == "load_model":
        model = keras.models.load_model(path)
        logits = model.predict(images, verbose=0)
    else:
        signature = tf.saved_model.load(path).signatures["serving_default"]
        (logits,) = signature(tf.constant(images)).values()
    np.save(output, logits)
assert not {"tensorflow_federated", "tff_reg"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A round of stochastic depth: residual branches are scaled in evaluations."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = commands.call(
        run_command.main,
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
    run = trained.load(run_dir, tasks=tasks)
    images, _ = run.task.test_arrays()
    assert images.dtype == np.uint8
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, images)
    logits = run.model().predict_on_batch(run.task.normalize_fn(images), False)
    return path, np.asarray(logits), run


FILES = {"keras": "model.keras", "saved_model": "model"}
READ = [("keras", "load_model"), ("saved_model", "saved_model")]


@pytest.fixture(scope="module")
def exported(run_dir, expected, tmp_path_factory):
    """Where the model is in each format, what was said, and the reader's logits."""
    folder = tmp_path_factory.mktemp("exported")
    paths = {format: folder / format / name for format, name in FILES.items()}
    said, logits, arguments = {}, {}, [expected[0]]
    for format, path in paths.items():
        path.parent.mkdir()
        flags = (f"--run_dir={run_dir}", f"--format={format}", f"--output={path}")
        said[format] = commands.call(export_command.main, *flags)
    for format, kind in READ:
        logits[format, kind] = folder / f"{format}-{kind}.npy"
        arguments += [kind, paths[format], logits[format, kind]]
    script = folder / "reader.py"
    script.write_text(READER)
    subprocess.run(
        [sys.executable, "-I", script, *arguments], cwd=folder, check=True, timeout=240
    )
    return paths, said, {read: np.load(path) for read, path in logits.items()}


@pytest.mark.parametrize("format", FILES)
def test_the_model_is_written_with_what_is_known_of_it(exported, format):
    paths, said, _ = exported
    output, done = paths[format], said[format]
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{output}: the model after round 1; ")
    beside = output.parent / "model.keras.metadata.json"
    metadata = beside if format == "keras" else output / "metadata.json"
    stored = json.loads(metadata.read_text())
    assert stored["class_names"] == list("0123456789")
    assert stored["input"] == {"shape": [None, 8, 8, 1], "dtype": "uint8"}
    assert stored["process"] == "stochdepth" and stored["weights"] == "server"
    assert stored["output"].startswith("logits, ")
    left = {output} | ({beside} if format == "keras" else set())
    assert set(output.parent.iterdir()) == left


@pytest.mark.parametrize("format, kind", READ)
def test_plain_keras_predicts_the_same(exported, expected, format, kind):
    _, logits, _ = expected
    np.testing.assert_allclose(exported[2][format, kind], logits, rtol=1e-5, atol=1e-5)


def test_the_accuracy_is_the_runs_and_weights_have_the_layers_names(
    exported, expected, run_dir
):
    _, labels = expected[2].task.test_arrays()
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    predicted = np.argmax(exported[2]["keras", "load_model"], axis=1)
    assert np.mean(predicted == labels) == pytest.approx(summary["final_accuracy"])
    model = keras.models.load_model(exported[0]["keras"])
    weights = expected[2].model().network.trainable_variables
    own = {v.name.split(":")[0]: v.numpy() for v in weights}
    np.testing.assert_array_equal(
        model.get_layer("stem_conv").kernel, own["stem/conv/kernel"]
    )


def test_the_branches_scales_are_in_the_model(expected):
    images, logits, run = expected
    network = run.model().network
    network.evaluation_branch_scales = None
    plain = network(run.task.normalize_fn(np.load(images))).logits
    assert not np.allclose(plain, logits, atol=1e-3)


@pytest.mark.parametrize("name", every_method.ADAPTING)
def test_what_a_method_makes_of_the_network_is_exported(name):
    method = catalogue.methods()[name]()
    model = training.adapt_model_fn(every_method.model_fn, [method])()
    normalize = augmentation.normalize((0.4,), (0.2,))
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 1)).astype(np.uint8)
    logits = model.predict_on_batch(normalize(images), False)
    found = as_keras.build_keras_model(model.network, normalize, "uint8")(images)
    np.testing.assert_allclose(found, logits, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_every_network_is_exported_and_read_back(tmp_path):
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
        as_keras.build_keras_model(network, normalize, "uint8").save(path)
        found = keras.models.load_model(path, compile=False)(images)
        np.testing.assert_allclose(found, logits, rtol=2e-5, atol=2e-5, err_msg=name)


def test_preprocessing_that_is_no_scale_and_shift_is_refused():
    model = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()
    with pytest.raises(as_keras.ExportError, match="not a scale and a shift"):
        as_keras.build_keras_model(
            model.network, lambda x: tf.sqrt(tf.cast(x, tf.float32)), "uint8"
        )


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(run_dir=None), "--run_dir: it is missing; --help says what it is."),
        (dict(run_dir="nowhere"), "nowhere has no run; give the directory of one."),
        (dict(format="onnx"), "--format=onnx: choose one of keras, saved_model."),
        (
            dict(weights="last"),
            "--weights=last: there is no such weights; choose one of server,"
            " all_clients, best.",
        ),
        (dict(output="model.h5"), "--output=model.h5: its name must end in .keras."),
        (dict(output="no/m.keras"), "--output=no/m.keras: there is no such directory."),
        (
            dict(output="/proc/m.keras"),
            "--output=/proc/m.keras: it cannot be written to (No such file or"
            " directory); give another one.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(changed, message):
    given = dict(run_dir="run", format="keras", output="model.keras")
    given.update(changed)
    done = commands.call(
        export_command.main, *(f"--{k}={v}" for k, v in given.items() if v is not None)
    )
    assert commands.refusal(done) == f"bin/export: {message}"
