"""Whole federated rounds against the authors' code: FedAvg and all drift corrections.

Every J file in the folder is replayed, here or in `test_golden_later_rounds`. For the
algorithms without one there, `numpy_rounds` makes one from the formulae; it is itself
held against the files.
"""

import collections
import functools

import numpy as np
import pytest

from tests.golden import (
    clients as clients_lib,
    later,
    mlp,
    numpy_rounds,
    replay,
    rounds as rounds_lib,
)
from tff_reg import methods, training as training_lib
from tff_reg.methods import all_clients, method

pytestmark = pytest.mark.usefixtures("in_process")


def _methods(config):
    """Makes the methods by the names of the algorithms that are known here."""
    strength = config["alpha_coef"]
    return {
        "fedavg": list,
        "fedprox": lambda: [methods.FedProx(strength=config["mu"])],
        "feddyn": lambda: [methods.FedDyn(strength=strength)],
        "feddc": lambda: [methods.FedDC(strength=strength)],
        "fedspeed": lambda: [
            methods.FedSpeed(
                strength=strength,
                radius=config["rho"],
                ascent=config.get("ascent", "code"),
            )
        ],
        "scaffold": lambda: [methods.SCAFFOLD()],
    }


def _algorithm(config):
    return config["algorithm"].lower()


def _corrects_drift(config):
    return _algorithm(config) not in ("fedavg", "fedprox")


