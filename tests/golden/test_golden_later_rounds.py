"""Whole rounds and single steps of the later methods against the authors' code.

The J files whose settings and keys are others than those of `test_golden_rounds`;
`algorithms` has their methods.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import (
    algorithms,
    clients as clients_lib,
    later,
    mlp,
    replay,
    rounds as rounds_lib,
)
from tff_reg import training as training_lib
from tff_reg.methods import method

pytestmark = pytest.mark.usefixtures("in_process")

# TFF's own server momentum, which takes float32 alone.
_NOT_OURS = ("FedAvgM",)


def _training(config):
    form = training_lib.WholeClientData(
        batch_size=config["batch"], local_epochs=config["epochs"], shuffle=False
    )
    parts = algorithms.parts(config)
    if any(part.name == "fednar" for part in parts):
        config = {**config, "weight_decay": 0.0}
    # Everyone's K is that of the first client in FedCM's code.
    steps = config.get("local_iteration")
    return rounds_lib.training(config, parts, config["sizes"], form, steps)


def _weighting(config):
    is_weighted = algorithms.KNOWN[config["algorithm"]].by_examples
    return rounds_lib.NUM_EXAMPLES if is_weighted else rounds_lib.UNIFORM


def _variants(name):
    """The variants of a file whose algorithms are known here."""
    config = replay.Case(name, "float64").config
    return [key for key in config if config[key]["algorithm"] in algorithms.KNOWN]


@pytest.mark.golden
@pytest.mark.parametrize("name", later.NAMES)
def test_every_algorithm_is_known(name):
    config = replay.Case(name, "float64").config
    unknown = [
        f"{variant} ({own['algorithm']})"
        for variant, own in config.items()
        if own["algorithm"] not in (*algorithms.KNOWN, *_NOT_OURS)
    ]
    if unknown:
        replay.not_compared(name, unknown)


@replay.parametrize_variants(
    {name: _variants(name) for name in later.NAMES},
    default="clip|momentum|paper|fixed",
)
def test_rounds(name, variant, dtype):
    _check_variant(replay.Case(name, dtype), variant)


def _check_variant(case, variant):
    config = case.config[variant]
    training = _training(config)
    # Where no published code is.
    key = f"formula.{variant}" if "formula" in config["algorithm"] else variant
    starts = None
    if f"{key}.round1.server_params" in case:
        starts = _check_rounds(case, key, config, training)
    _check_steps(case, key, config, training, starts)
    # No update moves the first round's model by FedGloSS's rho.
    unseen = rf"{variant}\.round1\.rho_used"
    case.check_all_read("client_sizes", unseen, *_of_others(case, variant))


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

    run = config
    if config["algorithm"] == "FedACG":  # Whose momentum is the method's own.
        run = {**config, "server_momentum": 0.0}
    for number, cohort, start, after, state in rounds_lib.run(
        case, config["sizes"], run, training, _weighting(config)
    ):
        starts.append(start)
        for one in cohort:
            updates[one] = mlp.flatten(after.clients[one][method.PREVIOUS]) - start.sent
        computed = _computed(config, cohort, start, after, updates, state)
        check = functools.partial(_check, case)
        rounds_lib.check_all(case, f"{key}.round{number}.", computed, check)
    return starts


def _computed(config, cohort, start, after, updates, state):
    """What the files have of a round, by its name there."""
    models = np.stack([mlp.flatten(own[method.PREVIOUS]) for own in after.clients])
    result = {
        "selected": cohort,
        "params_sent": start.sent,
        "clnt_params_list": models,
        "clnt_updates_list": updates,
        "server_params_before": start.model,
        "server_params": after.model,
        "evaluated_params": after.evaluated,
        "cum_grad": start.sent - models[cohort],
    }
    places = {
        "server": after.memory,
        "server_sent": start.memory,
        "clients": after.clients,
        "clients_sent": start.clients,
    }
    for name, (where, own) in algorithms.KNOWN[config["algorithm"]].memories.items():
        if where.startswith("server"):
            result[name] = _flat(clients_lib.own_names(places[where])[own])
        else:
            every = map(clients_lib.own_names, places[where])
            result[name] = np.stack([_flat(memory[own]) for memory in every])
    if config["algorithm"] == "FedExP":
        sizes = np.array(config["sizes"])[cohort]
        mean = np.average(updates[cohort], axis=0, weights=sizes)
        result["server_rate"] = (after.model - start.model) @ mean / (mean @ mean)
    if "FedWMSAM" in config["algorithm"]:
        momentum, moved = result["momentum_sent"], updates[cohort]
        lengths = np.linalg.norm(momentum) * np.linalg.norm(moved, axis=1)
        cosines = moved @ momentum / np.where(lengths, lengths, 1)
        result["cosines_plus_one"] = np.where(lengths, 1 + cosines, 0)
    if displaced := np.linalg.norm(start.sent - start.model):
        result["rho_used"] = displaced
    if config["algorithm"] == "FedNova":
        # Theirs is subtracted.
        memory = clients_lib.own_names(after.memory)
        if "momentum" in memory:
            result["global_momentum"] = -mlp.flatten(memory["momentum"])
        sizes = np.array(config["sizes"])[cohort]
        steps = config["epochs"] * -(-sizes // config["batch"])
        rounds = state.client_work["round_num"] - 1
        rate = config["lr"] * config["lr_decay_per_round"] ** rounds
        result["ratio"] = sizes / sizes.sum()
        result["local_steps"] = steps
        result["a_i"] = [_length(config, count, rate) for count in steps]
    return result


def _flat(memory):
    return mlp.flatten(memory) if isinstance(memory, (list, tuple)) else memory


def _length(config, steps, rate):
    """How far FedNova says that so many steps go together."""
    own = algorithms.KNOWN["FedNova"].make(config)
    hparams = {"learning_rate": tf.constant(rate, tf.float64)}
    if config["momentum"]:
        hparams["momentum"] = tf.constant(config["momentum"], tf.float64)
    start = [tf.zeros([], tf.float64)]
    local = method.Local(
        start,
        start,
        {},
        {},
        hparams=hparams,
        num_steps=steps,
        weight=tf.ones([], tf.float64),
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
    algorithm, seen = algorithms.KNOWN[config["algorithm"]], [np.zeros(1)]
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
    visits, decay = _visits(config), config["lr_decay_per_round"]
    assert len(visits) == len(after)
    for what, values in zip(("round", "client"), np.transpose(visits)):
        if f"{key}.trace.{what}" in case:
            np.testing.assert_array_equal(trace(what), values)
    for i, (round_num, number) in enumerate(visits):
        x, y = rounds_lib.examples(case, config["sizes"], number)
        begins = range(0, len(y), config["batch"])
        of_round = f"{key}.round{round_num}."
        if i == 0 or (round_num, number) != visits[i - 1]:
            position, start = 0, _start_of(case, starts, round_num)
            weights = client.begin(
                start.sent,
                rounds_lib.data_set(case, config["sizes"], number),
                round_num=round_num,
                rate_factor=tf.constant(decay ** (round_num - 1), tf.float64),
                client=start.clients[number] if start.clients else {},
                server=start.memory,
            )
            if f"{of_round}start_params" in case:
                place = config["cohorts"][round_num - 1].index(number)
                expected = case.result(f"{of_round}start_params")[place]
                _check(case, weights, expected, "start")
            if "local_start" in config:
                weights = case.plain(config["local_start"])
        epoch, batch = divmod(position, len(begins))
        rows = slice(begins[batch], begins[batch] + config["batch"])
        step = client.step(weights, x[rows], y[rows])
        found = step.corrected if algorithm.sees_all else step.clipped
        _check(case, found, gradients[i], "gradient")
        _check(case, step.weights, after[i], "weights")
        if f"{key}.trace.lr" in case:
            factor = algorithm.rate(position, config["epochs"] * len(begins))
            factor *= algorithms.epoch_decay(config) ** epoch
            rate = config["lr"] * factor * decay ** (round_num - 1)
            assert rate == pytest.approx(trace("lr")[i])
            expected = trace("weight_decay_in_optimizer")[i]
            assert algorithm.decay(config) == pytest.approx(expected)
        if perturbed is not None:
            # How far it is moved is a matter of the radius.
            atol = (1e-9 if case.dtype == "float64" else 1e-3) * config["rho"]
            np.testing.assert_allclose(weights + seen[0], perturbed[i], atol=atol)
        if position == 0 and f"{of_round}perturbation" in case:
            expected = case.result(f"{of_round}perturbation")[number]
            _check(case, seen[0], expected, "perturbation")
        if f"{of_round}rho_l_used" in case:
            radius = case.result(f"{of_round}rho_l_used")
            _check(case, np.linalg.norm(seen[0]), radius, "radius")
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
    initial = case.plain("initial_params")
    return rounds_lib.Start(initial, initial, initial, [], {})
