"""Whole federated rounds of FedAvg and FedProx, with MAN, against the authors' code."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import replay
from tff_reg import client
from tff_reg import models
from tff_reg import processes
from tff_reg import regularizers
from tff_reg import runtime
from tff_reg.client import client_work
from tff_reg.client import local_step

# Not what a process computes: inputs of the runs, and the mean over all clients' last
# models, which the driver of a run makes.
_EXEMPT = (
    r".*\.weight_list",
    r".*\.selected",
    r".*\.model\.all_model",
    r".*\.trace\.lr",
    r".*\.trace\.weight_decay_in_optimizer",
)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


def _model_fn(case, sizes):
    features, hidden, classes = sizes

    def make():
        network = models.from_keras_blocks(
            [
                tf.keras.layers.Dense(hidden, "relu", dtype=case.dtype),
                tf.keras.layers.Dense(classes, dtype=case.dtype),
            ],
            input_shape=[features],
        )
        return models.LearningModel(network)

    return make


def _unflatten(flat, sizes, dtype):
    """PyTorch's flat parameters as our weights."""
    features, hidden, classes = sizes
    result, start = [], 0
    for shape in ([hidden, features], [hidden], [classes, hidden], [classes]):
        size = int(np.prod(shape))
        result.append(flat[start : start + size].reshape(shape).T.astype(dtype))
        start += size
    return result


def _flatten(weights):
    return np.concatenate([np.asarray(w).T.ravel() for w in weights])


def _terms(config):
    terms = []
    if config["algorithm"] == "FedProx":
        terms.append(regularizers.FedProx(strength=config["mu"]))
    if config["with_man"]:
        terms.append(regularizers.MAN(strength=config["mu_mean"]))
    return terms


def _optimizer(config):
    return client.build_sgd(config["lr"], weight_decay=config["weight_decay"])


def _examples(case, number):
    sizes = case.plain("client_sizes")
    start = int(sizes[:number].sum())
    rows = slice(start, start + int(sizes[number]))
    return (
        case.plain("x")[rows].astype(case.dtype),
        case.plain("y")[rows].astype(np.int32),
    )


@replay.parametrize("J_fed[ap][vr]*")
def test_rounds(name, dtype):
    case = replay.Case(name, dtype)
    for variant, config in case.config.items():
        _check_rounds(case, variant, config)
        _check_steps(case, variant, config)
    case.check_all_read(*_EXEMPT)


def _check_rounds(case, variant, config):
    sizes = config["mlp"]
    process = processes.build_regularized(
        _model_fn(case, sizes),
        _terms(config),
        _optimizer(config),
        client_data=client.WholeClientData(
            batch_size=config["batch"], local_epochs=config["epochs"], shuffle=False
        ),
        max_gradient_norm=config["clip_norm"],
        learning_rate_schedule=client.exponential(config["lr_decay_per_round"]),
    )

    def data_set(number):
        x, y = _examples(case, number)
        key = np.zeros([2], np.int64)
        return tf.data.Dataset.from_tensors(
            collections.OrderedDict(x=x, y=y, key=key)
        )

    def model_after(state, cohort):
        output = process.next(state, [data_set(number) for number in cohort])
        weights = process.get_model_weights(output.state)
        return output.state, _flatten(weights.trainable)

    state = process.set_model_weights(
        process.initialize(),
        tff.learning.models.ModelWeights(
            _unflatten(case.plain("initial_params"), sizes, case.dtype), []
        ),
    )
    clients = {}
    for number, cohort in enumerate(config["cohorts"], start=1):
        prefix = f"{variant}.round{number}"
        for one in cohort:
            # A cohort of one client gives that client's own model.
            clients[one] = model_after(state, [one])[1]
        expected = case.result(f"{prefix}.clnt_params_list")
        for one, parameters in clients.items():
            np.testing.assert_allclose(
                parameters, expected[one], **_tolerance(case, number)
            )
        state, averaged = model_after(state, cohort)
        np.testing.assert_allclose(
            averaged, case.result(f"{prefix}.model.avg_model"), **_tolerance(case, number)
        )


def _tolerance(case, round_num):
    rtol = 1e-10 if case.dtype == "float64" else 1e-5 * round_num
    return dict(rtol=rtol, atol=rtol)


def _check_steps(case, variant, config):
    """Every recorded step, each from the recorded weights before it."""
    model = _model_fn(case, config["mlp"])()
    step = local_step.LocalStep(model, {}, _terms(config))
    variables = model.trainable_variables
    after = case.result(f"{variant}.trace.params_after_each_step")
    gradients = case.result(f"{variant}.trace.grad_seen_by_optimizer")
    rounds = case.plain(f"{variant}.trace.round")
    traced_clients = case.plain(f"{variant}.trace.client")
    first_round = rounds.min()
    server = {first_round: case.plain("initial_params")}
    for number in range(1, len(config["cohorts"])):
        server[first_round + number] = case.result(
            f"{variant}.round{number}.model.avg_model"
        )
    previous = None
    for i, (round_num, number) in enumerate(zip(rounds, traced_clients)):
        if (round_num, number) != previous:
            position, weights = 0, server[round_num]
            previous = (round_num, number)
        x, y = _examples(case, number)
        batches_per_epoch = -(-len(y) // config["batch"])
        start = position % batches_per_epoch * config["batch"]
        rows = slice(start, start + config["batch"])
        for variable, value in zip(
            variables, _unflatten(weights, config["mlp"], case.dtype)
        ):
            variable.assign(value)
        received = _unflatten(server[round_num], config["mlp"], case.dtype)
        computed, count, _ = step.gradient(
            dict(x=tf.constant(x[rows]), y=tf.constant(y[rows])), received, None
        )
        assert count == len(y[rows])
        computed, _ = client_work.clip_by_global_norm(computed, config["clip_norm"])
        np.testing.assert_allclose(
            _flatten(computed), gradients[i], **_tolerance(case, 1)
        )
        optimizer = client.build_sgd(
            config["lr"] * config["lr_decay_per_round"] ** (round_num - first_round),
            weight_decay=config["weight_decay"],
        )
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
        _, stepped = optimizer.next(
            optimizer.initialize(specs), tuple(variables), tuple(computed)
        )
        np.testing.assert_allclose(_flatten(stepped), after[i], **_tolerance(case, 1))
        weights, position = after[i], position + 1
