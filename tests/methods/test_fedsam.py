"""FedSAM, and what is true of all that perturb the weights by the loss's gradient."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tests.methods import one_weight
from tests.training import every_method
from tff_reg import methods, models
from tff_reg.methods import catalogue, fedsam, method

pytestmark = pytest.mark.usefixtures("in_process")

# Whose perturbation is not along the loss's gradient.
_OTHERWISE = ("fedlesam", "fedlesams", "fedsol", "fedwmsam", "ditto", "pfedme")
_CLASSES = [
    m
    for m in catalogue.methods().values()
    if method.overrides(m, "gradient") and m.name not in _OTHERWISE
]
SHARP = pytest.mark.parametrize(
    "sharp", [cls(radius=0.2) for cls in _CLASSES], ids=lambda sharp: sharp.name
)
MODEL_FN = every_method.model_fn


def _local(sharp, model):
    weights = list(model.trainable_variables)
    start = [tf.zeros_like(w) for w in weights]
    kept = (
        local_steps.first_memory(sharp, where, weights)
        for where in ("client_memory", "server_memory")
    )
    return method.Local(weights, start, *kept, global_weights=start)


@SHARP
def test_a_gradient_of_zero_moves_nothing(sharp):
    model = MODEL_FN()
    zeros = [tf.zeros_like(w) for w in model.trainable_variables]
    for perturbation in one_weight.perturbation(sharp, _local(sharp, model), zeros):
        np.testing.assert_array_equal(perturbation, tf.zeros_like(perturbation))


def _batch(seed=0, count=6):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        x=tf.constant(rng.normal(size=(count, 4, 4, 1)), tf.float32),
        y=tf.constant(rng.integers(0, 3, count), tf.int32),
    )


def _loss_gradient(model, batch):
    """By a plain tape over the model, without statistics."""
    with tf.GradientTape() as tape:
        outputs = model.network(batch["x"], models.ForwardPass(training=True))
        loss = model.loss_fn(batch["y"], outputs.logits)
    return tape.gradient(loss, model.trainable_variables)


@SHARP
def test_the_gradient_is_taken_at_perturbed_weights_which_are_restored(sharp):
    model, batch = MODEL_FN(), _batch()
    variables = model.trainable_variables
    before = [v.numpy() for v in variables]
    start = [tf.zeros_like(v) for v in variables]

    def take():
        return local_steps.gradient(model, [sharp], batch, start=start)[:2]

    computed, count = tf.function(take)()
    assert count == 6
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable, value)
    plain = _loss_gradient(model, batch)
    perturbation = one_weight.perturbation(sharp, _local(sharp, model), plain)
    for variable, up in zip(variables, perturbation):
        variable.assign_add(up)
    expected = _loss_gradient(model, batch)
    for ours, other in zip(computed, expected):
        np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-5)
    difference = fedsam.global_norm([a - b for a, b in zip(plain, expected)])
    assert difference > 0.01 * fedsam.global_norm(plain)


@SHARP
def test_metrics_statistics_and_measurements_are_those_of_the_first_pass(sharp):
    results = []
    for parts in ([], [sharp]):
        model = MODEL_FN()
        start = [tf.zeros_like(v) for v in model.trainable_variables]
        _, count, measurements = local_steps.gradient(
            model, [methods.MAN(), *parts], _batch(), start=start
        )
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
    assert len(results[0]) == len(results[1])
    for plain, twice in zip(*results):
        np.testing.assert_array_equal(plain, twice)


@dataclasses.dataclass(frozen=True)
class _Recorder(methods.Mixup):
    """Mixup that keeps the batches it made."""

    seen: list = dataclasses.field(default_factory=list)

    def change_batch(self, batch, key):
        change = super().change_batch(batch, key)
        self.seen.append(change.value.features.numpy())
        return change


@SHARP
def test_both_passes_use_the_same_random_numbers(sharp):
    recorder = _Recorder(concentration=1.0)
    asked = []

    def compute_key():
        asked.append(1)
        return tf.constant([5, 6], tf.int64)

    model, batch = MODEL_FN(), _batch()
    start = [tf.zeros_like(v) for v in model.trainable_variables]
    parts = [recorder, sharp]
    local_steps.gradient(model, parts, batch, start=start, compute_key=compute_key)
    assert len(asked) == 1
    # Those before are of the trial round.
    first, second = recorder.seen[-2:]
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - batch["x"]).max() > 1e-3
