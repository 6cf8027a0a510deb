"""The program whose rounds the subjects `growth` and `scale` time.

Clients have eight examples of 64 numbers, in one batch. FedAvg's network has a hidden
layer; other methods train a small CNN. Clients' states are on the disk.

Importing this module imports TensorFlow and TFF.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import tempfile

from tff_reg import quiet

if __name__ == "__main__":
    quiet.silence()

from benchmarks.shared import measuring
from benchmarks.simulators import serving
from tff_reg import data, methods, models, runtime, training
from tff_reg.experiment.rounds import checkpoints, process_state
from tff_reg.lazy import keras, np, tf

_EXAMPLES, _FEATURES, _CLASSES = 8, 64, 10
_LEARNING_RATE = 0.01


def main(
    held: int,
    per_round: int,
    megabytes: float,
    in_parallel: int,
    tensors: int = 4,
    kind: str = "in_process",
    method: str = "fedavg",
) -> None:
    """Answers "round" and "steps" with seconds, "peak" and "resident" with megabytes.

    "steps" are a round's steps on one model, without clients. A number after "round"
    replaces `per_round`.

    Args:
      held: The number of clients.
      per_round: Clients of a round.
      megabytes: Size of the model, in 10^6 bytes.
      in_parallel: Clients at a time.
      tensors: The number of the model's tensors, an even one.
      kind: The runtime.
      method: The process name; only fedavg uses `megabytes` and `tensors`.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    runtime.use(kind, clients_in_parallel=in_parallel)
    model_fn, shape = _model_fn(megabytes, tensors, method)
    process = _process(model_fn, held, method)
    rng = np.random.default_rng(0)
    clients = data.ArrayClientData(
        rng.normal(size=(held * _EXAMPLES, *shape)).astype(np.float32),
        rng.integers(0, _CLASSES, held * _EXAMPLES),
        [*np.arange(held * _EXAMPLES).reshape(held, _EXAMPLES)],
    )
    state = process.initialize()
    states = None
    if isinstance(process, training.StatefulLearningProcess):
        folder = tempfile.TemporaryDirectory()
        states = process_state.ClientStates(
            process.initial_client_state(state),
            checkpoints.CheckpointStore(folder.name),
        )

    def one_round(count):
        nonlocal state
        cohort = rng.choice(held, count, replace=False)
        ids = [clients.client_ids[index] for index in cohort]
        key = np.zeros(2, np.int64)
        datasets = [clients.whole_client_dataset(name, key) for name in ids]
        if states is None:
            state = process.next(state, datasets).state
            return
        output = process.next(state, datasets, states.load(ids))
        state = output.state
        states.store(ids, output.client_states)
        for path in pathlib.Path(folder.name).iterdir():
            if path.name not in {*states.names.values()}:
                path.unlink()

    for question, *count in serving.questions():
        if question == "round":
            round_of = functools.partial(one_round, *(count or [per_round]))
            serving.answer(measuring.seconds(round_of))
        elif question == "steps":
            serving.answer(_seconds_of_steps(model_fn, shape, per_round))
        else:
            found = measuring.resident_bytes(peak=question == "peak")
            serving.answer(found / 1e6)
    runtime.shutdown()


def _model_fn(megabytes: float, tensors: int, method: str):
    """The function that makes the model, and the shape of an example."""
    if method != "fedavg":
        shape = (8, 8, 1)
        build = models.build_model_fn
        return build("cnn", image_shape=shape, num_classes=_CLASSES), shape
    depth, numbers = tensors // 2 - 2, megabytes * 1e6 / 4
    # depth * width^2 + (inputs and outputs) * width = numbers
    ends = _FEATURES + _CLASSES + 1
    width = numbers / ends
    if depth:
        width = ((ends**2 + 4 * depth * numbers) ** 0.5 - ends) / (2 * depth)

    def dense_model_fn():
        layers = [
            [keras.layers.Dense(round(width), activation="relu")]
            for _ in range(depth + 1)
        ]
        layers.append([keras.layers.Dense(_CLASSES)])
        network = models.from_keras_blocks(layers, input_shape=(_FEATURES,))
        return models.LearningModel(network)

    return dense_model_fn, (_FEATURES,)


def _process(model_fn, held: int, method: str):
    return training.build_regularized(
        model_fn,
        methods.build(method, {}),
        training.build_sgd(_LEARNING_RATE),
        client_data=training.WholeClientData(batch_size=_EXAMPLES),
        population=training.Population(held),
    )


def _seconds_of_steps(model_fn, shape, count: int) -> float:
    """Seconds of a number of steps on one model, a call of a `tf.function` each."""
    model = model_fn()
    batch = {
        "x": tf.random.normal([_EXAMPLES, *shape]),
        "y": tf.zeros([_EXAMPLES], tf.int32),
    }

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = model.forward_pass(batch, training=True).loss
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(_LEARNING_RATE * gradient)

    step(batch)
    return measuring.seconds(lambda: [step(batch) for _ in range(count)])


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
        *sys.argv[6:],
    )
