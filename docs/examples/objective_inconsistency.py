"""FedAvg's objective inconsistency, and FedNova's absence of it, on quadratics.

    bin/launch docs/examples/objective_inconsistency.py FOLDER

writes `objective_inconsistency.csv` and a picture of it. Client i minimises
(w - e_i)^2 by tau_i steps a round, e_i = i and tau_i = 1, 2, ..., 10: the more steps
the further away. FedAvg approaches another point than the mean of the e_i (Theorem 1
of FedNova's paper), even with a learning rate that decays to 0; FedNova the mean.
"""

import collections
import csv
import pathlib
import sys

import numpy as np

from tff_reg import curves, models, runtime, training
from tff_reg.lazy import tf

CLIENTS, RATE, DECAY = 10, 0.02, 0.97
TARGETS = np.arange(1.0, CLIENTS + 1)


def model_fn():
    """Returns the model: one weight, which begins at 0."""
    layers = [
        tf.keras.layers.InputLayer([1], dtype="float64"),
        tf.keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", dtype="float64"
        ),
    ]
    return models.from_keras(tf.keras.Sequential(layers), loss_fn=tf.keras.losses.mse)


def client(number: int):
    """Returns a client's data: one example, and its share of 10 epochs."""
    element = collections.OrderedDict(
        x=np.ones([1, 1]),
        y=np.full([1, 1], TARGETS[number]),
        key=np.array([0, number], np.int64),
        work=np.float64((number + 1) / CLIENTS),
    )
    return tf.data.Dataset.from_tensors(element)


def distances(process_name: str, rounds: int, **settings) -> list[float]:
    """Returns the model minus the optimum, before and after each round."""
    process = training.build(
        process_name,
        model_fn(),
        client_data=training.WholeClientData(
            batch_size=1, local_epochs=CLIENTS, told=("work",)
        ),
        client_momentum=0.0,
        client_weight_decay=0.0,
        max_gradient_norm=0.0,
        client_weighting="uniform",
        num_clients=CLIENTS,
        **settings,
    )
    data = [client(number) for number in range(CLIENTS)]
    state, found = process.initialize(), []
    kept = [None] * CLIENTS
    if hasattr(process, "initial_client_state"):
        kept = [process.initial_client_state(state)] * CLIENTS
    for _ in range(rounds + 1):
        (weight,) = process.get_model_weights(state).trainable
        found.append(float(np.squeeze(weight)) - TARGETS.mean())
        remembers = kept[0] is not None
        output = process.next(state, data, *([kept] if remembers else []))
        state = output.state
        kept = output.client_states if remembers else kept
    return found


def main(folder: str) -> None:
    """Writes the table and the picture."""
    settings = {
        "client_learning_rate": RATE,
        "learning_rate_schedule": "exponential",
        "learning_rate_decay": DECAY,
    }
    with runtime.running("in_process"):
        curve = {
            name: [abs(each) for each in distances(name, 150, **settings)]
            for name in ("fedavg", "fednova", "scaffold")
        }
    where = pathlib.Path(folder)
    with open(where / "objective_inconsistency.csv", "w", newline="") as file:
        rows = zip(range(151), *curve.values())
        csv.writer(file, lineterminator="\n").writerows([("round", *curve), *rows])
    series = {name: (range(151), values) for name, values in curve.items()}
    panel = ("Round", "Distance of the model to the optimum", series)
    curves.write_points(where / "objective_inconsistency.png", [panel], ".-")


if __name__ == "__main__":
    main(*sys.argv[1:])
