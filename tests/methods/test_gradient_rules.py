import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.training import every_method
from tff_reg import methods, models, runtime, training
from tff_reg.methods import fedsam
from tff_reg.training import local_step

RULES = [methods.FedSAM(), methods.FedASAM()]
SHARP = [
    methods.FedSAM(radius=0.2),
    methods.FedASAM(radius=0.2),
]
MODEL_FN = every_method.model_fn


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


def _by_name(rules):
    return pytest.mark.parametrize("rule", rules, ids=lambda rule: rule.name)


def _batch(seed=0, count=6):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        x=tf.constant(rng.normal(size=(count, 4, 4, 1)), tf.float32),
        y=tf.constant(rng.integers(0, 3, count), tf.int32),
    )


def _variables():
    return [
        tf.Variable([[2.0, -1.0]], name="dense/kernel", dtype=tf.float64),
        tf.Variable([1.0, 1.0], name="norm/gamma", dtype=tf.float64),
        tf.Variable([3.0, 5.0], name="dense/bias", dtype=tf.float64),
    ]


def _gradient():
    values = [[[3.0, 0.0]], [0.0, 4.0], [12.0, 0.0]]
    return [tf.constant(value, tf.float64) for value in values]


def test_sam_climbs_by_the_radius_along_the_gradient():
    ascent = methods.FedSAM(radius=0.26).ascent(_variables(), _gradient())
    # The gradient's norm is 13.
    np.testing.assert_allclose(ascent[0], [[0.06, 0]], rtol=1e-14)
    np.testing.assert_allclose(ascent[1], [0, 0.08], rtol=1e-14)
    np.testing.assert_allclose(ascent[2], [0.24, 0], rtol=1e-14)


@pytest.mark.parametrize("scaled, gamma_scale", [("code", 1.5), ("kernels", 1.0)])
def test_asam_measures_kernels_by_their_size_and_biases_not(scaled, gamma_scale):
    rule = methods.FedASAM(radius=0.5, offset=0.5, scaled=scaled)
    ascent = rule.ascent(_variables(), _gradient())
    # t = |w| + 0.5 is [2.5, 1.5] for the kernel; t g is 7.5, 4 gamma_scale and 12.
    factor = 0.5 / np.sqrt(7.5**2 + (4 * gamma_scale) ** 2 + 12**2)
    np.testing.assert_allclose(ascent[0], [[factor * 2.5 * 7.5, 0]], rtol=1e-14)
    np.testing.assert_allclose(ascent[1], [0, factor * gamma_scale**2 * 4], rtol=1e-14)
    np.testing.assert_allclose(ascent[2], [factor * 12, 0], rtol=1e-14)


@_by_name(RULES)
def test_a_gradient_of_zero_moves_nothing(rule):
    zeros = [tf.zeros([2]), tf.zeros([1])]
    variables = [tf.Variable([1.0, 2.0], name="kernel"), tf.Variable([1.0])]
    for ascent in rule.ascent(variables, zeros):
        np.testing.assert_array_equal(ascent, tf.zeros_like(ascent))


@_by_name(SHARP)
@pytest.mark.parametrize("in_graph", [False, True])
def test_the_gradient_is_that_of_displaced_weights_which_are_put_back(rule, in_graph):
    variables = [tf.Variable([0.1, 0.7]), tf.Variable([[1.1]], name="kernel")]
    before = [v.numpy() for v in variables]
    compute = lambda: [tf.square(v) for v in variables]
    ascent = rule.ascent(variables, compute())
    call = lambda: rule(compute, variables, rule.make_slots(variables))
    gradient = tf.function(call)() if in_graph else call()
    for value, start, up, variable in zip(gradient, before, ascent, variables):
        np.testing.assert_allclose(value, np.square(start + up), rtol=1e-6)
        np.testing.assert_array_equal(variable, start)


def _loss_gradient(model, batch):
    """By a plain tape over the model, without statistics."""
    with tf.GradientTape() as tape:
        outputs = model.network(
            batch["x"], models.ForwardPass(training=True, update_statistics=False)
        )
        loss = model.loss_fn(batch["y"], outputs.logits)
    return tape.gradient(loss, model.trainable_variables)


