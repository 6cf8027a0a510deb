"""Whole rounds and single steps of the later methods against the authors' code.

The J files of FedCM, MoFedSAM, FedLESAM, FedACG, FedSOL and FedNova, whose settings and
keys are others than those of `test_golden_rounds`.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import (
    clients as clients_lib,
    later,
    mlp,
    replay,
    rounds as rounds_lib,
)
from tff_reg import methods, training as training_lib
from tff_reg.methods import method

pytestmark = pytest.mark.usefixtures("in_process")

# By the names of the algorithms.
_METHODS = {
    "FedCM": lambda config: methods.FedCM(share=config["alpha"]),
    "MoFedSAM": lambda config: methods.MoFedSAM(
        share=config["alpha"], radius=config["rho"]
    ),
    "FedLESAM": lambda config: methods.FedLESAM(
        radius=config["rho"],
        direction="server" if config["update_cut_into_shapes"] else "published",
    ),
    "FedLESAM (formula only)": lambda config: methods.FedLESAM(radius=config["rho"]),
    "FedACG": lambda config: methods.FedACG(
        strength=config["prox_weight"], momentum=config["server_momentum"]
    ),
    "FedSOL": lambda config: methods.FedSOL(
        radius=config["rho"],
        perturbation=config["perturbation"],
        temperature=float(config["temperature"]),
        part={(1, 1): "all", (1, 0): "head", (0, 1): "body"}[
            config["perturb_head"], config["perturb_body"]
        ],
    ),
    "FedNova": lambda config: methods.FedNova(
        proximal=config["mu"], server_momentum=config["gmf"]
    ),
}
_BY_EXAMPLES = ("FedSOL", "FedNova")
# TFF's own server momentum, which takes float32 alone.
_NOT_OURS = ("FedAvgM",)


@dataclasses.dataclass(frozen=True)
class _DecayingData(training_lib.WholeClientData):
    """FedACG's authors multiply the learning rate after each epoch, too."""

    decay: float = 1.0

    def run(self, step_fn, state, element):
        epoch = training_lib.WholeClientData(
            batch_size=self.batch_size, shuffle=self.shuffle
        )
        for _ in range(self.local_epochs):
            state = epoch.run(step_fn, state, element)
            optimizer = dict(state.optimizer)
            rate = optimizer["learning_rate"]
            optimizer["learning_rate"] = rate * tf.constant(self.decay, rate.dtype)
            state = state._replace(optimizer=type(state.optimizer)(optimizer))
        return state


def _decays_in_epochs(config):
    return config.get("lr_also_decays_per_local_epoch", False)


def _training(config, own):
    terms = []
    if config.get("mu_mean"):
        terms = [methods.MAN(strength=config["mu_mean"])]
    data = dict(
        batch_size=config["batch"], local_epochs=config["epochs"], shuffle=False
    )
    form = training_lib.WholeClientData(**data)
    if _decays_in_epochs(config):
        form = _DecayingData(**data, decay=config["lr_decay_per_round"])
    # Everyone's K is that of the first client in FedCM's code.
    steps = config.get("local_iteration")
    return rounds_lib.training(config, [*terms, own], config["sizes"], form, steps)


def _weighting(config):
    is_weighted = config["algorithm"] in _BY_EXAMPLES
    return rounds_lib.NUM_EXAMPLES if is_weighted else rounds_lib.UNIFORM


def _variants(name):
    """The variants of a file whose algorithms are known here."""
    config = replay.Case(name, "float64").config
    return [key for key in config if config[key]["algorithm"] in _METHODS]


@pytest.mark.golden
@pytest.mark.parametrize("name", later.NAMES)
def test_every_algorithm_is_known(name):
    config = replay.Case(name, "float64").config
    algorithms = {own["algorithm"] for own in config.values()}
    unknown = algorithms.difference(_METHODS, _NOT_OURS)
    if unknown:
        replay.not_compared(name, sorted(unknown))


