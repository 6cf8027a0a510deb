import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models
from tff_reg.methods import fedalign
from tff_reg.models import forward


def _random(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def test_the_spectral_norm_of_nothing_is_zero_with_zero_gradient():
    matrix = tf.zeros([1, 3, 3])
    with tf.GradientTape() as tape:
        tape.watch(matrix)
        norm = fedalign.spectral_norm(matrix, 10)
    assert norm == 0.0
    np.testing.assert_array_equal(tape.gradient(norm, matrix), matrix)


@pytest.mark.parametrize("rows, columns", [(8, 8), (7, 5), (9, 4), (4, 4), (2, 3)])
def test_adaptive_pooling_averages_the_windows(rows, columns):
    x = _random(1, rows, columns, 2)
    pooled = fedalign.adaptive_average_pool(x, 4, 3)
    if rows <= 4 and columns <= 3:
        np.testing.assert_array_equal(pooled, x)
        return
    expected = np.zeros([4, 3, 2])
    for i in range(4):
        for j in range(3):
            window = x[
                0,
                i * rows // 4 : -(-(i + 1) * rows // 4),
                j * columns // 3 : -(-(j + 1) * columns // 3),
            ]
            expected[i, j] = np.mean(window, (0, 1))
    np.testing.assert_allclose(pooled[0], expected)


def _step(name="resnet8", norm="batch"):
    model = models.build_model_fn(
        name, image_shape=(8, 8, 1), num_classes=3, norm=norm, dtype="float64"
    )()
    outputs = model.network(_random(4, 8, 8, 1), forward.ForwardPass(training=True))
    labels = tf.constant([0, 1, 2, 0])
    return model, methods.Step(
        network=model.network,
        outputs=outputs,
        labels=labels,
        task_loss=model.loss_fn(labels, outputs.logits),
        weights=model.trainable_variables,
    )


def test_only_the_sub_block_gets_gradients_and_statistics_stay():
    model, _ = _step()
    before = None
    with tf.GradientTape() as tape:
        model, step = _step()
        before = [v.numpy() for v in model.non_trainable_variables]
        tape.watch(model.trainable_variables)
        value = methods.FedAlign().term(step).weighted
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(value, model.trainable_variables)
    ):
        if not variable.name.startswith("stage3"):
            assert gradient is None
            continue
        gradient = tf.convert_to_tensor(gradient)
        assert np.any(gradient[..., :16]), variable.name
        np.testing.assert_array_equal(gradient[..., 16:], 0)
    for variable, value in zip(model.non_trainable_variables, before):
        np.testing.assert_array_equal(variable, value)


def test_a_model_without_width_is_refused_with_a_sentence():
    with pytest.raises(models.MissingCapabilityError, match="cannot run at width 0.25"):
        model = models.from_keras_blocks(
            [
                tf.keras.layers.Conv2D(4, 3),
                tf.keras.layers.Conv2D(4, 3),
                [tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)],
            ],
            input_shape=(8, 8, 1),
        )
        methods.FedAlign().check_network(model)


def test_a_model_of_one_block_is_refused_with_a_sentence():
    model = models.from_keras_blocks(
        [[tf.keras.layers.Flatten()], [tf.keras.layers.Dense(3)]], input_shape=(4, 4, 1)
    )
    with pytest.raises(ValueError, match="cannot be narrowed"):
        methods.FedAlign().check_network(model)
    model.supports_width = True
    with pytest.raises(ValueError, match="at least two blocks before"):
        methods.FedAlign().check_network(model)
