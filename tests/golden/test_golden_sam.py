"""Steps and local training of SAM and ASAM against the authors' code."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import local_steps
from tests.golden import clients, mlp, replay
from tests.methods import one_weight
from tff_reg import methods, training as training_lib
from tff_reg.methods import method
from tff_reg.models import forward
from tff_reg.training import local_training

TOLERANCE = dict(rtol64=1e-10, rtol32=1e-5)
UNIFORM = tff.learning.ClientWeighting.UNIFORM
pytestmark = pytest.mark.usefixtures("in_process")


def _rule(name, settings):
    if name == "sam":
        return methods.FedSAM(radius=settings["rho_sam"])
    return methods.FedASAM(radius=settings["rho_asam"], offset=settings["eta_asam"])


def _examples(case, prefix=""):
    return case.floats(f"{prefix}x"), case.plain(f"{prefix}y").astype(np.int32)


def _assign(model, case, flat):
    values = mlp.unflatten(flat, case.config["mlp"], case.dtype)
    for variable, value in zip(model.trainable_variables, values):
        variable.assign(value)


def _stepped(case, variables, gradient):
    optimizer = case.optimizer()
    specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
    state = optimizer.initialize(specs)
    return optimizer.next(state, tuple(variables), tuple(gradient))[1]


@replay.parametrize("I_*")
def test_one_step(name, dtype):
    case = replay.Case(name, dtype)
    config = case.config
    x, y = (tf.constant(part) for part in _examples(case))
    for rule_name in ("sam", "asam"):
        rule = _rule(rule_name, config)
        model = mlp.model_fn(config["mlp"], dtype)()
        variables = model.trainable_variables
        _assign(model, case, case.plain("initial_params"))

        def check(key, value, rule_name=rule_name):
            case.check(f"{rule_name}.{key}", value, **TOLERANCE)

        def check_loss(key, model=model, check=check):
            outputs = model.network(x, forward.ForwardPass(training=True))
            check(key, model.loss_fn(y, outputs.logits))
            return outputs.logits

        check("logits_at_w", check_loss("loss_at_w"))
        batch = dict(x=x, y=y)
        plain, _, _ = local_steps.gradient(model, [], batch)
        check("grad_at_w", mlp.flatten(plain))
        local = method.Local(variables, (), {}, {})
        ascent = one_weight.perturbation(rule, local, plain)
        check("eps", mlp.flatten(ascent))
        check("eps_norm", np.linalg.norm(mlp.flatten(ascent)))
        gradient, _, _ = local_steps.gradient(model, [rule], batch)
        check("grad_at_w_plus_eps", mlp.flatten(gradient))
        after = _stepped(case, variables, gradient)
        check("params_after_step", mlp.flatten(after))
        for variable, perturbation in zip(variables, ascent):
            variable.assign_add(perturbation)
        check("params_perturbed", mlp.flatten(variables))
        check_loss("loss_at_w_plus_eps")
    case.check_all_read(r"train_.*")


def _trainings(case):
    return case.prefixes(r"train_a?sam\.mu_mean[\d.]+\.max_norm[\d.]+")


@replay.parametrize_variants(
    {name: _trainings(replay.Case(name, "float64")) for name in replay.names("I_*")},
    default=r".*\.mu_mean0\.15\.max_norm0\.3",
)
def test_local_training(name, variant, dtype):
    case = replay.Case(name, dtype)
    rule_name, rest = variant[len("train_") :].split(".mu_mean")
    zeta, max_norm = (float(number) for number in rest.split(".max_norm"))
    terms = [methods.MAN(strength=zeta)] if zeta else []
    training = local_training.LocalTraining(
        optimizer=case.optimizer(),
        methods=[*terms, _rule(rule_name, case.config["train"])],
        max_gradient_norm=max_norm,
        data_form=training_lib.WholeClientData(
            batch_size=case.config["train"]["batch"],
            local_epochs=case.config["train"]["epochs"],
            shuffle=False,
        ),
    )
    expected = case.result(f"{variant}.params_after_each_step")
    _check_steps(case, training, expected)
    _check_client(case, training, expected)
    others = replay.others(variant, _trainings(case))
    case.check_all_read("[xy]", r"a?sam\..*", *others)


def _close(case, value, expected, steps):
    rtol = 1e-10 if case.dtype == "float64" else 1e-5 * steps
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=rtol)


def _check_steps(case, training, expected):
    """Every step from the recorded weights before it."""
    x, y = _examples(case, "train_")
    batch = case.config["train"]["batch"]
    begins = [*range(0, len(y), batch)] * case.config["train"]["epochs"]
    assert len(begins) == len(expected)
    client = clients.Client(case.config["mlp"], case.dtype, training, UNIFORM)
    weights = case.plain("initial_params")
    client.begin(weights, clients.data_set(x, y))
    for begin, after in zip(begins, expected):
        rows = slice(begin, begin + batch)
        _close(case, client.step(weights, x[rows], y[rows]).weights, after, 1)
        weights = after


def _check_client(case, training, expected):
    """All steps by a process with one client."""
    sizes = case.config["mlp"]
    process = clients.process(sizes, case.dtype, training, UNIFORM)
    initial = mlp.unflatten(case.plain("initial_params"), sizes, case.dtype)
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(initial, [])
    )
    data_set = clients.data_set(*_examples(case, "train_"))
    state = process.next(state, [data_set]).state
    weights = process.get_model_weights(state).trainable
    _close(case, mlp.flatten(weights), expected[-1], len(expected))