@replay.parametrize_variants(
    {name: _variants(name) for name in later.NAMES},
    default="clip|momentum|paper|fixed",
)
def test_rounds(name, variant, dtype):
    _check_variant(replay.Case(name, dtype), variant)


def _check_variant(case, variant):
    config = case.config[variant]
    own = _METHODS[config["algorithm"]](config)
    training = _training(config, own)
    # Where no published code is.
    key = f"formula.{variant}" if "formula" in config["algorithm"] else variant
    starts = None
    if f"{key}.round1.server_params" in case:
        starts = _check_rounds(case, key, config, training)
    _check_steps(case, key, config, training, starts)
    case.check_all_read("client_sizes", *_of_others(case, variant))


def _of_others(case, variant):
    """Patterns of the keys of the file's other variants."""
    names = [name for name in case.config if name != variant]
    return [rf"(formula\.)?{name}\..*" for name in names]


def _check(case, value, expected, err_msg):
    """The tolerances of the files: of the largest entry in float32."""
    rtol, atol = 1e-10, 1e-10
    if case.dtype == "float32":
        rtol = 1e-3 if "fedsol" in case.name else 1e-4
        atol = rtol * np.abs(expected).max()
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol, err_msg=err_msg)


def _check_rounds(case, key, config, training):
    """Compares all that a round leaves behind; returns each round's `Start`."""
    starts = []
    updates = np.zeros([len(config["sizes"]), len(case.plain("initial_params"))])

    for number, cohort, start, after, state in rounds_lib.run(
        case, config["sizes"], config, training, _weighting(config)
    ):
        if config["algorithm"] == "FedACG":
            own = clients_lib.own_names(start.memory)
            momentum = mlp.flatten(own["momentum"])
            start.sent = start.sent + config["server_momentum"] * momentum
        starts.append(start)
        for one in cohort:
            updates[one] = mlp.flatten(after.clients[one][method.PREVIOUS]) - start.sent
        computed = _computed(config, cohort, start, after, updates, state)
        check = functools.partial(_check, case)
        rounds_lib.check_all(case, f"{key}.round{number}.", computed, check)
    return starts


