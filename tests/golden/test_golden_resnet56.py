"""Local steps of FedAvg, FedProx and FedAlign on ResNet-56 against the authors' code."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import replay
from tff_reg import regularizers
from tff_reg.client import client_work
from tff_reg.client import local_step
from tff_reg.client import optimizers
from tff_reg.models import forward
from tff_reg.regularizers import fedalign


class Trainer:
    """Steps of the product's own local training on a case's model."""

    def __init__(self, case: replay.Case, regularizer=None):
        self.case = case
        self.replayed = replay.Replayed(case, "resnet56", "batch")
        self.regularizer = regularizer
        config = case.config
        self.optimizer = optimizers.build_sgd(
            config["lr"],
            config["momentum"],
            nesterov=config["nesterov"],
            weight_decay=config["weight_decay"],
        )
        self.reset_optimizer()

    @property
    def variables(self):
        return list(self.replayed.model.trainable_variables)

    def reset_optimizer(self):
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self.variables)
        self.state = self.optimizer.initialize(specs)

    def gradient(self, batch, global_weights=None, regularizer=None):
        """The gradient by the product's local step, and what it measured.

        Statistics of norms are as after one forward pass.
        """
        terms = [] if regularizer is None else [regularizer]
        step = local_step.LocalStep(self.replayed.model, {}, terms)
        gradients, _, measurements = step.gradient(batch, global_weights or (), None)
        return gradients, measurements

    def without_statistics(self, function, *args, **kwargs):
        """Calls a function and undoes its updates of running statistics."""
        variables = self.replayed.model.non_trainable_variables
        before = [v.numpy() for v in variables]
        result = function(*args, **kwargs)
        for variable, value in zip(variables, before):
            variable.assign(value)
        return result

    def forward(self, batch):
            return self.replayed.model.network(
            batch["x"], forward.ForwardPass(training=True, update_statistics=False)
        )

    def clip(self, gradients, max_norm):
        if max_norm is None:
            return gradients
        return client_work.clip_by_global_norm(gradients, max_norm)[0]

    def apply(self, gradients):
        """A step of the optimiser; returns the update in the file's order."""
        before = self.replayed.weights_in_torch_order()
        self.state, weights = self.optimizer.next(
            self.state, tuple(self.variables), tuple(gradients)
        )
        for variable, value in zip(self.variables, weights):
            variable.assign(value)
        after = self.replayed.weights_in_torch_order()
        return before, [a - b for a, b in zip(after, before)]

    def check_summary(self, key, tensors, **kwargs):
        self.case.check_summary(
            key, self.replayed.in_torch_order(tensors), **kwargs
        )

    def check_step(self, prefix, gradients, step):
        """Applies a clipped gradient and compares the weights after it."""
        before, update = self.apply(gradients)
        self.case.check_summary(f"{prefix}.delta", update, step=step, weights=before)
        if f"{prefix}.param_after.norm" in self.case:
            after = self.replayed.weights_in_torch_order()
            self.case.check_summary(f"{prefix}.param_after", after, step=step)

    def check_statistics(self, prefix, step):
        for part in ("running_mean", "running_var"):
            if f"{prefix}.bn.{part}.norm" in self.case:
                values = self.replayed.statistics(part)
                self.case.check_summary(f"{prefix}.bn.{part}", values, step=step)


def _check_loss_and_logits(trainer, batch, prefix, step, loss="loss_ce"):
    outputs = trainer.forward(batch)
    ce = trainer.replayed.model.loss_fn(batch["y"], outputs.logits)
    trainer.case.check(f"{prefix}{loss}", ce, step=step)
    if f"{prefix}logits" in trainer.case:
        trainer.case.check(f"{prefix}logits", outputs.logits, step=step)
    return ce, outputs


@replay.parametrize("Z_*")
def test_fedavg_steps(name, dtype):
    case = replay.Case(name, dtype)
    trainer = Trainer(case)
    trainer.replayed.set_weights(case.weights(case.config["weights_phase"]))
    for step in range(1, case.config["steps"] + 1):
        batch = case.batch(step - 1)
        _check_loss_and_logits(trainer, batch, f"step{step}.", step)
        gradients, _ = trainer.gradient(batch)
        trainer.check_summary(f"step{step}.grad", gradients, step=step)
        gradients = trainer.clip(gradients, case.config["clip_norm"])
        trainer.check_step(f"step{step}", gradients, step)
        trainer.check_statistics(f"step{step}", step)
    if "eval_after.logits" in case:
        batch = case.batch(0)
        logits = trainer.replayed.model.predict_on_batch(batch["x"], training=False)
        case.check("eval_after.logits", logits, step=step + 1)
    case.check_all_read()


