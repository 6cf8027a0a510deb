"""A local step of MAN on FedDyn's CIFAR network against the authors' code."""

import numpy as np
import tensorflow as tf

from tests.golden import replay
from tff_reg import models
from tff_reg import regularizers
from tff_reg.client import client_work
from tff_reg.client import local_step
from tff_reg.client import optimizers
from tff_reg.models import forward

# The first linear layer reads 5x5 positions of 64 channels, which PyTorch flattens
# channels first.
_FLATTENED = (64, 5, 5)


def _from_torch(array, name):
    if name == "fc1.weight":
        array = array.reshape(-1, *_FLATTENED).transpose(2, 3, 1, 0)
        return array.reshape(-1, array.shape[-1])
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _to_torch(array, name):
    array = np.asarray(array)
    if name == "fc1.weight":
        array = array.reshape(*_FLATTENED[1:], _FLATTENED[0], -1)
        return array.transpose(3, 2, 0, 1).reshape(array.shape[-1], -1)
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


@replay.parametrize("H_*")
def test_man_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    model = models.build_model_fn(
        "feddyn_cnn",
        image_shape=(32, 32, 3),
        num_classes=config["num_classes"],
        dtype=dtype,
    )()
    variables = model.trainable_variables
    names = [str(n) for n in case.plain("param_names")]
    weights = case.weights(config["weights_phase"])
    for variable, torch_name in zip(variables, names):
        variable.assign(_from_torch(weights[torch_name], torch_name).astype(dtype))

    def check(key, tensors, **kwargs):
        tensors = [_to_torch(t, n) for t, n in zip(tensors, names)]
        case.check_summary(key, tensors, **kwargs)

    batch = case.batch(0)
    term = regularizers.MAN(strength=config["zeta_or_mu_mean"])
    paper = regularizers.MAN(strength=config["zeta_or_mu_mean"], scaling="paper")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(variables)
        outputs = model.network(
            batch["x"],
            forward.ForwardPass(training=True, record_activations=True),
        )
        ce = model.loss_fn(batch["y"], outputs.logits)
        step = regularizers.Step(
            model.network, outputs, None, None, ce, variables, [], None, None
        )
        value, printed = term(step), paper(step)
    case.check("logits", outputs.logits)
    case.check("loss_ce", ce)
    for i, activation in enumerate(outputs.activations):
        axes = list(range(1, activation.shape.rank))
        per_example = tf.reduce_mean(tf.square(activation), axes)
        case.check(f"act_per_example_{i}", per_example)
    case.check(
        "act_terms", [np.mean(np.square(a)) for a in outputs.activations], rtol32=1e-4
    )
    case.check("act_sum", value.raw)
    case.check("loss_total_code", ce + value.weighted)
    case.check("loss_total_paper_eq15", ce + printed.weighted)
    zero = tf.UnconnectedGradients.ZERO

    def gradient(target):
        return tape.gradient(target, variables, unconnected_gradients=zero)

    plain = gradient(ce)
    for key, tensors in {
        "grad_ce": plain,
        "grad_act_weighted": gradient(value.weighted),
        "grad_act_sum": gradient(value.raw),
        "grad_total_paper_eq15": [
            c + a for c, a in zip(plain, gradient(printed.weighted))
        ],
    }.items():
        if f"{key}.norm" in case:
            check(key, tensors)

    computed, _, _ = local_step.LocalStep(model, {}, [term]).gradient(
        batch, (), None
    )
    check("grad_total_preclip", computed)
    clipped, norm = client_work.clip_by_global_norm(computed, config["clip_norm"])
    case.check("clip_total_norm", norm, rtol64=1e-8, rtol32=1e-3)
    check("grad_postclip", clipped)
    optimizer = optimizers.build_sgd(
        config["lr"], config["momentum"], weight_decay=config["weight_decay"]
    )
    before = [v.numpy() for v in variables]
    specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
    _, after = optimizer.next(
        optimizer.initialize(specs), tuple(variables), tuple(clipped)
    )
    check("param_after", after)
    torch_before = [_to_torch(b, n) for b, n in zip(before, names)]
    check("delta", [a - b for a, b in zip(after, before)], weights=torch_before)
    case.check_all_read()
