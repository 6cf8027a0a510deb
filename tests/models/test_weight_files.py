"""What of a file fits a network: by name, by order, in another library's layout."""

import keras
import numpy as np
import pytest

from tff_reg import models
from tff_reg.models import adjusted
from tff_reg.settings import SettingError

SHAPE = dict(image_shape=(8, 8, 1), num_classes=3, norm="batch")
# Of PyTorch: roles that it calls otherwise, and the axes of its kernels.
NAMES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
NAMES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
AXES = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}


def _named(model):
    weights = [*model.trainable_variables, *model.non_trainable_variables]
    names = models.keras_calls.names_of(weights)
    return {n: np.asarray(v) for n, v in zip(names, weights)}


def _as_pytorch(own, rename):
    """A `state_dict` of the same weights, layer by layer, as PyTorch has it."""
    found = {}
    for layer in dict.fromkeys(name.rpartition("/")[0] for name in own):
        for role, theirs in NAMES.items():
            if (value := own.get(f"{layer}/{role}")) is not None:
                name = f"{rename(layer)}.{theirs}"
                found[name] = value.transpose(AXES[value.ndim])
        found[f"{rename(layer)}.num_batches_tracked"] = np.array(7)
    return found


@pytest.fixture(scope="module")
def trained():
    """The weights of a network, all of them random."""
    model = models.build_model_fn("resnet8", **SHAPE, seed=5)()
    rng = np.random.default_rng(0)
    return {n: rng.random(v.shape).astype(np.float32) for n, v in _named(model).items()}


@pytest.mark.parametrize(
    "rename, how",
    [
        (None, "by name"),
        (lambda layer: layer.replace("/", "."), "by name"),
        (lambda layer: f"module.{abs(hash(layer))}", "by the order of layers"),
    ],
    ids=["ours", "PyTorch", "PyTorch, of other names"],
)
def test_a_network_begins_with_all_weights_of_a_file(rename, how, trained, tmp_path):
    path = str(tmp_path / "w.npz")
    np.savez(path, **(trained if rename is None else _as_pytorch(trained, rename)))
    model_fn = models.build_model_fn("resnet8", **SHAPE)
    made = adjusted.AdjustedModelFn(model_fn, initial_weights=path)
    initial = models.initial_weights(made)  # In a graph, as TFF makes it.
    for own in (_named(made()).values(), [*initial.trainable, *initial.non_trainable]):
        for value, expected in zip(own, trained.values(), strict=True):
            np.testing.assert_array_equal(value, expected)
    count = len(trained)
    counts = [count, 0] if how == "by name" else [0, count]
    said = "{2} of {2} weights are from w.npz, {0} by name, {1} by the order"
    assert made.said[0].startswith(said.format(*counts, count))


def test_a_last_layer_of_other_classes_is_left_out(trained, tmp_path):
    path = str(tmp_path / "w.npz")
    np.savez(path, **_as_pytorch(trained, lambda layer: f"x{len(layer)}.{layer}"))
    model_fn = models.build_model_fn("resnet8", **{**SHAPE, "num_classes": 7})
    made = adjusted.AdjustedModelFn(model_fn, initial_weights=path)
    own = _named(made())
    left = {name for name in own if not np.array_equal(own[name], trained[name])}
    assert left == {"classifier/dense/kernel", "classifier/dense/bias"}
    assert "without one: classifier/dense/kernel, classifier/dense/bias" in made.said[0]


