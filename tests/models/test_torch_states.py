"""Weights of PyTorch networks give their logits here, and go back as they came."""

import json

import keras
import numpy as np
import pytest

from tests.models import torch_networks
from tff_reg import models

RECORDED = json.loads(torch_networks.RECORDED.read_text(encoding="utf-8"))
layers = keras.layers


def _state(name):
    return torch_networks.values(RECORDED[name]["shapes"])


def _conv(filters, size, stride=1, name=None):
    options = dict(padding="valid", use_bias=False, name=name)
    return layers.Conv2D(filters, size, stride, **options)


def _norm(name=None):
    return layers.BatchNormalization(epsilon=1e-5, name=name)


def _narrow(is_named=False, shortcut_first=False):
    """PyTorch's narrow ResNet in Keras, with its names or without."""
    named = iter([n for n in RECORDED["narrow"]["shapes"] if n.endswith("weight")])

    def conv_norm(x, filters, size, stride=1):
        names = [next(named).rpartition(".")[0] if is_named else None for _ in "ab"]
        x = layers.ZeroPadding2D(size // 2)(x)
        return _norm(names[1])(_conv(filters, size, stride, names[0])(x))

    inputs = keras.Input(torch_networks.IMAGES["narrow"])
    x = layers.ReLU()(conv_norm(inputs, 4, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for planes, stride in [(4, 1), (4, 1), (8, 2), (8, 1)]:
        y = layers.ReLU()(conv_norm(x, planes, 3, stride))
        y = conv_norm(y, planes, 3)
        shortcut = conv_norm(x, planes, 1, stride) if stride > 1 else x
        pair = [shortcut, y] if shortcut_first else [y, shortcut]
        x = layers.ReLU()(layers.Add()(pair))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, name="fc" if is_named else None)(x))


def _flat():
    """PyTorch's flattening network in Keras."""
    return keras.Sequential(
        [
            keras.Input(torch_networks.IMAGES["flat"]),
            layers.Conv2D(4, 3, activation="relu"),
            layers.DepthwiseConv2D(3, depth_multiplier=2),
            layers.Flatten(),
            _norm(),
            layers.Dense(10),
        ]
    )


def _ours():
    network = dict(image_shape=torch_networks.IMAGES["resnet18"], num_classes=10)
    return models.build_model_fn("resnet18_imagenet", norm="batch", **network)()


MODELS = {
    "resnet18": _ours,
    "narrow": _narrow,
    "narrow, of the same names": lambda: _narrow(is_named=True),
    "flat": _flat,
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_with_weights_of_pytorch_has_its_logits(case):
    name = case.partition(",")[0]
    model, state = MODELS[case](), _state(name)
    fit = models.load_torch_state(model, state)
    count = sum("num_batches" not in each for each in state)
    by_name = count if "names" in case else 0
    assert (len(fit.values), fit.by_name) == (count, by_name)
    assert fit.missing == fit.unused == []
    call = model if isinstance(model, keras.Model) else model.predict_on_batch
    logits = call(torch_networks.images(name), training=False)
    expected = RECORDED[name]["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    back = models.torch_state(model, {n: 0 * value for n, value in state.items()})
    assert [*back] == [*state]
    for each, value in state.items():
        is_counter = each.endswith("num_batches_tracked")
        np.testing.assert_array_equal(back[each], 0 if is_counter else value)


class _Tensor:
    """What PyTorch's tensors do: their values are on a device."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def detach(self):
        return self

    def cpu(self):
        return self._array

    def new_tensor(self, array):
        assert array.dtype == self._array.dtype
        return _Tensor(array)


def test_a_state_of_tensors_stays_one():
    model, state = _flat(), _state("flat")
    tensors = {name: _Tensor(value) for name, value in state.items()}
    models.load_torch_state(model, tensors)
    back = models.torch_state(model, tensors)
    for name, value in state.items():
        np.testing.assert_array_equal(back[name].cpu(), value)


def test_a_head_of_other_classes_is_named_and_has_no_way_back():
    state = _state("narrow")
    state["fc.weight"], state["fc.bias"] = np.zeros((7, 8)), np.zeros(7)
    model = _narrow()
    before = model.get_weights()[-2:]
    fit = models.load_torch_state(model, state)
    kernel = f"{model.layers[-1].name}/kernel"
    assert [fit.unused, len(fit.missing)] == [["fc.weight", "fc.bias"], 2]
    assert fit.missing[0].endswith(kernel) and "fc.weight" in str(fit)
    for value, expected in zip(model.get_weights()[-2:], before):
        np.testing.assert_array_equal(value, expected)
    with pytest.raises(ValueError, match="fc.weight, fc.bias are only in one"):
        models.torch_state(model, state)


def test_what_is_behind_a_flattening_is_found_by_its_input():
    """Two layers on one flattening, one on an input, and a norm before a layer."""
    generator = np.random.default_rng(0)
    draw = lambda *shape: generator.normal(size=shape).astype(np.float32)  # noqa: E731
    image, vector = draw(2, 4, 4, 3), draw(2, 48)
    inputs = keras.Input((4, 4, 3)), keras.Input((48,))
    flat = layers.Flatten()(inputs[0])
    last = layers.Dense(5, name="d")(layers.LayerNormalization(name="n")(flat))
    both = [layers.Dense(5, name=name)(flat) for name in "ab"]
    other = layers.Dense(5, name="c")(inputs[1])
    model = keras.Model(inputs, layers.Concatenate()([*both, other, last]))
    state = {f"{name}.weight": draw(5, 48) for name in "abcd"}
    state |= {f"{name}.bias": draw(5) for name in "abcd"}
    state |= {"n.weight": draw(48), "n.bias": draw(48)}
    models.load_torch_state(model, state)
    x = image.transpose(0, 3, 1, 2).reshape(2, -1)
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    norm = (x - mean) / np.sqrt(variance + 1e-3) * state["n.weight"] + state["n.bias"]
    expected = [
        each @ state[f"{name}.weight"].T + state[f"{name}.bias"]
        for name, each in zip("abcd", [x, x, vector, norm])
    ]
    found = model([image, vector])
    np.testing.assert_allclose(found, np.concatenate(expected, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("moved", [layers.Reshape((48,)), layers.Permute((3, 1, 2))])
def test_behind_axes_that_were_moved_nothing_is_known(moved):
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), moved, layers.Flatten(), layers.Dense(5)]
    )
    state = {"a.weight": np.ones((5, 48)), "a.bias": np.ones(5)}
    with pytest.raises(ValueError, match="no kernel in it"):
        models.load_torch_state(model, state)


def test_layers_of_another_order_are_not_mixed_up():
    """The shortcut's norm has the shape of the norm beside it."""
    model = _narrow(shortcut_first=True)
    before = model.get_weights()
    with pytest.raises(ValueError, match="no kernel in it"):
        models.load_torch_state(model, _state("narrow"))
    for value, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    "model, state, why",
    [
        (lambda: _narrow, {}, "the model is a function"),
        (lambda: models.from_keras(_flat())(), {}, "give the Keras model itself"),
        (_flat, {"state_dict": {}, "epoch": 3}, "often has it under 'state_dict'"),
        (_flat, object(), "must be tensors or arrays"),
    ],
    ids=["a function", "of from_keras", "a checkpoint", "a network"],
)
def test_what_is_no_model_or_no_state_is_refused(model, state, why):
    with pytest.raises(TypeError, match=why):
        models.load_torch_state(model(), state)
