"""Local steps of GradAug, MOON, Mixup and stochastic depth against the authors' code.

What the cases fix instead of drawing (widths, resolutions, coefficient, permutation,
kept branches) is fixed here by small sub-classes; all else is the product's.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.golden import replay, replayed, trainer as trainer_lib
from tff_reg import methods, models
from tff_reg.methods import gradaug, method, mixup
from tff_reg.models import forward


def _nchw(images) -> list:
    """One tensor, in PyTorch's layout."""
    return [np.transpose(images, (0, 3, 1, 2))]


def _fixed_gradaug(draws, strength):
    class FixedGradAug(methods.GradAug):
        def draw(self, image_shape, key):
            return draws

    return FixedGradAug(strength=strength)


@replay.parametrize("B_*", has_model=True, slow="float64")
def test_gradaug_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    draws = [
        (width, size, size)
        for width, size in zip(config["widths"], config["resolutions"])
    ]
    for width, counts in config["channels_at_width"].items():
        for channels, count in counts.items():
            assert forward.channels_at_width(int(channels), float(width)) == count

    term = _fixed_gradaug(draws, config["mult"])
    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    batch = case.batch(0)
    ce, outputs = trainer_lib.check_loss_and_logits(trainer, batch)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(trainer.variables)
        again = trainer.forward(batch)
        parts = [trainer.replayed.model.loss_fn(batch["y"], again.logits)]
        for i, (width, height, image_width) in enumerate(draws, start=1):
            resized = models.resize_bilinear(batch["x"], height, image_width)
            case.check_summary(f"resized{i}", _nchw(resized))
            step = trainer_lib.bare_step(trainer, batch=batch, outputs=outputs)
            logits = gradaug.subnetwork_logits(step, width, height, image_width)
            case.check(f"log_softmax{i}", tf.nn.log_softmax(logits))
            part = _fixed_gradaug([draws[i - 1]], config["mult"]).term(step)
            case.check(f"loss_kd{i}_raw", part.raw, rtol32=1e-4)
            case.check(f"loss_kd{i}_weighted", part.weighted, rtol32=1e-4)
            parts.append(part.weighted)
    case.check("total_loss", tf.add_n(parts))
    running = [tf.zeros_like(v) for v in trainer.variables]
    for i, part in enumerate(parts):
        added = trainer.gradient_of(part, tape)
        running = [r + a for r, a in zip(running, added)]
        key = {0: "grad_ce", len(draws): "grad_total"}.get(i, f"grad_ce_plus_kd{i}")
        trainer.check_summary(key, running)

    trainer.replayed.reset_statistics()
    gradients, measured = trainer.gradient(batch, term)
    total = float(ce) + config["mult"] * measured["gradaug/term"].numpy()
    case.check("total_loss", total, rtol64=1e-6)  # Measurements are float32.
    trainer.check_summary("grad_total", gradients)
    trainer.check_statistics("bn_after")
    gradients = trainer.check_clipping("step1.", gradients, config["clip_norm"])
    trainer.check_step("step1.", gradients)
    case.check_all_read()


def _check_projections(case, projections):
    """Checks the three projections and their cosines; returns the cosines."""
    units = {}
    for key, projection in projections.items():
        case.check_summary(f"proj_{key}", [projection])
        units[key] = tf.math.l2_normalize(projection, axis=-1)
    cosines = {
        key: tf.reduce_sum(units["local"] * units[key], axis=-1)
        for key in ("global", "prev")
    }
    for key, cosine in cosines.items():
        case.check(f"cos_{key}", cosine)
    logits = tf.stack(list(cosines.values()), axis=1) / case.config["temperature"]
    case.check("con_logits", logits)
    return cosines


@replay.parametrize("D_*", slow="float64")
def test_moon_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    trainer = trainer_lib.Trainer(case)
    batch = case.batch(0)
    references = {}
    for kind, key in (("global", "global"), ("previous", "prev")):
        other = replayed.Replayed(case)
        other.set_weights(case.weights(config[f"phase_{key}"]))
        references[kind] = other.model
    constant = {
        kind: model.network(batch["x"], forward.ForwardPass(training=True)).embedding
        for kind, model in references.items()
    }
    trainer.replayed.set_weights(case.weights(config["phase_local"]))
    ce, outputs = trainer_lib.check_loss_and_logits(trainer, batch)
    cosines = _check_projections(
        case,
        {
            "global": constant["global"],
            "prev": constant["previous"],
            "local": outputs.embedding,
        },
    )

    term = methods.MOON(strength=config["mu"], temperature=config["temperature"])
    with tf.GradientTape() as tape:
        tape.watch(trainer.variables)
        step = trainer_lib.bare_step(trainer, outputs=trainer.forward(batch))
        step = dataclasses.replace(
            step,
            outputs_of=lambda kind: models.Outputs([], constant[kind], None, ()),
        )
        value = term.term(step)
    case.check("loss_con_raw", value.raw)
    case.check("loss_con_weighted", value.weighted)
    case.check("loss_total", ce + value.weighted)
    trainer.check_summary("grad_con", trainer.gradient_of(value.weighted, tape))

    plain, _ = trainer.without_statistics(trainer.gradient, batch)
    trainer.check_summary("grad_ce", plain)
    gradients, measured = trainer.gradient(batch, term, references=references)
    case.check("loss_con_raw", measured["moon/term"], rtol64=1e-6)
    for key, kind in (("global", "global"), ("prev", "previous")):
        mean = tf.reduce_mean(cosines[key])
        np.testing.assert_allclose(measured[f"moon/{kind}_cosine"], mean, rtol=1e-5)
    trainer.check_summary("grad_total", gradients)
    trainer.check_statistics("bn_after")
    gradients = trainer.check_clipping("step1.", gradients, config["clip_norm"])
    trainer.check_step("step1.", gradients)
    case.check_all_read()


