"""Steps of FedAvg, FedProx and FedAlign on ResNet-56 against the authors' code."""

import re

import numpy as np
import tensorflow as tf

from tests.golden import replay, trainer as trainer_lib
from tff_reg import methods
from tff_reg.methods import fedalign
from tff_reg.models import forward


@replay.parametrize("Z_*", slow="float64")
def test_fedavg_steps(name, dtype):
    _check_fedavg_steps(replay.Case(name, dtype))


def _check_fedavg_steps(case):
    config = case.config
    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    for step in range(1, config["steps"] + 1):
        batch = case.batch(step - 1)
        trainer_lib.check_loss_and_logits(trainer, batch, f"step{step}.", step)
        gradients, _ = trainer.gradient(batch)
        trainer.check_summary(f"step{step}.grad", gradients, step=step)
        gradients = trainer.check_clipping(
            f"step{step}.", gradients, config["clip_norm"], step
        )
        trainer.check_step(f"step{step}.", gradients, step)
        trainer.check_statistics(f"step{step}.bn", step)
    logits = trainer.replayed.model.predict_on_batch(case.batch(0)["x"], training=False)
    case.check("eval_after.logits", logits, step=step + 1)
    case.check_all_read()


@replay.parametrize("C_*", slow="float32")
def test_fedprox_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    strength = config["mu"]
    term = methods.FedProx(strength=strength)
    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["global_phase"]))
    global_weights = [tf.constant(v.numpy()) for v in trainer.variables]
    trainer.replayed.set_weights(case.local_weights())
    batch = case.batch(0)
    ce, _ = trainer_lib.check_loss_and_logits(trainer, batch)

    plain, _ = trainer.without_statistics(trainer.gradient, batch)
    trainer.check_summary("grad_ce", plain)
    gradients, measurements = trainer.gradient(batch, term, start=global_weights)
    trainer.check_summary("grad_total", gradients)
    trainer.check_summary("grad_prox", [g - p for g, p in zip(gradients, plain)])
    # Measurements are float32 in every model.
    case.check("sq_distance", measurements["fedprox/term"], rtol64=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(trainer.variables)
        value = term.term(trainer_lib.bare_step(trainer, global_weights))
    case.check("sq_distance", value.raw)
    case.check("loss_prox", value.weighted)
    case.check("loss_total", ce + value.weighted)
    expected = tape.gradient(value.weighted, trainer.variables)
    trainer.check_summary("grad_prox", expected)
    gradients = trainer.check_clipping("step1.", gradients, config["clip_norm"])
    trainer.check_step("step1.", gradients)
    case.check_all_read()


def _alignment(config, **changes):
    options = dict(strength=config["mu"], width=config["width"])
    return methods.FedAlign(**dict(options, **changes))


@replay.parametrize("A_*", has_model=True, slow="float64")
def test_fedalign_steps(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    # A step is compared every day; all of them, in float64, are slow.
    steps = config["steps"] if dtype == "float64" else 1
    for step in range(1, steps + 1):
        _check_fedalign_step(trainer, f"step{step}", case.batch(step - 1), step)

    # The others are the next test's.
    left = [r"step[2-9].*"] * (dtype == "float32")
    case.check_all_read(r"eq5.*", r"mu\d.*", *left)


# Six seconds: a deep network's gradients, for every strength and scaling.
@replay.parametrize("A_*", has_model=True, slow="float32")
def test_fedalign_steps_from_the_start(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    trainer = trainer_lib.Trainer(case)
    initial = case.weights(config["weights_phase"])
    batch = case.batch(0)
    variants = {
        "eq5": dict(lipschitz_scaling="absolute"),
        "eq5_nodetach": dict(lipschitz_scaling="absolute", stop_gradients=False),
    }
    for prefix, changes in variants.items():
        if case.keys(f"{prefix}."):
            trainer.replayed.set_weights(initial)
            _check_equation_5(trainer, prefix, batch, _alignment(config, **changes))
    # Prefixes like mu20: one step with another strength.
    for prefix in case.prefixes(r"mu[\d.]*\d"):
        trainer.replayed.set_weights(initial)
        trainer.replayed.reset_statistics()
        trainer.reset_optimizer()
        strength = float(re.fullmatch(r"mu([\d.]+)", prefix)[1])
        term = _alignment(config, strength=strength)
        gradients, _ = trainer.gradient(batch, term)
        trainer.check_clipped_step(f"{prefix}.", gradients, config["clip_norm"])
    case.check_all_read(r"step\d+\..*")


def _check_fedalign_step(trainer, prefix, batch, step):
    case, config = trainer.case, trainer.case.config
    term = _alignment(config)
    ce, outputs = trainer_lib.check_loss_and_logits(trainer, batch, f"{prefix}.", step)
    previous, full = outputs.block_outputs[-3:-1]
    width, iterations = config["width"], term.power_iterations
    sub_input = previous[..., : int(previous.shape[-1] * width)]
    sub = trainer.replayed.model.network.run_block(
        -2, sub_input, forward.ForwardPass(True, width)
    )
    for key, value in (("prev", previous), ("full_out", full), ("sub_out", sub)):
        case.check_summary(
            f"{prefix}.feat_{key}", [np.transpose(value, (0, 3, 1, 2))], step=step
        )
    case.check(f"{prefix}.feat_sub_shape", [sub.shape[i] for i in (0, 3, 1, 2)])
    for key, pair in (("K_S", (sub_input, sub)), ("K_F", (previous, full))):
        matrix = fedalign.transmitting_matrix(*pair)
        by_iteration = fedalign.spectral_norm(matrix, iterations)
        case.check(f"{prefix}.{key}", by_iteration, step=step)
        exact = np.linalg.svd(matrix.numpy(), compute_uv=False)[:, 0]
        case.check(f"{prefix}.{key}_svd", exact, step=step)

    plain, _ = trainer.without_statistics(trainer.gradient, batch)
    trainer.check_summary(f"{prefix}.grad_ce", plain, step=step)
    with tf.GradientTape() as tape:
        tape.watch(trainer.variables)
        value = term.term(
            trainer_lib.bare_step(trainer, batch=batch, outputs=outputs, task_loss=ce)
        )
    case.check(f"{prefix}.lip_raw", value.raw, step=step, rtol64=1e-8)
    case.check(f"{prefix}.loss_lip_scaled", value.weighted, step=step)
    lipschitz = trainer.gradient_of(value.weighted, tape)
    trainer.check_summary(f"{prefix}.grad_lip_scaled", lipschitz, step=step)
    gradients, _ = trainer.gradient(batch, term)
    trainer.check_clipped_step(f"{prefix}.", gradients, config["clip_norm"], step)
    trainer.check_statistics(f"{prefix}.bn", step)


def _check_equation_5(trainer, prefix, batch, term):
    case = trainer.case
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(trainer.variables)
        outputs = trainer.replayed.model.network(
            batch["x"], forward.ForwardPass(training=True)
        )
        ce = trainer.replayed.model.loss_fn(batch["y"], outputs.logits)
        value = term.term(
            trainer_lib.bare_step(trainer, batch=batch, outputs=outputs, task_loss=ce)
        )
        total = ce + value.weighted
    case.check(f"{prefix}.loss_ce", ce)
    case.check(f"{prefix}.lip_raw", value.raw)
    case.check(f"{prefix}.loss_total", total)
    if f"{prefix}.grad_lip_raw.norm" in case:
        raw = trainer.gradient_of(value.raw, tape)
        trainer.check_summary(f"{prefix}.grad_lip_raw", raw)
    gradients, _ = trainer.without_statistics(trainer.gradient, batch, term)
    trainer.check_summary(f"{prefix}.grad_total", gradients)
    trainer.check_clipping(f"{prefix}.", gradients, case.config["clip_norm"])


@replay.parametrize("A_*", has_model=False)
def test_spectral_norms(name, dtype):
    case = replay.Case(name, dtype)

    def image(key):
        return tf.constant(case.floats(key).transpose(0, 2, 3, 1))

    features = [image("feature_prev"), image("feature_out")]
    names = ("feature_prev", "feature_out")
    matrix = fedalign.transmitting_matrix(*features)
    case.check("transmitting_matrix", matrix, rtol64=1e-10)
    case.check("singular_values", np.linalg.svd(matrix.numpy(), compute_uv=False))
    if "returned_shape" in case:
        assert case.result("returned_shape")[0] == len(matrix)

    def check_gradients(value_fn, prefix):
        with tf.GradientTape() as tape:
            tape.watch(features)
            norms, value = value_fn()
        for feature_name, gradient in zip(names, tape.gradient(value, features)):
            case.check(
                f"{prefix}_wrt_{feature_name}",
                np.transpose(gradient, (0, 3, 1, 2)),
                rtol64=1e-9,
                rtol32=1e-4,
            )
        return norms, value

    for key in case.keys():  # noqa: SIM118 (a method of ours)
        match = re.fullmatch(r"spectral_norm_after_(\d+)_iterations", key)
        if not match:
            continue
        iterations = int(match[1])

        def total(iterations=iterations):
            norms = fedalign.spectral_norm(
                fedalign.transmitting_matrix(*features), iterations
            )
            return norms, tf.reduce_sum(norms)

        norms, _ = check_gradients(total, f"iter{iterations}.grad")
        case.check(key, norms)

    target = case.result("mse_target").astype(case.dtype)

    def squared_error():
        norms = fedalign.spectral_norm(
            fedalign.transmitting_matrix(*features), case.config["power_iterations"]
        )
        return norms, tf.reduce_mean(tf.math.squared_difference(norms, target))

    _, error = check_gradients(squared_error, "mse_grad")
    case.check("mse", error, rtol32=1e-4)
    case.check_all_read()
