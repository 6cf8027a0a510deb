import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import local_steps
from tests.methods import one_weight
from tests.training import every_method
from tff_reg import methods, models, training
from tff_reg.methods import method
from tff_reg.training import local_round, local_training, trial


def _tensors(*values):
    return [tf.constant(value, tf.float64) for value in values]


WEIGHTS = _tensors([[4.0, 5.0], [1.0, 1.0]], [2.0], [[1.0], [1.0]], [0.0])
START = _tensors([[1.0, 1.0], [1.0, 1.0]], [0.0], [[1.0], [0.0]], [0.0])
# Of length 7.
GRADIENT = _tensors([[2.0, 3.0], [6.0, 0.0]], [0.0], [[0.0], [0.0]], [0.0])
# |w - start| by its outputs: 3 and 4 of 5, nothing, a bias, 0 and 1.
UNITS = ([[0.6, 0.8], [0.0, 0.0]], [1.0], [[0.0], [1.0]], [0.0])


def _perturbation(gradient=None, **settings):
    in_head = (False, False, True, True)
    local = one_weight.local(
        weights=WEIGHTS,
        start=START,
        in_head=in_head,
        output_axes=((1,), (0,), (1,), (0,)),
    )
    fedsol = methods.FedSOL(radius=0.7, **settings)
    return one_weight.perturbation(fedsol, local, gradient or GRADIENT)


@pytest.mark.parametrize("perturbation", ["fixed", "adaptive"])
def test_climbs_the_divergence_by_the_radius_and_by_what_has_moved(perturbation):
    found = _perturbation(perturbation=perturbation)
    for tensor, gradient, unit in zip(found, GRADIENT, UNITS):
        scale = unit if perturbation == "adaptive" else 1.0
        np.testing.assert_allclose(tensor, 0.1 * gradient * scale, rtol=1e-10)


@pytest.mark.parametrize("part, length", [("all", 5.0), ("body", 3.0), ("head", 4.0)])
def test_moves_the_last_layer_or_all_others(part, length):
    gradient = _tensors([[3.0, 0.0], [0.0, 0.0]], [0.0], [[0.0], [0.0]], [4.0])
    found = _perturbation(gradient, perturbation="fixed", part=part)
    moves = {"all": (1, 1), "body": (1, 0), "head": (0, 1)}[part]
    assert float(found[0][0, 0]) == pytest.approx(0.7 * 3 / length * moves[0])
    assert float(found[3][0]) == pytest.approx(0.7 * 4 / length * moves[1])


@pytest.mark.parametrize(
    "of_classifier, names",
    [
        (methods.FedAvg(), ["classifier/dense/kernel", "classifier/dense/bias"]),
        (
            methods.FedETF(),
            [
                f"classifier/simplex/{n}"
                for n in ("scaling", "dense/kernel", "dense/bias")
            ],
        ),
        (methods.Freeze(), []),
    ],
)
def test_the_head_is_the_trainable_part_of_the_last_layer(of_classifier, names):
    model = training.adapt_model_fn(every_method.model_fn, [of_classifier])()
    found = [v.name.split(":")[0] for v in model.network.head_variables]
    assert sorted(found) == sorted(names)
    if not names:
        with pytest.raises(ValueError, match="fedsol_part=head: .*freeze"):
            methods.FedSOL(part="head").check_network(model.network)


@pytest.mark.parametrize("perturbation", ["fixed", "adaptive"])
def test_rounding_errors_of_the_divergence_move_nothing(perturbation):
    gradient = [1e-8 * g for g in GRADIENT]
    for tensor in _perturbation(gradient, perturbation=perturbation):
        np.testing.assert_array_equal(tensor, np.zeros_like(tensor))


@dataclasses.dataclass(frozen=True)
class _Reading(method.Method):
    """Keeps what the received model says of each batch, in evaluation mode."""

    name = "reading"
    seen: list = dataclasses.field(default_factory=list)

    def term(self, step):
        logits = step.outputs_of(method.EVALUATED).logits
        self.seen.append(logits)
        return method.Term(raw=0.0, weighted=0.0 * step.task_loss)


def test_the_global_model_is_evaluated_with_its_own_statistics():
    received = every_method.model_fn()
    rng = np.random.default_rng(3)
    for variable in received.trainable_variables:
        variable.assign_add(0.1 * rng.normal(size=variable.shape))
    for variable in received.non_trainable_variables:
        variable.assign_add(rng.uniform(0.5, 1, variable.shape))
    weights = tff.learning.models.ModelWeights.from_model(received)
    x = tf.constant(rng.normal(size=(6, 4, 4, 1)), tf.float32)
    expected = received.network(x, models.ForwardPass(training=False)).logits
    reading = _Reading()
    work = local_training.LocalTraining(training.build_sgd(0.1), [reading])
    each_round = local_round.LocalRound(
        every_method.model_fn,
        work,
        tff.learning.ClientWeighting.UNIFORM,
        trial.Trial(every_method.model_fn, work).needs,
    )
    reading.seen.clear()
    batch = {"x": x, "y": tf.zeros([6], tf.int32)}
    visit, progress = each_round.begin(
        {"learning_rate": tf.constant(0.1)},
        tf.constant(1),
        1.0,
        weights,
        None,
        {},
        {},
    )
    # In the second step the local model has moved, and its statistics have.
    for _ in range(2):
        progress = each_round.step(visit, progress, batch, local_steps.key)
    assert len(reading.seen) == 2
    for logits in reading.seen:
        np.testing.assert_array_equal(logits, expected)
