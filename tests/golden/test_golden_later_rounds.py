"""Whole rounds and single steps of the later methods against the authors' code.

The J files of FedCM, MoFedSAM, FedLESAM, FedACG, FedSOL and FedNova, whose settings and
keys are others than those of `test_golden_rounds`.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import clients as clients_lib, later, mlp, numpy_rounds, replay
from tff_reg import methods, training as training_lib
from tff_reg.methods import all_clients, method
from tff_reg.training import local_training

pytestmark = pytest.mark.usefixtures("in_process")

_WEIGHTING = tff.learning.ClientWeighting
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
    sizes = np.array(config["sizes"])
    terms = []
    if config.get("mu_mean"):
        terms = [methods.MAN(strength=config["mu_mean"])]
    data = dict(
        batch_size=config["batch"], local_epochs=config["epochs"], shuffle=False
    )
    form = training_lib.WholeClientData(**data)
    if _decays_in_epochs(config):
        form = _DecayingData(**data, decay=config["lr_decay_per_round"])
    return local_training.LocalTraining(
        optimizer=training_lib.build_sgd(
            config["lr"],
            config.get("momentum", 0.0),
            weight_decay=config["weight_decay"],
        ),
        methods=[*terms, own, all_clients.AllClients()],
        max_gradient_norm=config["clip_norm"],
        learning_rate_schedule=training_lib.exponential(config["lr_decay_per_round"]),
        data_form=form,
        population=training_lib.Population(
            num_clients=len(sizes),
            mean_examples=float(sizes.mean()),
            # Everyone's K is that of the first client in FedCM's code.
            local_steps=config.get("local_iteration"),
        ),
    )


def _weighting(config):
    is_weighted = config["algorithm"] in _BY_EXAMPLES
    return _WEIGHTING.NUM_EXAMPLES if is_weighted else _WEIGHTING.UNIFORM


def _examples(case, config, number):
    start = sum(config["sizes"][:number])
    rows = slice(start, start + config["sizes"][number])
    return case.floats("x")[rows], case.plain("y")[rows].astype(np.int32)


def _data_set(case, config, number):
    return clients_lib.data_set(*_examples(case, config, number))


@dataclasses.dataclass
class _Start:
    """What a round began with.

    Attributes:
      sent: What clients received, flat.
      clients: All clients' states.
      memory: What the server remembers.
    """

    sent: np.ndarray
    clients: list
    memory: Any


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


@pytest.mark.golden
def test_rounds_with_a_fraction_of_a_step_and_another_server_rate(tmp_path):
    config = dict(
        algorithm="FedCM",
        sizes=[5, 9],
        cohorts=[[0, 1], [1], [1, 0]],
        lr=0.1,
        lr_decay_per_round=0.9,
        batch=4,
        epochs=2,
        weight_decay=1e-3,
        mlp=[3, 4, 2],
        alpha=0.2,
        clip_norm=0.5,
        server_learning_rate=0.75,
        local_iteration=2.5,
    )
    numpy_rounds.write_fedcm(tmp_path / "J_made.npz", config)
    _check_variant(replay.Case("J_made", "float64", tmp_path), "base")


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


def _check(case, value, expected, key):
    """The tolerances of the files: of the largest entry in float32."""
    rtol, atol = 1e-10, 1e-10
    if case.dtype == "float32":
        rtol = 1e-3 if "fedsol" in case.name else 1e-4
        atol = rtol * np.abs(expected).max()
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol, err_msg=key)


def _check_rounds(case, key, config, training):
    """Compares all that a round leaves behind; returns each round's `_Start`."""
    process = clients_lib.process(
        config["mlp"],
        case.dtype,
        training,
        _weighting(config),
        config.get("server_learning_rate", 1.0),
    )
    initial = mlp.unflatten(case.plain("initial_params"), config["mlp"], case.dtype)
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(initial, [])
    )
    clients = [process.initial_client_state(state)] * len(config["sizes"])
    starts, updates = [], np.zeros([len(clients), len(case.plain("initial_params"))])
    for number, cohort in enumerate(config["cohorts"], start=1):
        memory = state.finalizer["memory"]
        own = clients_lib.own_names(memory)
        model = mlp.flatten(process.get_model_weights(state).trainable)
        sent = model
        if config["algorithm"] == "FedACG":
            sent = model + config["server_momentum"] * mlp.flatten(own["momentum"])
        starts.append(_Start(sent, list(clients), memory))
        output = process.next(
            state,
            [_data_set(case, config, one) for one in cohort],
            [clients[one] for one in cohort],
        )
        state = output.state
        for one, client_state in zip(cohort, output.client_states):
            clients[one] = client_state
            updates[one] = mlp.flatten(client_state[method.PREVIOUS]) - sent
        arguments = (config, cohort, starts[-1], clients, updates)
        computed = _computed(process, state, *arguments)
        prefix = f"{key}.round{number}."
        for what in case.keys(prefix):
            if what in computed:
                _check(case, computed[what], case.result(prefix + what), prefix + what)
    return starts


def _computed(process, state, config, cohort, start, clients, updates):
    """What the files have of a round, by its name there."""
    memory = clients_lib.own_names(state.finalizer["memory"])
    before = clients_lib.own_names(start.memory)
    models = np.stack([mlp.flatten(client[method.PREVIOUS]) for client in clients])
    result = {
        "selected": cohort,
        "params_sent": start.sent,
        "clnt_params_list": models,
        "server_params": mlp.flatten(process.get_model_weights(state).trainable),
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
        _recording(m, seen) if method.does(m, "gradient") else m
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
        x, y = _examples(case, config, number)
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
                _data_set(case, config, number),
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
    return _Start(case.plain("initial_params"), [], {})


def _first_weights(case, config, start):
    """What a client begins with: what it received, but where a file says more."""
    elsewhere = config.get("local_start")
    return start.sent if elsewhere is None else case.plain(elsewhere)
