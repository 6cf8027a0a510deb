"""UniVarFL's terms against a direct evaluation of the paper's equations."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import replay
from tff_reg import models
from tff_reg import regularizers
from tff_reg.models import learning_model
from tff_reg.regularizers import univarfl


def _term(values, **settings):
    """Eq. 4 from the recorded logits and features, with gradients for both."""
    logits = tf.constant(values("logits"))
    features = tf.constant(values("features_unnormalised"))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([logits, features])
        outputs = models.Outputs([features, logits], features, logits, ())
        labels = tf.constant(values("labels").astype(np.int32))
        ce = learning_model.sparse_cross_entropy(labels, logits)
        step = regularizers.Step(
            None, outputs, None, labels, ce, [], [], None, None
        )
        term = regularizers.UniVarFL(**settings)(step)
    return ce, term, tape, logits, features


@replay.parametrize("L_*")
def test_univarfl_terms(name, dtype):
    with np.load(replay.FOLDER / f"{name}.npz", allow_pickle=False) as file:
        stored = {key: file[key] for key in file.files}
    config = json.loads(str(stored["config"]))
    rtol = 1e-10 if dtype == "float64" else 1e-5
    assert config["lam"] == "D/4"

    def values(key):
        array = stored[key]
        return array.astype(dtype) if array.dtype.kind == "f" else array

    def check(key, value, scale=1.0):
        expected = np.asarray(stored[key], np.float64)
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            expected,
            rtol=rtol * scale,
            atol=rtol * scale * np.abs(expected).max(),
            err_msg=key,
        )

    for kind in ("population", "sample"):
        probabilities = tf.constant(values("probs"))
        with tf.GradientTape() as tape:
            tape.watch(probabilities)
            missing = univarfl.missing_variance(probabilities, kind == "sample")
        check(f"{kind}.L_V", missing)
        check(f"{kind}.grad_L_V_wrt_probs", tape.gradient(missing, probabilities))
    for epsilon in config["eps"]:
        # Rounding of 1 - cosine is divided by its square: features that are nearly
        # parallel lose digits in float32.
        scale = 1.0 if dtype == "float64" else 10.0
        for diagonal in ("with_diagonal", "without_diagonal"):
            for kind in ("population", "sample"):
                ce, term, tape, logits, features = _term(
                    values,
                    energy=config["mu"],
                    epsilon=epsilon,
                    variance_kind=kind,
                    include_diagonal=diagonal == "with_diagonal",
                )
                check("loss_ce", ce)
                prefix = f"eps{_shortest(epsilon)}.{diagonal}"
                check(f"{prefix}.L_HE", term.measurements["energy"], scale)
                check(f"{kind}.L_V", term.measurements["missing_variance"])
                check(f"{prefix}.{kind}.total_eq4", ce + term.weighted, scale)
                energy = tape.gradient(term.weighted, features) / config["mu"]
                key = f"{prefix}.grad_wrt_unnormalised_features"
                check(key, energy, 10 * scale)
                classes = logits.shape[-1]
                variance = tape.gradient(term.weighted, logits) / (classes / 4)
                check(f"{kind}.grad_L_V_wrt_logits", variance)


def _shortest(number):
    return f"{number:g}"


def test_the_diagonal_is_a_constant_of_the_report():
    features = tf.constant(np.random.default_rng(0).normal(size=(3, 4)))
    alone = univarfl.hyperspherical_energy(features[:1], 1e-3)
    assert alone == 0.0
    pair = tf.stack([features[0], features[0]])
    assert float(univarfl.hyperspherical_energy(pair, 1e-3)) == pytest.approx(500.0)