@replay.parametrize("E_*", slow="float32")
def test_mixup_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config

    class FixedMixup(methods.Mixup):
        def change_batch(self, batch, key):
            coefficient = tf.constant(config["lam"], tf.float64)
            count = len(batch.features)  # The trial round has two examples.
            permutation = tf.constant(config["perm"][:count]) % count
            mixed = mixup.mix(batch, coefficient, permutation)
            return method.Change(mixed, {"coefficient": coefficient})

    trainer = trainer_lib.Trainer(case)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    batch = case.batch(0)
    mixed, measured, _ = FixedMixup().change_batch(
        method.Batch(batch["x"], [(batch["y"], 1.0)]), None
    )
    case.check_summary("mixed_x", _nchw(mixed.features))
    outputs = trainer.forward(dict(x=mixed.features))
    case.check("logits", outputs.logits)
    total = 0.0
    for key, (labels, weight) in zip("ab", mixed.targets):
        case.check(f"targets_{key}", labels)
        loss = trainer.replayed.model.loss_fn(labels, outputs.logits)
        case.check(f"loss_{key}", loss)
        total += weight * loss
    case.check("lam", measured["coefficient"])
    case.check("loss_total", total)

    gradients, measured = trainer.gradient(batch, FixedMixup())
    case.check("lam", measured["mixup/coefficient"], rtol64=1e-6)
    trainer.check_summary("grad_total", gradients)
    trainer.check_statistics("bn_after")
    gradients = trainer.check_clipping("step1.", gradients, config["clip_norm"])
    trainer.check_step("step1.", gradients)
    case.check_all_read()


class _FixedStochDepth(methods.StochDepth):
    """Keeps the branches of `_kept`."""

    _kept = ()

    def change_pass(self, forward, network, key):
        scales = tf.constant(self._kept, network.dtype)
        changed = dataclasses.replace(forward, branch_scales=scales)
        return method.Change(changed, {"kept_branches": 1.0})


def _keeping(kept, last):
    own = type("Keeping", (_FixedStochDepth,), {"_kept": kept})
    return own(survival_probability=last)


def _check_unused(case, trainer, gradients):
    """Compares the step with that of a PyTorch which passes unused parameters by."""
    # The authors' PyTorch leaves zeros in the gradients of branches that did not run,
    # which decay like all others; so does ours.
    before, update = trainer.apply(gradients)
    case.check_summary("zero_grad_not_none.delta", update, weights=before)
    # A newer PyTorch passes them by.
    unused = case.plain("param_unused_in_this_step").astype(bool)
    update = [np.zeros_like(u) if skip else u for skip, u in zip(unused, update)]
    case.check_summary("step1.delta", update, weights=before)
    after = [b + u for b, u in zip(before, update)]
    case.check_summary("step1.param_after", after)
    names = [str(n) for n in case.plain("param_names")]
    trainer.replayed.set_weights(dict(zip(names, after)))


@replay.parametrize("F_*", slow="float32")
def test_stochdepth_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    first, last = config["stoch_depth"]
    assert first == 1.0
    term = methods.StochDepth(survival_probability=last)
    paper = dataclasses.replace(term, schedule="paper")
    count = len(config["keep_mask"])
    for key, chosen in (("survival_prob", term), ("paper_survival_prob", paper)):
        if key in case:
            np.testing.assert_allclose(
                chosen.probabilities(count), case.plain(key), rtol=1e-12
            )

    fixed = _keeping(config["keep_mask"], last)
    trainer = trainer_lib.Trainer(case)
    network = trainer.replayed.model.network
    assert network.num_branches == count
    fixed.adapt_network(network)
    trainer.replayed.set_weights(case.weights(config["weights_phase"]))
    batch = case.batch(0)

    def check_evaluation(prefix, step):
        logits = trainer.replayed.model.predict_on_batch(batch["x"], training=False)
        case.check(f"{prefix}.logits", logits, step=step)
        loss = trainer.replayed.model.loss_fn(batch["y"], logits)
        case.check(f"{prefix}.loss", loss, step=step)

    def run(term):
        settings, *_ = term.change_pass(
            forward.ForwardPass(training=True), network, None
        )
        logits = network(batch["x"], settings).logits
        return logits, trainer.replayed.model.loss_fn(batch["y"], logits)

    check_evaluation("eval_fresh", 1)
    logits, loss = run(_keeping([1] * count, last))
    case.check("train_allkept.logits", logits)
    case.check("train_allkept.loss", loss)
    logits, loss = run(fixed)
    case.check("train.logits", logits)
    case.check("train.loss_ce", loss)
    gradients, _ = trainer.gradient(batch, fixed)
    trainer.check_summary("train.grad_total", gradients)
    trainer.check_statistics("train.bn_after")

    _check_unused(case, trainer, gradients)
    check_evaluation("eval_after_step", 2)
    case.check_all_read()
