"""Runs of a Keras model of one's own on arrays of one's own."""

import keras
import numpy as np

import tff_reg
from tff_reg.experiment.rounds import progress

SILENT = progress.Silence()
SMALL = dict(
    process="fedprox",
    num_clients=4,
    clients_per_round=2,
    local_epochs=1,
    partition="dirichlet_balanced",
    concentration=0.3,
)


def keras_model(outputs=3, shape=(6,)):
    """A network that begins with the same weights each time it is made."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input(shape),
        keras.layers.Flatten(),
        keras.layers.Dense(8, "relu", name="hidden"),
        keras.layers.Dense(outputs, "softmax", name="last"),
    ]
    return keras.Sequential(layers, name="network")


def examples(count, seed=0):
    """uint8 rows whose class is that of the largest of three groups, as a column."""
    x = np.random.default_rng(seed).integers(0, 256, (count, 6), dtype=np.uint8)
    return x, x.reshape(count, 3, 2).sum(axis=-1).argmax(axis=-1)[:, np.newaxis]


TRAIN, TEST = examples(200), examples(60, seed=1)


def rate(round_num):
    return 0.002 * 0.5**round_num


def in_turn(round_num, client_ids):
    return [client_ids[round_num % 4], client_ids[(round_num + 1) % 4]]


def confidence(labels, predictions):
    assert labels.shape == (60,) and predictions.shape == (60, 3)
    return predictions.max(axis=-1)


def run_own(**arguments):
    """A run on the arrays with everything that can be given."""
    given = dict(
        **SMALL,
        model=keras_model(),
        client_data=TRAIN,
        test_data=TEST,
        total_rounds=4,
        client_learning_rate=rate,
        sample_fn=in_turn,
        metrics={
            "top2": keras.metrics.SparseTopKCategoricalAccuracy(2),
            "confidence": confidence,
        },
        progress=SILENT,
    )
    return tff_reg.run(**{**given, **arguments})


X, Y = TRAIN
