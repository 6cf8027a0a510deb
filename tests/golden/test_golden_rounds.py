"""Whole federated rounds against the authors' code: FedAvg and all drift corrections.

Every J file in the folder is replayed. For the algorithms without one there,
`numpy_rounds` makes one from the formulae; it is itself held against the files.
"""

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import mlp, numpy_rounds, replay
from tff_reg import methods, runtime, training
from tff_reg.methods import method as method_lib
from tff_reg.training import local_round, local_step

PREVIOUS = method_lib.PREVIOUS


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


# All other algorithms that are known have one.
_WITHOUT_CORRECTION = ("fedavg", "fedprox")


def _algorithm(config):
    return config["algorithm"].lower()


def _terms(config):
    terms = []
    if _algorithm(config) == "fedprox":
        terms.append(methods.FedProx(strength=config["mu"]))
    if config["with_man"]:
        terms.append(methods.MAN(strength=config["mu_mean"]))
    return terms


def _corrections(config):
    """Makes the corrections by the names of the algorithms that have one."""
    strength = config["alpha_coef"]
    return {
        "feddyn": lambda: methods.FedDyn(strength=strength),
        "feddc": lambda: methods.FedDC(strength=strength),
        "fedspeed": lambda: methods.FedSpeed(
            strength=strength,
            radius=config["rho"],
            ascent=config.get("ascent", "code"),
        ),
        "scaffold": methods.Scaffold,
    }


