"""A local step of MAN on its authors' networks against their code."""

import dataclasses

import tensorflow as tf

from tests.golden import replay, trainer as trainer_lib
from tff_reg import methods
from tff_reg.models import forward, pooling


def _mean_squares(activations, variant):
    """Each term's parts, whose mean it is: the mean squares of every example."""
    squares = [
        tf.reduce_mean(tf.square(a), axis=range(1, a.shape.rank)) for a in activations
    ]
    if "sam" in variant:
        pooled = pooling.max_pool(activations[2], size=2, stride=2)
        squares[2] = tf.reduce_mean(tf.square(pooled), axis=[1, 2, 3])
    elif variant == "code":
        last = activations[-1]
        bessel = last.shape[0] / (last.shape[0] - 1)
        variances = bessel * tf.math.reduce_variance(last, axis=0)
        squares = [*squares[:2], *squares[3:], variances]
    return squares


@replay.parametrize("H_*")
def test_man_step(name, dtype):
    _check_step(replay.Case(name, dtype))


def _check_step(case):
    config = case.config
    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    batch = case.batch(0)
    variant = "paper"
    if "convnet" in config["model"].lower():
        variant = config["variant"]
    term = methods.MAN(strength=config["zeta_or_mu_mean"], terms=variant)
    paper = dataclasses.replace(term, scaling="paper")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(trainer.variables)
        outputs = trainer.replayed.model.network(
            batch["x"], forward.ForwardPass(training=True, record_activations=True)
        )
        ce = trainer.replayed.model.loss_fn(batch["y"], outputs.logits)
        step = trainer_lib.bare_step(trainer, outputs=outputs, task_loss=ce)
        value, printed = term.term(step), paper.term(step)
    case.check("logits", outputs.logits)
    case.check("loss_ce", ce)
    parts = _mean_squares(outputs.activations, variant)
    for i, part in enumerate(parts):
        case.check(f"act_per_example_{i}", part)
    case.check("act_terms", [tf.reduce_mean(part) for part in parts], rtol32=1e-4)
    case.check("act_sum", value.raw)
    case.check("loss_total_code", ce + value.weighted)
    case.check("loss_total_paper_eq15", ce + printed.weighted)

    plain = trainer.gradient_of(ce, tape)
    added = trainer.gradient_of(printed.weighted, tape)
    for key, tensors in {
        "grad_ce": plain,
        "grad_act_weighted": trainer.gradient_of(value.weighted, tape),
        "grad_act_sum": trainer.gradient_of(value.raw, tape),
        "grad_total_paper_eq15": [c + a for c, a in zip(plain, added)],
    }.items():
        trainer.check_summary(key, tensors)

    gradients, _ = trainer.gradient(batch, term)
    trainer.check_clipped_step("", gradients, config["clip_norm"], rtol32=1e-3)
    case.check_all_read()
