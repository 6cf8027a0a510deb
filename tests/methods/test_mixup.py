import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests import local_steps
from tff_reg import methods, models
from tff_reg.methods import method, mixup


def _batch(size=6):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(size, 8, 8, 1)))
    return method.Batch(x, [(tf.range(size) % 3, 1.0)])


def _key(number):
    return tf.constant([number, 7], tf.int64)


def test_mixes_examples_and_weighs_their_labels():
    x, labels = tf.constant([[1.0], [2.0], [4.0]]), tf.constant([0, 1, 2])
    mixed = mixup.mix(
        method.Batch(x, [(labels, 1.0)]), tf.constant(0.25), tf.constant([2, 0, 1])
    )
    np.testing.assert_allclose(mixed.features, [[3.25], [1.25], [2.5]])
    (own, own_weight), (others, others_weight) = mixed.targets
    np.testing.assert_array_equal(own, [0, 1, 2])
    np.testing.assert_array_equal(others, [2, 0, 1])
    assert (float(own_weight), float(others_weight)) == (0.25, 0.75)


def _coefficients(concentration, count):
    term, batch = methods.Mixup(concentration=concentration), _batch(1)

    @tf.function
    def draw(key):
        return term.change_batch(batch, key).measurements["coefficient"]

    return np.array([draw(_key(i)).numpy() for i in range(count)])


@pytest.mark.parametrize("concentration", [0.1, 1.0, 4.0])
def test_coefficients_are_beta_distributed(concentration):
    draws = _coefficients(concentration, 600)
    expected = stats.beta(concentration, concentration)
    assert stats.kstest(draws, expected.cdf).pvalue > 0.01


def test_draws_follow_from_the_key_alone():
    term = methods.Mixup(concentration=1.0)
    first, measured, _ = term.change_batch(_batch(), _key(1))
    again = term.change_batch(_batch(), _key(1)).value
    other = term.change_batch(_batch(), _key(2)).value
    np.testing.assert_array_equal(first.features, again.features)
    assert not np.array_equal(first.features, other.features)
    assert 0 <= measured["coefficient"] <= 1


@pytest.mark.parametrize(
    "changing", [methods.Mixup(concentration=1.0), methods.FedLC(), methods.FedRS()]
)
def test_all_terms_of_a_sum_see_the_changed_loss(changing):
    model = models.build_model_fn(
        "resnet8", image_shape=(8, 8, 1), num_classes=3, dtype="float64"
    )()
    seen = []

    class Spy(methods.FedProx):
        def term(self, step):
            seen.append((step.task_loss, step.compute_loss(step.outputs.logits)))
            return super().term(step)

    terms = [changing, Spy()]
    batch = _batch()
    global_weights = [tf.constant(v) for v in model.trainable_variables]
    labels = tf.minimum(batch.targets[0][0], 1)  # The last class lacks.
    examples = dict(x=batch.features, y=labels)
    local_steps.gradient(model, terms, examples, start=global_weights)
    # Those before are of the trial round.
    task_loss, again = seen[-1]
    assert float(task_loss) == pytest.approx(float(again))
    plain = model.loss_fn(
        labels, model.network(batch.features, models.ForwardPass()).logits
    )
    assert float(task_loss) != pytest.approx(float(plain), rel=1e-6)
