"""Local steps of FedMLB on ResNet-18 with GroupNorm against the authors' code."""

import re

import numpy as np
import tensorflow as tf

from tests.golden import replay
from tff_reg import regularizers
from tff_reg.client import client_work
from tff_reg.client import local_step
from tff_reg.client import optimizers
from tff_reg.models import forward
from tff_reg.regularizers import distillation

# Gradients of this network are closer in float32 than ResNet-56's, so the tolerances of
# the latter hold too.
TRAIN = forward.ForwardPass(training=True, update_statistics=False)


@replay.parametrize("G_*")
def test_fedmlb_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    local = replay.Replayed(case, "resnet18", "group")
    received = replay.Replayed(case, "resnet18", "group")
    received.set_weights(case.weights(config["global_phase"]))
    phases = re.fullmatch(
        r"value\(p=(-?[\d.]+)\)\+0.01\*wave\(q=(-?[\d.]+)\)", config["local"]
    )
    weights = case.weights(float(phases[1]), float(phases[2]))
    local.set_weights(weights)
    batch, variables = case.batch(0), local.model.trainable_variables
    num_paths = config["num_branch"]
    assert num_paths == len(local.model.network.blocks) - 1

    def check(key, tensors, **kwargs):
        case.check_summary(key, local.in_torch_order(tensors), **kwargs)

    # The parts, each with its own gradient.
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(variables)
        outputs = local.model.network(batch["x"], TRAIN)
        ce = local.model.loss_fn(batch["y"], outputs.logits)
        paths = [
            received.model.network.run_from(
                m, outputs.block_outputs[m - 1], TRAIN
            ).logits
            for m in range(1, num_paths + 1)
        ]
        path_ce = [local.model.loss_fn(batch["y"], logits) for logits in paths]
        path_kl = [
            distillation.divergence(logits, outputs.logits, config["temp"])
            for logits in paths
        ]
        mean_ce, mean_kl = tf.add_n(path_ce) / num_paths, tf.add_n(path_kl) / num_paths
    case.check("loss_ce_main", ce)
    case.check("logits_main", outputs.logits)
    case.check("logits_branch", tf.stack(paths))
    case.check("loss_ce_branch", tf.stack(path_ce))
    case.check("loss_kl_branch", tf.stack(path_kl), rtol32=1e-4)
    features = [np.transpose(f, (0, 3, 1, 2)) for f in outputs.block_outputs[:-1]]
    features[-1] = outputs.embedding.numpy()
    case.check_summary("features", features)
    zero = tf.UnconnectedGradients.ZERO
    for key, value in (
        ("grad_ce_main", ce),
        ("grad_ce_branches_mean", mean_ce),
        ("grad_kl_branches_mean", mean_kl),
    ):
        check(key, tape.gradient(value, variables, unconnected_gradients=zero))

    # The product's own step.
    assert config["lambda1"] == 1.0
    term = regularizers.FedMLB(
        cross_entropy=config["lambda2"],
        distillation=config["lambda3"],
        temperature=config["temp"],
    )
    step = local_step.LocalStep(local.model, {"global": received.model}, [term])
    gradients, _, measured = step.gradient(batch, (), None)
    total = float(ce) + measured["fedmlb/term"].numpy()
    case.check("loss_total", total, rtol64=1e-6)  # Measurements are float32.
    case.check("returned_mean_loss", total, rtol64=1e-6)
    check("grad_total_preclip", gradients)
    _check_clipped_step(case, local, "", gradients, config["clip_norm"], weights)
    if case.has_prefix("tightclip."):
        check("tightclip.grad_total_preclip", gradients)
        tight = config["tight_clip_norm"]
        _check_clipped_step(case, local, "tightclip.", gradients, tight, weights)
    case.check_all_read()


def _check_clipped_step(case, local, prefix, gradients, max_norm, weights):
    config = case.config
    clipped, norm = client_work.clip_by_global_norm(gradients, max_norm)
    case.check(f"{prefix}clip_total_norm", norm, rtol64=1e-8, rtol32=5e-3)
    case.check_summary(f"{prefix}grad_postclip", local.in_torch_order(clipped))
    optimizer = optimizers.build_sgd(
        config["lr"], config["momentum"], weight_decay=config["weight_decay"]
    )
    local.set_weights(weights)
    variables = tuple(local.model.trainable_variables)
    before = local.weights_in_torch_order()
    specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
    _, after = optimizer.next(
        optimizer.initialize(specs), variables, tuple(clipped)
    )
    after = local.in_torch_order(after)
    update = [a - b for a, b in zip(after, before)]
    case.check_summary(f"{prefix}delta", update, weights=before)
    if f"{prefix}param_after.norm" in case:
        case.check_summary(f"{prefix}param_after", after)