def _training(case, config):
    sizes = case.plain("client_sizes")
    make_correction = _corrections(config).get(_algorithm(config))
    mean_steps = config["epochs"] * -(-sizes.mean() // config["batch"])
    # What the authors computed, where the file says it.
    assert config.get("n_minibatch") in (None, mean_steps)
    return client_work.LocalTraining(
        optimizer=training.build_sgd(config["lr"], weight_decay=config["weight_decay"]),
        regularizers=_terms(config),
        max_gradient_norm=config["clip_norm"],
        learning_rate_schedule=training.exponential(config["lr_decay_per_round"]),
        data_form=training.WholeClientData(
            batch_size=config["batch"],
            local_epochs=config["epochs"],
            local_steps=(
                int(mean_steps) if _algorithm(config) == "scaffold" else None
            ),
            shuffle=False,
        ),
        correction=make_correction() if make_correction else None,
        population=training.Population(
            num_clients=len(sizes),
            mean_examples=float(sizes.mean()),
            local_steps=int(mean_steps),
        ),
        averages_all_clients=True,
    )


def _examples(case, number):
    sizes = case.plain("client_sizes")
    start = int(sizes[:number].sum())
    rows = slice(start, start + int(sizes[number]))
    return case.floats("x")[rows], case.plain("y")[rows].astype(np.int32)


def _data_set(case, number):
    x, y = _examples(case, number)
    key = np.zeros([2], np.int64)
    return tf.data.Dataset.from_tensors(collections.OrderedDict(x=x, y=y, key=key))


@dataclasses.dataclass
class _Start:
    """What a round began with.

    Attributes:
      cloud: The model sent out, flat.
      clients: All clients' states.
      memory: What the server remembers.
    """

    cloud: np.ndarray
    clients: list
    memory: Any


def _variants(case):
    """The configurations by their names, of the algorithms that are known here."""
    return {
        name: config
        for name, config in case.config.items()
        if isinstance(config, dict)
        and config.get("algorithm", "").lower()
        in (*_WITHOUT_CORRECTION, *_corrections(collections.defaultdict(float)))
    }


@replay.parametrize_variants(
    {
        name: [*_variants(replay.Case(name, "float64"))]
        for name in replay.names("J_*")
    },
    default="clip",
)
def test_rounds(name, variant, dtype):
    _check_variant(replay.Case(name, dtype), variant)


@pytest.mark.golden
@pytest.mark.parametrize("name", replay.names("J_*"))
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


@pytest.mark.golden
def test_rounds_of_a_deeper_network_with_more_than_is_known(tmp_path):
    config = {**_BASE, **_VARIANTS["man"], "algorithm": "FedDyn"}
    config.update(mlp=[4, 6, 5, 2], sizes=[9, 3, 4], cohorts=[[2, 0], [1]], batch=5)
    config.update(n_minibatch=None, epochs=1)
    rng = np.random.default_rng(8)
    path = tmp_path / "J_made.npz"
    numpy_rounds.write_case(
        path,
        {"man": config, "later": {**config, "algorithm": "FedLater"}},
        rng.normal(size=(16, 4)).astype(np.float32).astype(float),
        rng.integers(0, 2, 16),
        rng.normal(0, 0.5, 77).astype(np.float32).astype(float),
    )
    with np.load(path) as file:
        np.savez(path, **file, **{"f64.man.round2.more": np.ones(3)})
    case = replay.Case("J_made", "float64", tmp_path)
    assert [*_variants(case)] == ["man"]
    with pytest.warns(UserWarning, match="not compared: J_made: f64.man.round2.more$"):
        _check_variant(case, "man")


def _check_variant(case, variant):
    config = case.config[variant]
    training = _training(case, config)
    starts = _check_rounds(case, variant, config, training)
    _check_steps(case, variant, config, training, starts)
    case.check_all_read(*replay.others(variant, case.config))


def _check_rounds(case, variant, config, training):
    """Compares all that a round leaves behind; returns each round's `_Start`."""
    sizes = case.plain("client_sizes")
    is_weighted = _algorithm(config) in _WITHOUT_CORRECTION
    weighting = tff.learning.ClientWeighting
    process = processes.build_process(
        mlp.model_fn(config["mlp"], case.dtype),
        training,
        client_weighting=weighting.NUM_EXAMPLES if is_weighted else weighting.UNIFORM,
    )
    state = process.set_model_weights(
        process.initialize(),
        tff.learning.models.ModelWeights(
            mlp.unflatten(case.plain("initial_params"), config["mlp"], case.dtype), []
        ),
    )
    clients = [process.initial_client_state(state)] * len(sizes)
    starts = []
    for number, cohort in enumerate(config["cohorts"], start=1):
        starts.append(_start(process, state, clients))
        output = process.next(
            state,
            [_data_set(case, one) for one in cohort],
            [clients[one] for one in cohort],
        )
        state, clients = output.state, list(clients)
        for one, client_state in zip(cohort, output.client_states):
            clients[one] = client_state
        prefix = f"{variant}.round{number}."
        computed = _computed(
            case, config, cohort, starts[0], _start(process, state, clients)
        )
        for key in case.keys(prefix):
            if key in computed:
                np.testing.assert_allclose(
                    computed[key],
                    case.result(prefix + key),
                    **_tolerance(case, number),
                    err_msg=prefix + key,
                )
    return starts


def _start(process, state, clients):
    cloud = mlp.flatten(process.get_model_weights(state).trainable)
    return _Start(cloud, clients, state.finalizer["memory"])


def _computed(case, config, cohort, first, after):
    """What the files have of a round, by its name there."""
    sizes = case.plain("client_sizes")

    def of_clients(name):
        return np.stack([mlp.flatten(state[name]) for state in after.clients])

    average, cloud = after.cloud, after.cloud
    all_clients = mlp.flatten(after.memory[client_work.ALL_CLIENTS])
    result = {
        "clnt_params_list": of_clients(PREVIOUS),
        "selected": cohort,
        "weight_list": sizes / sizes.mean(),
        "cld_mdl_param": cloud,
        "model.cld_model": cloud,
        "model.all_model": all_clients,
    }
    algorithm = _algorithm(config)
    if algorithm in _WITHOUT_CORRECTION:
        result["weight_list"] = sizes.reshape(-1, 1)
    if "h" in after.memory:
        mean_drift = mlp.flatten(after.memory["h"])
        average = cloud - mean_drift
        drifts = of_clients("h")
        np.testing.assert_allclose(
            mean_drift, drifts.mean(axis=0), **_tolerance(case, len(config["cohorts"]))
        )
        for name in ("local_param_list", "parameter_drifts", "hist_params_diffs"):
            result[name] = drifts
    if "s" in after.memory:
        states = np.vstack([of_clients("s"), mlp.flatten(after.memory["s"])])
        result["state_param_list"] = result["state_gadient_diffs"] = states
    for name in ("avg_mdl_param", "avg_model_params", "model.avg_model"):
        result[name] = average
    if algorithm == "fedspeed":
        # The authors call the cloud 'all_model' here, and never set 'avg_model'.
        result["all_model_param"] = result["model.all_model"] = cloud
        result["model.server_model"] = all_clients
        result["model.avg_model"] = first.cloud
    return result


def _tolerance(case, round_num):
    rtol = 1e-10 if case.dtype == "float64" else 1e-5 * round_num
    return dict(rtol=rtol, atol=rtol)


def _check_steps(case, variant, config, training, starts):
    """Every recorded step, each from the recorded weights before it."""
    model = mlp.model_fn(config["mlp"], case.dtype)()
    variables = model.trainable_variables
    step = local_step.LocalStep(model, {}, training.regularizers)
    rule = training.effective_gradient_rule
    slots = rule.make_slots(variables)
    sizes = case.plain("client_sizes")

    def unflatten(flat):
        return mlp.unflatten(flat, config["mlp"], case.dtype)

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
        if (round_num, number) != previous:
            position, weights = 0, start.cloud
            previous = (round_num, number)
            for slot in slots:
                slot.assign(tf.zeros_like(slot))
        x, y = _examples(case, number)
        batches_per_epoch = -(-len(y) // config["batch"])
        begin = position % batches_per_epoch * config["batch"]
        rows = slice(begin, begin + config["batch"])
        for variable, value in zip(variables, unflatten(weights)):
            variable.assign(value)
        received = unflatten(start.cloud)
        computed, count, _ = step.gradient(
            dict(x=tf.constant(x[rows]), y=tf.constant(y[rows])),
            received,
            None,
            rule,
            slots,
        )
        assert count == len(y[rows])
        unclipped = [tf.zeros_like(v) for v in variables]
        if training.correction is not None:
            local = method_lib.Local(
                weights=variables,
                cloud=received,
                client=start.clients[number],
                server=start.memory,
                relative_size=tf.constant(sizes[number] / sizes.mean(), case.dtype),
            )
            added = training.correction.before_clipping(local)
            computed = [g + a for g, a in zip(computed, added)]
            unclipped = training.correction.after_clipping(local) or unclipped
        computed, _ = local_round.clip_by_global_norm(computed, config["clip_norm"])
        check(mlp.flatten(computed), gradients[i])
        rule.after_clipping(computed, slots)
        strength = np.dot(mlp.flatten(unclipped), weights) / np.dot(weights, weights)
        check(config["weight_decay"] + strength, decays[i])
        rate = config["lr"] * float(
            training.learning_rate_schedule(round_num - rounds.min())
        )
        check(rate, rates[i])
        optimizer = training.build_sgd(rate, weight_decay=config["weight_decay"])
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
        _, stepped = optimizer.next(
            optimizer.initialize(specs),
            tuple(variables),
            tuple(g + u for g, u in zip(computed, unclipped)),
        )
        check(mlp.flatten(stepped), after[i])
        weights, position = after[i], position + 1
