import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tff_reg import methods, models
from tff_reg.models import forward

MODEL_FN = models.build_model_fn(
    "resnet8", image_shape=(8, 8, 1), num_classes=3, dtype="float64"
)


def _measure(**settings):
    local, received = MODEL_FN(), MODEL_FN()
    rng = np.random.default_rng(0)
    for variable in received.trainable_variables:
        variable.assign_add(0.1 * rng.normal(size=variable.shape))
    batch = dict(
        x=tf.constant(rng.normal(size=(4, 8, 8, 1))), y=tf.constant([0, 1, 2, 0])
    )
    term = methods.FedMLB(**settings)
    references = {"global": received}
    return local_steps.gradient(local, [term], batch, references=references)[2]


def test_chosen_paths_add_up_to_all_of_them():
    every = _measure()
    parts = [_measure(paths=path) for path in ((1,), (2, 4), (3,))]
    for name in ("term", "cross_entropy", "divergence"):
        total = sum(float(part[f"fedmlb/{name}"]) for part in parts)
        assert total == pytest.approx(float(every[f"fedmlb/{name}"]), rel=1e-5)


def test_the_divisor_can_be_the_number_of_chosen_paths():
    by_all = _measure(paths=(2, 4))
    by_chosen = _measure(paths=(2, 4), divisor="chosen")
    for name in ("term", "cross_entropy", "divergence"):
        halves = float(by_all[f"fedmlb/{name}"])
        assert float(by_chosen[f"fedmlb/{name}"]) == pytest.approx(2 * halves, rel=1e-5)


def test_the_term_weighs_its_two_parts():
    measured = _measure(cross_entropy=0.5, distillation=2.0, temperature=2.0)
    expected = 0.5 * measured["fedmlb/cross_entropy"]
    expected += 2.0 * measured["fedmlb/divergence"]
    assert float(measured["fedmlb/term"]) == pytest.approx(float(expected), rel=1e-5)


def test_raises_on_a_path_that_the_model_does_not_have():
    with pytest.raises(ValueError, match="5 blocks make only 4 paths"):
        methods.FedMLB(paths=(5,)).check_network(MODEL_FN().network)


def test_global_to_local_paths_begin_with_the_global_blocks():
    local, received = MODEL_FN(), MODEL_FN()
    for variable in received.trainable_variables:
        variable.assign(1.1 * variable)
    x = tf.random.stateless_normal([4, 8, 8, 1], [1, 2], dtype=tf.float64)
    batch = dict(x=x, y=tf.constant([0, 1, 2, 0]))
    settings = forward.ForwardPass(training=True)
    blocks = received.network(x, settings).block_outputs
    losses = [
        local.loss_fn(
            batch["y"], local.network.run_from(m, blocks[m - 1], settings).logits
        )
        for m in range(1, 5)
    ]
    term = methods.FedMLB(direction="global_to_local")
    gradients, _, measured = local_steps.gradient(
        local, [term], batch, references={"global": received}
    )
    assert float(measured["fedmlb/cross_entropy"]) == pytest.approx(
        float(tf.add_n(losses)) / 4, rel=1e-5
    )
    # The local classifier ends these paths too, so it learns from them; it is no part
    # of the local-to-global ones.
    plain, _, _ = local_steps.gradient(local, [], batch)
    assert not np.allclose(gradients[-1], plain[-1])