def _computed(config, cohort, start, after, updates, state):
    """What the files have of a round, by its name there."""
    memory = clients_lib.own_names(after.memory)
    before = clients_lib.own_names(start.memory)
    models = np.stack([mlp.flatten(own[method.PREVIOUS]) for own in after.clients])
    result = {
        "selected": cohort,
        "params_sent": start.sent,
        "clnt_params_list": models,
        "server_params": after.sent,
        "cum_grad": start.sent - models[cohort],
    }
    if config["algorithm"] in ("FedCM", "MoFedSAM"):
        result["delta_sent"] = mlp.flatten(before["direction"])
        result["clnt_updates_list"] = updates
    if "update" in memory:
        result["global_update_sent"] = mlp.flatten(before["update"])
    if "momentum" in memory:
        result["momentum"] = mlp.flatten(memory["momentum"])
        # Theirs is subtracted.
        result["global_momentum"] = -result["momentum"]
    if config["algorithm"] == "FedNova":
        sizes = np.array(config["sizes"])[cohort]
        steps = config["epochs"] * -(-sizes // config["batch"])
        rounds = state.client_work["round_num"] - 1
        rate = config["lr"] * config["lr_decay_per_round"] ** rounds
        result["ratio"] = sizes / sizes.sum()
        result["local_steps"] = steps
        result["a_i"] = [_length(config, count, rate) for count in steps]
    return result


def _length(config, steps, rate):
    """How far FedNova says that so many steps go together."""
    own = _METHODS["FedNova"](config)
    hparams = {"learning_rate": tf.constant(rate, tf.float64)}
    if config["momentum"]:
        hparams["momentum"] = tf.constant(config["momentum"], tf.float64)
    start = [tf.zeros([], tf.float64)]
    local = method.Local(
        start, start, {}, {}, hparams=hparams, num_steps=steps, num_examples=steps
    )
    local = dataclasses.replace(local, state=own.begin(local))
    for _ in range(steps):
        local = dataclasses.replace(local, state=own.keep(local, start))
    return 1 / own.finish(local).scale.numpy()


def _recording(own, seen):
    """The same method, which leaves in `seen` where it took the gradient."""

    class Recording(type(own)):
        def gradient(self, local, gradient_at):
            def recorded(perturbation=None, loss=None):
                if perturbation is not None:
                    seen[:] = [mlp.flatten(perturbation)]
                return gradient_at(perturbation, loss)

            return super().gradient(local, recorded)

    return Recording(**dataclasses.asdict(own))


def _check_steps(case, key, config, training, starts):
    """Every recorded step, each from the recorded weights before it."""
    seen = [np.zeros(1)]
    parts = [
        _recording(m, seen) if method.overrides(m, "gradient") else m
        for m in training.methods
    ]
    client = clients_lib.Client(
        config["mlp"],
        case.dtype,
        dataclasses.replace(training, methods=parts),
        _weighting(config),
    )

    def trace(name):
        return case.result(f"{key}.trace.{name}")

    after, gradients = trace("params_after_each_step"), trace("grad_seen_by_optimizer")
    perturbed = None
    if f"{key}.trace.perturbed_params" in case:
        perturbed = trace("perturbed_params")
    visits, decay, previous = _visits(config), config["lr_decay_per_round"], None
    assert len(visits) == len(after)
    for what, values in zip(("round", "client"), np.transpose(visits)):
        if f"{key}.trace.{what}" in case:
            np.testing.assert_array_equal(trace(what), values)
    for i, (round_num, number) in enumerate(visits):
        x, y = rounds_lib.examples(case, config["sizes"], number)
        begins = range(0, len(y), config["batch"])
        if (round_num, number) != previous:
            position = 0
            start = _start_of(case, starts, round_num)
            weights = _first_weights(case, config, start)
            previous = (round_num, number)
        epoch, batch = divmod(position, len(begins))
        factor = decay ** (round_num - 1 + (epoch if _decays_in_epochs(config) else 0))
        if position == 0 or (_decays_in_epochs(config) and batch == 0):
            client.begin(
                start.sent,
                rounds_lib.data_set(case, config["sizes"], number),
                rate_factor=tf.constant(factor, tf.float64),
                client=start.clients[number] if start.clients else {},
                server=start.memory,
            )
        rows = slice(begins[batch], begins[batch] + config["batch"])
        step = client.step(weights, x[rows], y[rows])
        _check(case, step.clipped, gradients[i], "gradient")
        _check(case, step.weights, after[i], "weights")
        if f"{key}.trace.lr" in case:
            assert config["lr"] * factor == pytest.approx(trace("lr")[i])
            expected = trace("weight_decay_in_optimizer")[i]
            assert config["weight_decay"] == pytest.approx(expected)
        if perturbed is not None:
            # How far it is moved is a matter of the radius.
            atol = (1e-9 if case.dtype == "float64" else 1e-3) * config["rho"]
            np.testing.assert_allclose(weights + seen[0], perturbed[i], atol=atol)
        if position == 0 and f"{key}.round{round_num}.perturbation" in case:
            expected = case.result(f"{key}.round{round_num}.perturbation")[number]
            _check(case, seen[0], expected, "perturbation")
        weights, position = after[i], position + 1


def _visits(config):
    """The round, from 1, and the client of every step."""
    cohorts = config["cohorts"]
    if "client" in config:
        cohorts = [[config["client"]]]
    return [
        (round_num, one)
        for round_num, cohort in enumerate(cohorts, start=1)
        for one in cohort
        for _ in range(config["epochs"] * -(-config["sizes"][one] // config["batch"]))
    ]


def _start_of(case, starts, round_num):
    if starts is not None:
        return starts[round_num - 1]
    return rounds_lib.Start(case.plain("initial_params"), [], {})


def _first_weights(case, config, start):
    """What a client begins with: what it received, but where a file says more."""
    elsewhere = config.get("local_start")
    return start.sent if elsewhere is None else case.plain(elsewhere)