def _keras_model(seed):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.Conv1D(8, 3),
            layers.BatchNormalization(),
            layers.GRU(5, name="memory"),
            layers.LayerNormalization(),
            layers.Dense(3, name="last"),
        ]
    )
    rng = np.random.default_rng(seed)
    model.set_weights([rng.random(v.shape) for v in model.get_weights()])
    return model


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5", ".h5"])
@pytest.mark.filterwarnings("ignore")
def test_a_keras_model_begins_with_the_weights_of_another_one(suffix, tmp_path):
    path, saved = str(tmp_path / f"w{suffix}"), _keras_model(seed=1)
    (saved.save_weights if "weights" in suffix else saved.save)(path)
    own = _keras_model(seed=2)
    model_fn = models.from_keras(own)
    made = model_fn.beginning_with(path)
    weights = models.initial_weights(made)
    found = made.keras_model(weights).get_weights()
    for value, expected in zip(found, saved.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert made.digests != model_fn.digests


def _dense(units, is_nested):
    """A model of layers without names, whose numbers begin anywhere."""
    layers = keras.layers
    inner = [keras.Input((6,)), layers.Dense(6), layers.Dense(6)]
    if is_nested:  # In a file, the outer layer's path comes first.
        inner = [keras.Input((6,)), keras.Sequential(inner), layers.Dense(6)]
    model = keras.Sequential([*inner, layers.Dense(units)])
    rng = np.random.default_rng(units)
    model.set_weights([rng.random(v.shape) for v in model.get_weights()])
    return model


@pytest.mark.parametrize("units", [6, 5], ids=["same head", "other head"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5", ".h5", ".npz"])
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_keras_gave_are_no_names(suffix, is_nested, units, tmp_path):
    path, saved = str(tmp_path / f"w{suffix}"), _dense(6, is_nested)
    if suffix == ".npz":
        names = models.keras_calls.names_of(saved.weights)
        np.savez(path, **dict(zip(names, saved.get_weights())))
    else:
        (saved.save_weights if "weights" in suffix else saved.save)(path)
    keras.backend.clear_session()
    _ = keras.layers.Dense(1)
    model_fn = models.from_keras(_dense(units, is_nested))
    if is_nested and units == 5 and suffix in (".keras", ".weights.h5"):
        with pytest.raises(SettingError, match="no kernel in it"):
            model_fn.beginning_with(path)  # The order of these layers is not known.
        return
    made = model_fn.beginning_with(path)
    found = made.keras_model(models.initial_weights(made)).get_weights()
    count = len(found) - 2 * (units == 5)
    for value, expected in zip(found[:count], saved.get_weights()):
        np.testing.assert_array_equal(value, expected)
    assert made.said[0].startswith(f"{count} of {len(found)} weights")


def test_a_norm_without_a_part_is_read_as_keras_reads_it_or_not_at_all(tmp_path):
    def made(units):
        layers = keras.layers
        norms = [
            layers.BatchNormalization(center=False, scale=s) for s in (True, False)
        ]
        model = keras.Sequential([keras.Input((4,)), *norms, layers.Dense(units)])
        values = np.random.default_rng(units)
        model.set_weights([values.random(v.shape) for v in model.get_weights()])
        return model

    saved, path = made(2), str(tmp_path / "w.weights.h5")
    saved.save_weights(path)
    same = models.from_keras(made(2)).beginning_with(path)
    found = same.keras_model(models.initial_weights(same)).get_weights()
    for value, expected in zip(found, saved.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    with pytest.raises(SettingError, match="no kernel in it"):
        models.from_keras(made(3)).beginning_with(path)


@pytest.mark.parametrize("is_keras", [False, True], ids=["ours", "Keras"])
def test_a_kernel_of_pytorch_behind_a_flattening_is_reordered(is_keras, tmp_path):
    layers, path = keras.layers, str(tmp_path / "w.npz")
    model_fn = models.build_model_fn("cnn", **{**SHAPE, "norm": "none"})
    kernel, last = "classifier/hidden/kernel", "classifier.hidden.weight"
    if is_keras:
        kernel, last = "sequential/a/kernel", "a.weight"
        conv = [keras.Input((2, 2, 64)), layers.Flatten(), layers.Dense(8, name="a")]
        model_fn = models.from_keras(
            keras.Sequential([*conv, layers.Dense(3)], name="sequential")
        )
    theirs = np.random.default_rng(0).random((128 if not is_keras else 8, 256))
    np.savez(path, **{last: theirs.astype(np.float32)})
    if is_keras:
        made = model_fn.beginning_with(path)
        found = dict(zip(made.plan.names, made.plan.values))
    else:
        made = adjusted.AdjustedModelFn(model_fn, initial_weights=path)
        found = _named(made())
    image = np.random.default_rng(1).random((2, 2, 64))
    ours = image.reshape(-1) @ found[kernel]
    expected = theirs @ image.transpose(2, 0, 1).reshape(-1)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "arrays, why",
    [
        (
            {"a/kernel": np.zeros((5, 5))},
            "no kernel in it .a/kernel, .* fits the model",
        ),
        ({"classifier/dense/bias": np.ones(3)}, "no kernel in it"),
        ({"stem/conv/kernel": np.full((3, 3, 1, 16), np.nan)}, "are not finite"),
        (None, "it cannot be read"),
    ],
    ids=["nothing fits", "a bias alone", "NaN", "no file of NumPy's"],
)
def test_a_file_that_is_of_no_use_is_refused(arrays, why, tmp_path):
    path = tmp_path / "w.npz"
    path.write_text("no") if arrays is None else np.savez(path, **arrays)
    model_fn = models.build_model_fn("resnet8", **SHAPE)
    with pytest.raises(SettingError, match=why):
        adjusted.AdjustedModelFn(model_fn, initial_weights=str(path))
