"""UniVarFL's terms against a direct evaluation of the paper's equations."""

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import replay
from tff_reg import methods, models
from tff_reg.methods import univarfl
from tff_reg.models import learning_model

# What the terms do not show, and notes on the file's own making.
_INTERNAL = (
    r"(population|sample)\.(c|class_variance|hinge_active)",
    r"eps.*\.(grad_wrt_z_free|exact_diagonal_term)",
    r"eps.*\.(autograd_deviation|float32_diagonal_terms)",
)


def _term(case, **settings):
    """Eq. 4 from the recorded logits and features, with gradients for both."""
    logits = tf.constant(case.floats("logits"))
    features = tf.constant(case.floats("features_unnormalised"))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([logits, features])
        outputs = models.Outputs([features, logits], features, logits, ())
        labels = tf.constant(case.plain("labels").astype(np.int32))
        ce = learning_model.sparse_cross_entropy(labels, logits)
        step = methods.Step(None, outputs, labels=labels, task_loss=ce)
        term = methods.UniVarFL(**settings).term(step)
    return ce, term, tape, logits, features


@replay.parametrize("L_*")
def test_univarfl_terms(name, dtype):
    _check_terms(replay.Case(name, dtype))


def _check_terms(case):
    config = case.config
    # lambda is a number, or D over one.
    classes = case.plain("logits").shape[-1]
    d, _, divisor = str(config["lam"]).partition("/")
    strength = classes / float(divisor) if d == "D" else float(d)

    def check(key, value, scale=1.0):
        case.check(key, value, rtol64=1e-10 * scale, rtol32=1e-5 * scale)

    logits = tf.constant(case.floats("logits"))
    check("probs", tf.nn.softmax(logits))
    units = tf.math.l2_normalize(case.floats("features_unnormalised"), axis=-1)
    check("features_normalised", units)
    check("cosine_matrix", tf.matmul(units, units, transpose_b=True))
    for kind in ("population", "sample"):
        probabilities = tf.constant(case.floats("probs"))
        with tf.GradientTape() as tape:
            tape.watch(probabilities)
            missing = univarfl.missing_variance(probabilities, kind == "sample")
        check(f"{kind}.L_V", missing)
        check(f"{kind}.grad_L_V_wrt_probs", tape.gradient(missing, probabilities))
    for epsilon in config["eps"]:
        # Rounding of 1 - cosine is divided by its square: features that are nearly
        # parallel lose digits in float32.
        scale = 1.0 if case.dtype == "float64" else 10.0
        for diagonal in ("with_diagonal", "without_diagonal"):
            for kind in ("population", "sample"):
                ce, term, tape, logits, features = _term(
                    case,
                    energy=config["mu"],
                    variance_per_class=strength / classes,
                    epsilon=epsilon,
                    variance_kind=kind,
                    include_diagonal=diagonal == "with_diagonal",
                )
                check("loss_ce", ce)
                check("grad_ce_wrt_logits", tape.gradient(ce, logits))
                prefix = f"eps{_shortest(epsilon)}.{diagonal}"
                check(f"{prefix}.L_HE", term.measurements["energy"], scale)
                check(f"{kind}.L_V", term.measurements["missing_variance"])
                check(f"{prefix}.{kind}.total_eq4", ce + term.weighted, scale)
                energy = tape.gradient(term.weighted, features) / config["mu"]
                key = f"{prefix}.grad_wrt_unnormalised_features"
                check(key, energy, 10 * scale)
                variance = tape.gradient(term.weighted, logits) / strength
                check(f"{kind}.grad_L_V_wrt_logits", variance)
    case.check_all_read(*_INTERNAL)


def _shortest(number):
    return f"{number:g}"


def test_the_diagonal_is_a_constant_of_the_report():
    features = tf.constant(np.random.default_rng(0).normal(size=(3, 4)))
    alone = univarfl.hyperspherical_energy(features[:1], 1e-3)
    assert alone == 0.0
    pair = tf.stack([features[0], features[0]])
    assert float(univarfl.hyperspherical_energy(pair, 1e-3)) == pytest.approx(500.0)
