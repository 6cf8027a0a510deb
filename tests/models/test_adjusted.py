"""Networks of which a part trains."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import data, models, runtime, training
from tff_reg.models import adjusted, keras_applications
from tff_reg.settings import SettingError
from tff_reg.training import traffic

NETWORK = models.build_model_fn(
    "resnet8", image_shape=(8, 8, 1), num_classes=3, norm="batch"
)
FREEZE = ("stem", "stage1/*", "*/beta", "stage2/unit1/norm1")


def test_what_is_frozen_follows_the_patterns():
    names = ["a/kernel", "a/bias", "ab/kernel", "b/c/bias"]
    assert adjusted.frozen(names, train=["a", "*/bias"]) == {"ab/kernel"}
    assert adjusted.frozen(names, ["a", "b"], ["*/bias"]) == {*names} - {"a/kernel"}
    with pytest.raises(SettingError, match="freeze=c: no weight's name matches c;"):
        adjusted.frozen(names, freeze=["c"])
    for given in (dict(freeze=["*"]), dict(train=["*/moving_mean"])):
        with pytest.raises(SettingError, match="nothing is trained"):
            adjusted.AdjustedModelFn(NETWORK, **given)


def test_a_round_trains_the_rest_as_gradients_say_and_sends_nothing_else():
    """The same step on the whole network, whose frozen norms predict as tested."""
    model_fn = adjusted.AdjustedModelFn(NETWORK, freeze=FREEZE)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 8, 8, 1)).astype(np.float32)
    clients = data.ArrayClientData(x, np.arange(20) % 3, [np.arange(20)])
    process = training.build_regularized(
        model_fn,
        [],
        training.build_sgd(0.1),
        client_data=training.WholeClientData(20, local_epochs=1),
    )
    key = data.client_key(0, 1, "client_0000")
    with runtime.running("in_process"):
        dataset = clients.whole_client_dataset("client_0000", key)
        state = process.next(process.initialize(), [dataset]).state
        trained = process.get_model_weights(state)
    model, part = NETWORK(), model_fn()
    names = models.keras_calls.names_of(part.trainable_variables)
    variables = dict(
        zip(
            models.keras_calls.names_of(model.trainable_variables),
            model.trainable_variables,
        )
    )
    # A norm of which gamma or beta trains has the batch's statistics.
    fixed = ("stem", "stage1", "stage2/unit1/norm1")
    for each in [each for block in model.network.blocks for each in block.submodules]:
        if hasattr(each, "moving_mean") and each.gamma.name.startswith(fixed):
            call = each.call
            each.call = lambda x, f, call=call: call(x, models.ForwardPass())
    with tf.GradientTape() as tape:
        loss = model.forward_pass({"x": x, "y": np.arange(20) % 3}).loss
    gradients = tape.gradient(loss, [variables[name] for name in names])
    for name, value, gradient in zip(names, trained.trainable, gradients, strict=True):
        expected = variables[name] - 0.1 * gradient
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6, err_msg=name)
    assert not any(name.startswith(fixed) or "beta" in name for name in names)
    others = models.keras_calls.names_of(part.non_trainable_variables)
    assert others and not any(name.startswith(fixed) for name in others)
    whole = [*model.trainable_variables, *model.non_trainable_variables]
    assert len(part.network.frozen) == len(whole) - len(names) - len(others)
    count = sum(np.size(v) for v in [*trained.trainable, *trained.non_trainable])
    down, up = traffic.bytes_per_client(process)
    assert 0 <= down - 4 * count < 100 and 0 <= up - 4 * count < 100


def test_a_frozen_classifier_is_not_frozen_again():
    model = adjusted.AdjustedModelFn(NETWORK, freeze=["classifier"])()
    with pytest.raises(ValueError, match="classifier of this model is frozen already"):
        model.network.freeze_classifier()


def test_a_network_of_keras_applications_begins_by_its_seed_and_trains_a_part():
    def made(seed, **patterns):
        shape = dict(image_shape=(32, 32, 3), num_classes=4, seed=seed)
        return keras_applications.build_model_fn("keras:MobileNet", **shape, **patterns)

    train = ["classifier", "conv_dw_13_bn", "*_pw_13_bn/gamma", "conv_pw_13"]
    first, again = made(1, train=train), made(1)
    for value, other in zip(first.plan.model.weights, again.plan.model.weights):
        np.testing.assert_array_equal(value, other)
    model = first()
    names = model.network.weight_names
    assert {names[id(v)] for v in model.trainable_variables} == {
        *("classifier/kernel", "classifier/bias", "conv_pw_13/kernel"),
        *("conv_dw_13_bn/gamma", "conv_dw_13_bn/beta", "conv_pw_13_bn/gamma"),
    }
    # The statistics of the two norms of which weights train.
    assert len(model.non_trainable_variables) == 4
    with pytest.raises(SettingError, match="model=keras:MobileNet: .*32"):
        keras_applications.build_model_fn(
            "keras:MobileNet", image_shape=(8, 8, 1), num_classes=4, seed=0
        )


@pytest.mark.parametrize(
    "name, mean, std, is_bgr",
    [
        ("MobileNetV2", [0.5] * 3, [0.5] * 3, False),
        ("EfficientNetB0", [0] * 3, [1 / 255] * 3, False),
        ("DenseNet121", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], False),
        ("ResNet50", np.divide([123.68, 116.779, 103.939], 255), [1 / 255] * 3, True),
    ],
)
def test_images_are_as_a_network_of_keras_expects_them(name, mean, std, is_bgr):
    found = keras_applications.expected_by(f"keras:{name}")
    numbers = [float(each) for each in re.findall(r"[\d.]+", found)]
    np.testing.assert_allclose(numbers, [*mean, *std], atol=1e-6)
    assert ("blue before red" in found) == is_bgr


def test_a_step_in_bfloat16_has_about_the_same_loss_and_gradient():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8, 8, 1)).astype(np.float32), np.arange(32) % 3
    short_fn = adjusted.AdjustedModelFn(NETWORK, mixed_precision="bfloat16")
    found = []
    for model in (NETWORK(), short_fn()):
        with tf.GradientTape() as tape:
            loss = model.forward_pass({"x": x, "y": y}).loss
        gradient = tape.gradient(loss, model.trainable_variables)
        found.append((loss, np.concatenate([np.ravel(g) for g in gradient])))
    (loss, exact), (other, short) = found
    assert loss.dtype == other.dtype == tf.float32
    assert loss != other and np.isclose(loss, other, rtol=2**-7)
    norms = np.linalg.norm(exact) * np.linalg.norm(short)
    assert exact @ short > 0.99 * norms
