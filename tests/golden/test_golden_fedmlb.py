"""Local steps of FedMLB on ResNet-18 with GroupNorm against the authors' code."""

import numpy as np
import tensorflow as tf

from tests.golden import replay, replayed, trainer as trainer_lib
from tff_reg import methods
from tff_reg.methods import distillation
from tff_reg.models import forward

# Gradients of this network are closer in float32 than ResNet-56's, so the tolerances of
# the latter hold too.
TRAIN = forward.ForwardPass(training=True)


def _check_parts(case, trainer, received, batch):
    """Checks the parts of the loss and their gradients; returns the first part."""
    local, config = trainer.replayed.model, case.config
    num_paths = config["num_branch"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(trainer.variables)
        outputs = local.network(batch["x"], TRAIN)
        ce = local.loss_fn(batch["y"], outputs.logits)
        paths = [
            received.run_from(m, outputs.block_outputs[m - 1], TRAIN).logits
            for m in range(1, num_paths + 1)
        ]
        path_ce = [local.loss_fn(batch["y"], logits) for logits in paths]
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
    shapes = [[*f.shape, *[0] * (4 - f.ndim)] for f in features]
    case.check("feature_shapes", shapes)
    for key, value in (
        ("grad_ce_main", ce),
        ("grad_ce_branches_mean", mean_ce),
        ("grad_kl_branches_mean", mean_kl),
    ):
        trainer.check_summary(key, trainer.gradient_of(value, tape))
    return ce


# Eight seconds: ResNet-18 at its width, with a received model behind every block.
@replay.parametrize("G_*", slow="float64")
def test_fedmlb_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    trainer = trainer_lib.Trainer(case)
    local, received = trainer.replayed, replayed.Replayed(case)
    received.set_weights(case.weights(config["global_phase"]))
    weights = case.local_weights()
    local.set_weights(weights)
    batch = case.batch(0)
    assert config["num_branch"] == len(local.model.network.blocks) - 1

    ce = _check_parts(case, trainer, received.model.network, batch)

    # The product has no factor on the first cross-entropy: it is one on all.
    factor = config["lambda1"]
    term = methods.FedMLB(
        cross_entropy=config["lambda2"] / factor,
        distillation=config["lambda3"] / factor,
        temperature=config["temp"],
    )
    gradients, measured = trainer.gradient(
        batch, term, references={"global": received.model}
    )
    gradients = [factor * gradient for gradient in gradients]
    total = factor * (float(ce) + measured["fedmlb/term"].numpy())
    case.check("loss_total", total, rtol64=1e-6)  # Measurements are float32.
    case.check("returned_mean_loss", total, rtol64=1e-6)
    clippings = {"": config["clip_norm"], "tightclip.": config.get("tight_clip_norm")}
    for prefix, max_norm in clippings.items():
        local.set_weights(weights)
        trainer.reset_optimizer()
        trainer.check_clipped_step(prefix, gradients, max_norm)
    case.check_all_read()