def _training(case, config):
    sizes = case.plain("client_sizes")
    parts = _methods(config)[_algorithm(config)]()
    if config["with_man"]:
        parts.append(methods.MAN(strength=config["mu_mean"]))
    mean_steps = config.get("n_minibatch")
    if mean_steps is None:
        mean_steps = config["epochs"] * -(-sizes.mean() // config["batch"])
    takes_mean_steps = any(
        part.required_settings.get("same_local_steps") for part in parts
    )
    form = training_lib.WholeClientData(
        batch_size=config["batch"],
        local_epochs=config["epochs"],
        local_steps=int(mean_steps) if takes_mean_steps else None,
        shuffle=False,
    )
    return rounds_lib.training(config, parts, sizes, form, mean_steps)


def _weighting(config):
    return rounds_lib.UNIFORM if _corrects_drift(config) else rounds_lib.NUM_EXAMPLES


def _variants(case):
    """The configurations by their names, of the algorithms that are known here."""
    return {
        name: config
        for name, config in case.config.items()
        if isinstance(config, dict)
        and config.get("algorithm", "").lower()
        in _methods(collections.defaultdict(float))
    }


_NAMES = [name for name in replay.names("J_*") if name not in later.NAMES]


@replay.parametrize_variants(
    {name: [*_variants(replay.Case(name, "float64"))] for name in _NAMES},
    default="clip",
)
def test_rounds(name, variant, dtype):
    _check_variant(replay.Case(name, dtype), variant)


@pytest.mark.golden
@pytest.mark.parametrize("name", _NAMES)
def test_the_replay_in_numpy_is_the_authors(name):
    case = replay.Case(name, "float64")
    known = _variants(case)
    for variant, config in known.items():
        initial, x, y = (case.plain(key) for key in ("initial_params", "x", "y"))
        run = numpy_rounds.Run(config, x.astype(float), y.astype(int), initial)
        for key, value in run.arrays.items():
            full_key = f"{variant}.{key}"
            if full_key in case:
                expected = case.result(full_key)
                np.testing.assert_allclose(value, expected, rtol=0, atol=1e-14)
        assert f"{variant}.trace.params_after_each_step" in case
    # What is left of them is a matter of the other test.
    case.check_all_read("client_sizes", *replay.others(None, known))


# As in the files, but for what each algorithm needs of its own.
_BASE = dict(
    sizes=[10, 7, 13, 5],
    cohorts=[[0, 1], [1, 2, 3], [0, 3]],
    lr=0.1,
    lr_decay_per_round=0.9,
    batch=4,
    epochs=2,
    weight_decay=1e-3,
    alpha_coef=0.1,
    rho=0.05,
    mu=None,
    n_minibatch=6,
    mlp=[6, 5, 3],
)
_VARIANTS = dict(
    base=dict(with_man=False, mu_mean=0.0, clip_norm=10.0),
    clip=dict(with_man=False, mu_mean=0.0, clip_norm=1.0),
    man=dict(with_man=True, mu_mean=0.15, clip_norm=1.0),
)


_MADE = {
    "feddc": dict(algorithm="FedDC"),
    "fedspeed": dict(algorithm="FedSpeed"),
    "fedspeed_clean": dict(algorithm="FedSpeed", ascent="clean", rho=0.5),
    "scaffold": dict(algorithm="SCAFFOLD"),
}


@replay.parametrize_variants({name: [*_VARIANTS] for name in _MADE}, default="man")
def test_rounds_without_a_file(tmp_path, name, variant, dtype):
    rng = np.random.default_rng(7)
    configs = {variant: {**_BASE, **_VARIANTS[variant], **_MADE[name]}}
    examples = sum(_BASE["sizes"])
    numpy_rounds.write_case(
        tmp_path / "J_made.npz",
        configs,
        rng.normal(size=(examples, 6)).astype(np.float32).astype(float),
        rng.integers(0, 3, examples),
        rng.normal(0, 0.5, 53).astype(np.float32).astype(float),
    )
    case = replay.Case("J_made", dtype, tmp_path)
    _check_variant(case, variant)
    if _VARIANTS[variant]["clip_norm"] == 1.0:
        gradients = case.result(f"{variant}.trace.grad_seen_by_optimizer")
        norms = np.linalg.norm(gradients, axis=1)
        assert 0.5 < np.mean(norms > 0.9999) < 1.0


def _check_variant(case, variant):
    config = case.config[variant]
    training = _training(case, config)
    starts = _check_rounds(case, variant, config, training)
    _check_steps(case, variant, config, training, starts)
    case.check_all_read(*replay.others(variant, case.config))


def _check_rounds(case, variant, config, training):
    """Compares all that a round leaves behind; returns each round's `Start`."""
    sizes, starts = case.plain("client_sizes"), []
    for number, cohort, start, after, _ in rounds_lib.run(
        case, sizes, config, training, _weighting(config)
    ):
        starts.append(start)
        computed = _computed(case, config, cohort, starts[0], after)
        check = functools.partial(
            np.testing.assert_allclose, **_tolerance(case, number)
        )
        rounds_lib.check_all(case, f"{variant}.round{number}.", computed, check)
    return starts


def _computed(case, config, cohort, first, after):
    """What the files have of a round, by its name there."""
    sizes = case.plain("client_sizes")

    def of_clients(name):
        states = map(clients_lib.own_names, after.clients)
        return np.stack([mlp.flatten(state[name]) for state in states])

    memory = clients_lib.own_names(after.memory)
    average = cloud = after.sent
    all_model = mlp.flatten(after.memory[all_clients.MEAN])
    result = {
        "clnt_params_list": of_clients(method.PREVIOUS),
        "selected": cohort,
        "weight_list": sizes / sizes.mean(),
        "cld_mdl_param": cloud,
        "model.cld_model": cloud,
        "model.all_model": all_model,
    }
    algorithm = _algorithm(config)
    if not _corrects_drift(config):
        result["weight_list"] = sizes.reshape(-1, 1)
    if "h" in memory:
        mean_drift = mlp.flatten(memory["h"])
        average = cloud - mean_drift
        drifts = of_clients("h")
        np.testing.assert_allclose(
            mean_drift, drifts.mean(axis=0), **_tolerance(case, len(config["cohorts"]))
        )
        for name in ("local_param_list", "parameter_drifts", "hist_params_diffs"):
            result[name] = drifts
    if "s" in memory:
        states = np.vstack([of_clients("s"), mlp.flatten(memory["s"])])
        result["state_param_list"] = result["state_gadient_diffs"] = states
    for name in ("avg_mdl_param", "avg_model_params", "model.avg_model"):
        result[name] = average
    if algorithm == "fedspeed":
        # The authors call the cloud 'all_model' here, and never set 'avg_model'.
        result["all_model_param"] = result["model.all_model"] = cloud
        result["model.server_model"] = all_model
        result["model.avg_model"] = first.sent
    return result


def _tolerance(case, round_num):
    rtol = 1e-10 if case.dtype == "float64" else 1e-5 * round_num
    return dict(rtol=rtol, atol=rtol)


def _check_steps(case, variant, config, training, starts):
    """Every recorded step, each from the recorded weights before it."""
    sizes = case.plain("client_sizes")
    client = clients_lib.Client(config["mlp"], case.dtype, training, _weighting(config))

    def trace(name):
        return case.result(f"{variant}.trace.{name}")

    def check(value, expected):
        np.testing.assert_allclose(value, expected, **_tolerance(case, 1))

    after, gradients = trace("params_after_each_step"), trace("grad_seen_by_optimizer")
    rates, decays = trace("lr"), trace("weight_decay_in_optimizer")
    rounds = case.plain(f"{variant}.trace.round")
    previous = None
    for i, (round_num, number) in enumerate(
        zip(rounds, case.plain(f"{variant}.trace.client"))
    ):
        start = starts[round_num - rounds.min()]
        factor = training.learning_rate_schedule(round_num - rounds.min())
        if (round_num, number) != previous:
            position, weights = 0, start.sent
            previous = (round_num, number)
            client.begin(
                start.sent,
                rounds_lib.data_set(case, sizes, number),
                rate_factor=factor,
                client=start.clients[number],
                server=start.memory,
            )
        x, y = rounds_lib.examples(case, sizes, number)
        batches_per_epoch = -(-len(y) // config["batch"])
        begin = position % batches_per_epoch * config["batch"]
        rows = slice(begin, begin + config["batch"])
        step = client.step(weights, x[rows], y[rows])
        check(step.clipped, gradients[i])
        added = step.corrected - step.clipped
        strength = np.dot(added, weights) / np.dot(weights, weights)
        check(config["weight_decay"] + strength, decays[i])
        check(config["lr"] * float(factor), rates[i])
        check(step.weights, after[i])
        weights, position = after[i], position + 1
