"""Every method trains a Keras model, or says in a sentence what it lacks."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import local_steps
from tests.models import keras_zoo
from tests.training import every_method
from tff_reg import data, experiment, models, runtime, training
from tff_reg.experiment.rounds import progress
from tff_reg.lazy import keras
from tff_reg.methods import catalogue

if tf.__version__ > "2.16":
    import keras

_WIDTH = dict.fromkeys(("fedalign", "gradaug"), "cannot (run at|be cut)|one block")
_WIDTH["fedalign"] = "cannot be narrowed to their first channels|needs .* blocks"
_WIDTH["gradaug"] = (
    "cannot be narrowed to their first channels|any size|looks at images"
)
_BRANCHES = {"stochdepth": "no residual branches"}
_HEAD = {
    **dict.fromkeys(("moon", "feddecorr", "feduv", "univarfl"), "shows no embedding"),
    **dict.fromkeys(("freeze", "fedetf"), "no linear layer"),
    "fedmlb": "shows one block",
    "fitnet": "shows no blocks",
    "fedrcl": "shows no blocks",
}
# By network: what is refused, and the words that say why. The table is in the docs.
REFUSED = {
    "residual": {**_WIDTH, **_BRANCHES},
    "text transformer": {
        **_WIDTH,
        **_BRANCHES,
        "mixup": "mixes examples that are one tensor of real numbers",
    },
    "sub-classed": {**_WIDTH, **_BRANCHES},
    "sub-classed, no training argument": {
        **_WIDTH,
        **_BRANCHES,
        **_HEAD,
        "man": "no non-linear layer",
    },
    "regression": {
        **dict.fromkeys(
            (
                *("moon", "feddecorr", "feduv", "univarfl", "fedetf", "fitnet", "man"),
                *("mixup", "kd", "fedntd", "fedgkd", "fedlc", "fedrs", "fedsol"),
                *("asd", "fedvls", "fedrcl", "fedproto", "feddisco"),
            ),
            "needs a classifier",
        ),
        "freeze": "no linear layer",
        "fedmlb": "shows one block",
        **_WIDTH,
        **_BRANCHES,
    },
}
# Some kinds of methods, and all that are refused; the others are slow, or rounds of
# test_keras_steps.py.
QUICK = {
    "residual": ("fedetf", "scaffold"),
    "sub-classed, no training argument": ("fedrs", "fedlesam"),
}


def _is_quick(network, name):
    return network in QUICK and name in (*REFUSED[network], *QUICK[network])


CASES = [
    pytest.param(
        network, name, marks=[] if _is_quick(network, name) else [pytest.mark.slow]
    )
    for network in REFUSED
    for name in catalogue.names()
]


def _regression(keras):
    L = keras.layers
    layers = [L.Flatten(), L.Dense(4, activation="relu"), L.Dense(1)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize("network, name", CASES)
def test_a_method_trains_it_or_says_what_it_lacks(network, name):
    entry = keras_zoo.NETWORKS.get(network, keras_zoo.Entry(_regression))
    keras.utils.set_random_seed(0)
    label_spec = tf.TensorSpec([None], tf.int32)
    model_fn = models.from_keras(
        entry.build(keras), input_spec=entry.input_spec, label_spec=label_spec
    )
    # Token ids, too: arrays of clients are of uint8 or float32.
    x = keras_zoo.batch(model_fn().input_spec["x"], 12, 1, entry.integers)
    x = x.astype(np.float32)
    y = np.arange(12, dtype=np.int32) % keras_zoo.CLASSES
    clients = data.ArrayClientData(x, y, np.array_split(np.arange(12), 2))

    def train():
        process = training.build(
            name,
            model_fn,
            num_clients=2,
            total_rounds=2,
            client_data=training.WholeClientData(batch_size=4, example_dtype="float32"),
        )
        with runtime.running("in_process"):
            return experiment.train(
                process,
                clients,
                total_rounds=2,
                clients_per_round=2,
                progress=progress.Silence(),
            )

    why = REFUSED[network].get(name)
    if why is not None:
        with pytest.raises((ValueError, TypeError), match=why):
            train()
        return
    weights = train().weights.trainable
    start = models.initial_weights(model_fn).trainable
    assert all(np.all(np.isfinite(w)) for w in weights)
    assert any(not np.array_equal(a, b) for a, b in zip(start, weights))


@functools.cache
def _model_fn(ends_in_softmax):
    """A small network of three blocks."""
    L = keras.layers
    keras.utils.set_random_seed(3)
    layers = [
        L.Conv2D(4, 3, activation="relu", name="first"),
        *(L.Flatten(), L.Dense(5, activation="relu", name="second"), L.Dense(4)),
        *[L.Softmax()] * ends_in_softmax,
    ]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    return models.from_keras(model, blocks=["first", "second"])


def _moved(model, seed):
    """Away from the initial weights, in each model by itself."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign_add(0.1 * rng.normal(size=variable.shape))
    return model


def _step(own, ends_in_softmax, needs):
    """The gradient and the measurements of a step, as one array."""
    rng = np.random.default_rng(0)
    batch = dict(
        x=tf.constant(rng.normal(size=(6, 6, 6, 1)), tf.float32),
        y=tf.constant([0, 1, 0, 0, 1, 0]),
    )
    references = {
        name: _moved(_model_fn(ends_in_softmax)(), seed)
        for seed, name in enumerate(needs.references)
    }
    gradient, _, measured = local_steps.gradient(
        *(_moved(_model_fn(ends_in_softmax)(), 9), [own], batch),
        start=[
            tf.identity(w) for w in _model_fn(ends_in_softmax)().trainable_variables
        ],
        references=references,
        needs=needs,
    )
    return np.concatenate([np.ravel(x) for x in (*gradient, *measured.values())])


@pytest.mark.parametrize(
    "name, hyperparameters",
    [*every_method.variants(), ("fedrcl", {"fedrcl_levels": (1, 3)})],
    ids=every_method.variant_id,
)
def test_a_softmax_at_the_end_trains_the_same_or_is_refused(name, hyperparameters):
    own = every_method.of_variant(name, hyperparameters)
    try:
        needs = local_steps.find_needs(_model_fn(False)(), [own])
    except (ValueError, TypeError):
        return  # Of what any Keras model lacks, above.
    logits, probabilities = (_step(own, ends, needs) for ends in (False, True))
    if np.allclose(logits, probabilities, rtol=1e-3, atol=1e-4):
        local_steps.find_needs(_model_fn(True)(), [own])
    else:
        with pytest.raises(ValueError, match=f"{name}.*probabilities"):
            local_steps.find_needs(_model_fn(True)(), [own])
