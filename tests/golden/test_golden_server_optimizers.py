"""Server optimisers over rounds against the code of FedACG and FedDecorr."""

import re

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.golden import replay
from tff_reg.training import optimizers


def _optimizer(kind, settings):
    if kind == "gd":
        # m = beta1 m + (1 - beta1) g is (1 - beta1) times TFF's momentum.
        rest = settings["server_lr"] * (1 - settings["beta1"])
        return tff.learning.optimizers.build_sgdm(rest, settings["beta1"])
    return optimizers.build_adaptive(
        kind,
        settings["server_lr"],
        beta1=settings["beta1"],
        beta2=settings["beta2"],
        epsilon=settings["tau"],
        initial_v=None if settings["v0"] == "tau^2" else float(settings["v0"]),
    )


@replay.parametrize("M_server_optimizers")
def test_server_steps(name, dtype):
    case = replay.Case(name, dtype)
    deltas = case.floats("client_deltas")
    tolerance = dict(rtol64=1e-10, rtol32=1e-5)
    for of_case, settings in case.config["cases"].items():
        kind = re.match(r"(fedacg|feddecorr)_(adam|yogi|adagrad|gd)", of_case)[2]
        by = None
        if settings["mean"] != "unweighted":
            by = case.plain("client_weights")
        optimizer = _optimizer(kind, settings)
        weights = tf.constant(case.floats("initial_params"))
        state = optimizer.initialize(tf.TensorSpec(weights.shape, weights.dtype))
        found = {"params": [], "m": [], "v": []}
        moments = () if kind == "gd" else ("m", "v")
        for of_round in deltas:
            mean = np.average(of_round, axis=0, weights=by).astype(dtype)
            state, weights = optimizer.next(state, weights, tf.constant(-mean))
            found["params"].append(weights)
            for what in moments:
                found[what].append(-state[what] if what == "m" else state[what])
        for what in ("params", *moments):
            case.check(f"{of_case}.{what}", np.stack(found[what]), **tolerance)
    case.check_all_read()
