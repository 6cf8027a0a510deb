"""The program whose rounds the subject `growth` times.

Clients have eight examples of 64 numbers, in one batch; the network has a hidden layer.

Importing this module imports TensorFlow and TFF.
"""

from __future__ import annotations

import sys

from tff_reg import quiet

if __name__ == "__main__":
    quiet.silence()

from benchmarks.shared import measuring
from benchmarks.simulators import serving
from tff_reg import data, models, runtime, training
from tff_reg.lazy import np, tf

_EXAMPLES, _FEATURES, _CLASSES = 8, 64, 10


def main(held: int, per_round: int, megabytes: float, in_parallel: int) -> None:
    """Answers questions: "round" with seconds, "peak" with the megabytes resident.

    Args:
      held: Clients.
      per_round: Of them in a round.
      megabytes: Size of the model, in 10^6 bytes.
      in_parallel: Clients at a time.
    """
    runtime.use("in_process", clients_in_parallel=in_parallel, intra_op_threads=1)
    hidden = round(megabytes * 1e6 / 4 / (_FEATURES + _CLASSES + 1))

    def model_fn():
        layers = [
            [tf.keras.layers.Dense(hidden, activation="relu")],
            [tf.keras.layers.Dense(_CLASSES)],
        ]
        network = models.from_keras_blocks(layers, input_shape=(_FEATURES,))
        return models.LearningModel(network)

    process = training.build_regularized(
        model_fn,
        [],
        training.build_sgd(0.01),
        client_data=training.WholeClientData(batch_size=_EXAMPLES),
    )
    rng = np.random.default_rng(0)
    clients = data.ArrayClientData(
        rng.normal(size=(held * _EXAMPLES, _FEATURES)).astype(np.float32),
        rng.integers(0, _CLASSES, held * _EXAMPLES),
        np.arange(held * _EXAMPLES).reshape(held, _EXAMPLES),
    )
    state = process.initialize()

    def one_round():
        nonlocal state
        cohort = rng.choice(held, per_round, replace=False)
        ids = [clients.client_ids[index] for index in cohort]
        key = np.zeros(2, np.int64)
        datasets = [clients.whole_client_dataset(name, key) for name in ids]
        state = process.next(state, datasets).state

    for (question,) in serving.questions():
        if question == "peak":
            serving.answer(measuring.resident_bytes(peak=True) / 1e6)
        else:
            serving.answer(measuring.seconds(one_round))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