@replay.parametrize("C_*")
def test_fedprox_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    strength = config["mu"]
    term = regularizers.FedProx(strength=strength)
    trainer = Trainer(case)
    trainer.replayed.set_weights(case.weights(config["global_phase"]))
    global_weights = [tf.constant(v.numpy()) for v in trainer.variables]
    match = re.fullmatch(
        r"value\(p=(-?[\d.]+)\)\+0.01\*wave\(q=(-?[\d.]+)\)", config["local"]
    )
    trainer.replayed.set_weights(case.weights(float(match[1]), float(match[2])))
    batch = case.batch(0)
    ce, _ = _check_loss_and_logits(trainer, batch, "", 1)

    plain, _ = trainer.without_statistics(trainer.gradient, batch)
    trainer.check_summary("grad_ce", plain)
    gradients, measurements = trainer.gradient(batch, global_weights, term)
    trainer.check_summary("grad_total", gradients)
    trainer.check_summary("grad_prox", [g - p for g, p in zip(gradients, plain)])
    # Measurements are float32 in every model.
    case.check("sq_distance", measurements["fedprox/term"], rtol64=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(trainer.variables)
        value = term(_bare_step(trainer, global_weights))
    case.check("sq_distance", value.raw)
    case.check("loss_prox", value.weighted)
    case.check("loss_total", ce + value.weighted)
    expected = tape.gradient(value.weighted, trainer.variables)
    trainer.check_summary("grad_prox", expected)
    trainer.check_step("step1", trainer.clip(gradients, config["clip_norm"]), 1)
    case.check_all_read()


def _bare_step(trainer, global_weights=(), batch=None, outputs=None, task_loss=None):
    return regularizers.Step(
        network=trainer.replayed.model.network,
        outputs=outputs,
        features=None if batch is None else batch["x"],
        labels=None if batch is None else batch["y"],
        task_loss=task_loss,
        weights=trainer.variables,
        global_weights=global_weights,
    )


def _alignment(config, **changes):
    options = dict(strength=config["mu"], width=config["width"])
    return regularizers.FedAlign(**dict(options, **changes))


@replay.parametrize("A_*")
def test_fedalign_steps(name, dtype):
    case = replay.Case(name, dtype)
    if "shapes" in case.config:
        _check_spectral_norms(case)
        return
    config = case.config
    trainer = Trainer(case)
    initial = case.weights(config["weights_phase"])
    trainer.replayed.set_weights(initial)
    for step in range(1, config["steps"] + 1):
        _check_fedalign_step(trainer, f"step{step}", case.batch(step - 1), step)

    batch = case.batch(0)
    variants = {
        "eq5": dict(lipschitz_scaling="absolute"),
        "eq5_nodetach": dict(lipschitz_scaling="absolute", stop_gradients=False),
    }
    for prefix, changes in variants.items():
        if case.has_prefix(f"{prefix}."):
            trainer.replayed.set_weights(initial)
            _check_equation_5(trainer, prefix, batch, _alignment(config, **changes))
    # Prefixes like mu20: one step with another strength.
    for prefix in case.prefixes(r"mu[\d.]*\d"):
        trainer.replayed.set_weights(initial)
        trainer.replayed.reset_statistics()
        trainer.reset_optimizer()
        strength = float(re.fullmatch(r"mu([\d.]+)", prefix)[1])
        term = _alignment(config, strength=strength)
        gradients, _ = trainer.gradient(batch, regularizer=term)
        _check_clipping(trainer, prefix, gradients, 1)
    case.check_all_read()


def _check_clipping(trainer, prefix, gradients, step):
    case, max_norm = trainer.case, trainer.case.config["clip_norm"]
    trainer.check_summary(f"{prefix}.grad_total_preclip", gradients, step=step)
    clipped, norm = client_work.clip_by_global_norm(gradients, max_norm)
    rtols = dict(rtol64=1e-8, rtol32=5e-3)
    case.check(f"{prefix}.clip_total_norm", norm, step=step, **rtols)
    trainer.check_summary(f"{prefix}.grad_postclip", clipped, step=step)
    trainer.check_step(prefix, clipped, step)


def _check_fedalign_step(trainer, prefix, batch, step):
    case, config = trainer.case, trainer.case.config
    term = _alignment(config)
    ce, outputs = _check_loss_and_logits(trainer, batch, f"{prefix}.", step)
    previous, full = outputs.block_outputs[-3:-1]
    width, iterations = config["width"], term.power_iterations
    sub_input = previous[..., : int(previous.shape[-1] * width)]
    sub = trainer.replayed.model.network.run_block(
        -2, sub_input, forward.ForwardPass(True, width, update_statistics=False)
    )
    for key, value in (("prev", previous), ("full_out", full), ("sub_out", sub)):
        case.check_summary(
            f"{prefix}.feat_{key}", [np.transpose(value, (0, 3, 1, 2))], step=step
        )
    shape = case.result(f"{prefix}.feat_sub_shape")
    assert list(shape) == [sub.shape[i] for i in (0, 3, 1, 2)]
    for key, pair in (("K_S", (sub_input, sub)), ("K_F", (previous, full))):
        matrix = fedalign.transmitting_matrix(*pair)
        case.check(f"{prefix}.{key}", fedalign.spectral_norm(matrix, iterations), step=step)
        exact = np.linalg.svd(matrix.numpy(), compute_uv=False)[:, 0]
        case.check(f"{prefix}.{key}_svd", exact, step=step)

    plain, _ = trainer.without_statistics(trainer.gradient, batch)
    trainer.check_summary(f"{prefix}.grad_ce", plain, step=step)
    with tf.GradientTape() as tape:
        tape.watch(trainer.variables)
        value = term(
            _bare_step(trainer, batch=batch, outputs=outputs, task_loss=ce)
        )
    case.check(f"{prefix}.lip_raw", value.raw, step=step, rtol64=1e-8)
    case.check(f"{prefix}.loss_lip_scaled", value.weighted, step=step)
    lipschitz = tape.gradient(
        value.weighted,
        trainer.variables,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    trainer.check_summary(f"{prefix}.grad_lip_scaled", lipschitz, step=step)
    gradients, _ = trainer.gradient(batch, regularizer=term)
    _check_clipping(trainer, prefix, gradients, step)
    trainer.check_statistics(prefix, step)


def _check_equation_5(trainer, prefix, batch, term):
    case = trainer.case
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(trainer.variables)
        outputs = trainer.replayed.model.network(
            batch["x"], forward.ForwardPass(training=True, update_statistics=False)
        )
        ce = trainer.replayed.model.loss_fn(batch["y"], outputs.logits)
        value = term(_bare_step(trainer, batch=batch, outputs=outputs, task_loss=ce))
        total = ce + value.weighted
    case.check(f"{prefix}.loss_ce", ce)
    case.check(f"{prefix}.lip_raw", value.raw)
    case.check(f"{prefix}.loss_total", total)
    raw = tape.gradient(
        value.raw,
        trainer.variables,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    if f"{prefix}.grad_lip_raw.norm" in case:
        trainer.check_summary(f"{prefix}.grad_lip_raw", raw)
    gradients, _ = trainer.without_statistics(
        trainer.gradient, batch, regularizer=term
    )
    trainer.check_summary(f"{prefix}.grad_total", gradients)
    clipped, norm = client_work.clip_by_global_norm(
        gradients, case.config["clip_norm"]
    )
    case.check(f"{prefix}.clip_total_norm", norm, rtol64=1e-8, rtol32=5e-3)
    trainer.check_summary(f"{prefix}.grad_postclip", clipped)


def _check_spectral_norms(case):
    def image(key):
        value = case.plain(key).astype(case.dtype)
        return tf.constant(value.transpose(0, 2, 3, 1))

    features = [image("feature_prev"), image("feature_out")]
    names = ("feature_prev", "feature_out")
    matrix = fedalign.transmitting_matrix(*features)
    case.check("transmitting_matrix", matrix, rtol64=1e-10)
    case.check("singular_values", np.linalg.svd(matrix.numpy(), compute_uv=False))
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

    for iterations in (1, 3, 10, 100):
        def total(iterations=iterations):
            norms = fedalign.spectral_norm(
                fedalign.transmitting_matrix(*features), iterations
            )
            return norms, tf.reduce_sum(norms)

        norms, _ = check_gradients(total, f"iter{iterations}.grad")
        case.check(f"spectral_norm_after_{iterations}_iterations", norms)

    target = tf.constant(case.result("mse_target").astype(case.dtype))

    def squared_error():
        norms = fedalign.spectral_norm(
            fedalign.transmitting_matrix(*features), case.config["power_iterations"]
        )
        return norms, tf.reduce_mean(tf.math.squared_difference(norms, target))

    _, error = check_gradients(squared_error, "mse_grad")
    case.check("mse", error, rtol32=1e-4)
    case.check_all_read()


def test_the_copied_cases_are_complete():
    if replay.FOLDER != replay.pathlib.Path(replay.__file__).parent / "cases":
        pytest.skip("TFF_REG_GOLDEN names another folder")
    letters = {path.name[0] for path in replay.FOLDER.glob("*.npz")}
    assert letters == set("ABCDEFGHIJKLZ")