@_by_name(SHARP)
def test_a_step_takes_the_gradient_of_the_loss_at_the_displaced_weights(rule):
    model, batch = MODEL_FN(), _batch()
    variables = model.trainable_variables
    computed, count, _ = local_step.LocalStep(model, {}, ()).gradient(
        batch, (), None, rule
    )
    assert count == 6
    plain = _loss_gradient(model, batch)
    for variable, up in zip(variables, rule.ascent(variables, plain)):
        variable.assign_add(up)
    expected = _loss_gradient(model, batch)
    for ours, other, flat in zip(computed, expected, plain):
        np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-5)
    difference = fedsam.global_norm([a - b for a, b in zip(plain, expected)])
    assert difference > 0.01 * fedsam.global_norm(plain)


@_by_name(SHARP)
def test_metrics_statistics_and_measurements_are_those_of_the_first_pass(rule):
    results = []
    for one in (gradient_rule.GradientRule(), rule):
        model = MODEL_FN()
        step = local_step.LocalStep(model, {}, [methods.MAN()])
        _, count, measurements = step.gradient(_batch(), (), None, one)
        results.append(
            [
                *model.non_trainable_variables,
                *tf.nest.flatten(model.report_local_unfinalized_metrics()),
                *measurements.values(),
                count,
            ]
        )
    initial = MODEL_FN()
    assert np.any(results[0][0] != initial.non_trainable_variables[0])
    for plain, twice in zip(*results):
        np.testing.assert_array_equal(plain, twice)


class _Recorder(methods.Mixup):
    """Mixup that keeps the batches it made."""

    def change_batch(self, batch, key):
        change = super().change_batch(batch, key)
        self.seen.append(change.value.features.numpy())
        return change


@_by_name(SHARP)
def test_both_passes_share_what_is_random(rule):
    recorder = _Recorder(concentration=1.0)
    object.__setattr__(recorder, "seen", [])
    asked = []

    def compute_key():
        asked.append(1)
        return tf.constant([5, 6], tf.int64)

    batch = _batch()
    step = local_step.LocalStep(MODEL_FN(), {}, [recorder])
    step.gradient(batch, (), compute_key, rule)
    assert len(asked) == 1
    first, second = recorder.seen
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - batch["x"]).max() > 1e-3


def _data_set(seed, count):
    element = _batch(seed, count)
    element["key"] = tf.constant([seed, 1], tf.int64)
    return tf.data.Dataset.from_tensors(element)


def _two_rounds(rule):
    process = training.build_regularized(
        MODEL_FN,
        [methods.Mixup(concentration=1.0)],
        training.build_sgd(0.05, 0.9, weight_decay=1e-3),
        client_data=training.WholeClientData(batch_size=4, local_epochs=2),
        max_gradient_norm=1.0,
        gradient_rule=rule,
    )
    state = process.initialize()
    for _ in range(2):
        output = process.next(state, [_data_set(0, 5), _data_set(1, 9)])
        state = output.state
    weights = process.get_model_weights(state)
    return tf.nest.flatten([weights.trainable, weights.non_trainable]), output.metrics


@pytest.mark.slow
def test_radius_0_is_fedavg_to_the_bit():
    plain, metrics = _two_rounds(gradient_rule.GradientRule())
    for rule in (
        methods.FedSAM(radius=0.0),
        methods.FedASAM(radius=0.0),
    ):
        flat, same_metrics = _two_rounds(rule)
        for first, second in zip(plain, flat):
            np.testing.assert_array_equal(first, second)
        train = metrics["client_work"]["train"]
        assert same_metrics["client_work"]["train"] == train
    sharp, _ = _two_rounds(methods.FedSAM(radius=0.1))
    assert any(np.any(first != second) for first, second in zip(plain, sharp))


def _keras_model_fn():
    keras_model = tf.keras.Sequential(
        [tf.keras.layers.Flatten(input_shape=(4, 4, 1)), tf.keras.layers.Dense(3)]
    )
    return tff.learning.models.from_keras_model(
        keras_model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=collections.OrderedDict(
            x=tf.TensorSpec([None, 4, 4, 1], tf.float32),
            y=tf.TensorSpec([None], tf.int32),
        ),
    )


@_by_name([*RULES, methods.FedSpeed().gradient_rule])
def test_a_model_that_does_not_show_its_network_is_refused(rule):
    message = f"{rule.name} runs every batch twice"
    with pytest.raises(TypeError, match=message) as caught:
        training.build_regularized(
            _keras_model_fn, (), training.build_sgd(0.1), gradient_rule=rule
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: methods.FedSAM(radius=-1.0), "fedsam: radius must be"),
        (lambda: methods.FedASAM(radius=np.inf), "fedasam: radius must be"),
        (lambda: methods.FedASAM(offset=-1.0), "fedasam: offset must be"),
        (lambda: methods.FedASAM(scaled="all"), "one of code, kernels"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
