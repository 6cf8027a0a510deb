"""What the replays of whole rounds share: clients' data, their training, the run."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tests.golden import clients as clients_lib, mlp
from tff_reg import training as training_lib
from tff_reg.methods import all_clients
from tff_reg.training import local_training

NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@dataclasses.dataclass
class Start:
    """What a round began with.

    Attributes:
      model: The server's model, flat.
      sent: What clients received of it, flat.
      evaluated: What is evaluated in its place, flat.
      clients: All clients' states.
      memory: What the server remembers.
    """

    model: np.ndarray
    sent: np.ndarray
    evaluated: np.ndarray
    clients: list
    memory: Any


def examples(case, sizes, number):
    """The inputs and labels of a client; the file has all clients' in one array."""
    start = int(sum(sizes[:number]))
    rows = slice(start, start + int(sizes[number]))
    return case.floats("x")[rows], case.plain("y")[rows].astype(np.int32)


def data_set(case, sizes, number):
    """The same examples as a `tf.data.Dataset`."""
    return clients_lib.data_set(*examples(case, sizes, number))


def training(config, parts, sizes, data_form, local_steps):
    """The clients' training by a file's configuration with these methods."""
    return local_training.LocalTraining(
        optimizer=training_lib.build_sgd(
            config["lr"],
            config.get("momentum", 0.0),
            weight_decay=config["weight_decay"],
        ),
        methods=[*parts, all_clients.AllClients()],
        max_gradient_norm=config["clip_norm"],
        learning_rate_schedule=training_lib.exponential(config["lr_decay_per_round"]),
        data_form=data_form,
        population=training_lib.Population(
            num_clients=len(sizes),
            mean_examples=float(np.mean(sizes)),
            local_steps=local_steps,
        ),
    )


def run(case, sizes, config, client_training, weighting):
    """Runs the rounds of a configuration.

    Yields, for each round:
      Its number from 1, its clients, the `Start` of this round and that of the next,
      and the server's state.
    """
    of_server = [1.0, 0.0]
    if not any(own.server_step for own in client_training.methods):
        of_server = [
            config.get("server_learning_rate", 1.0),
            config.get("server_momentum", 0.0),
        ]
    process = clients_lib.process(
        config["mlp"],
        case.dtype,
        client_training,
        weighting,
        *of_server,
    )
    initial = mlp.unflatten(case.plain("initial_params"), config["mlp"], case.dtype)
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(initial, [])
    )
    clients = [process.initial_client_state(state)] * len(sizes)

    def start():
        memory, evaluated = state.finalizer["memory"], process.get_model_weights(state)
        # Where others are evaluated, the server keeps those that training goes on with.
        model = state.finalizer.get("weights", evaluated).trainable
        sent = model
        for own in client_training.methods:
            sent = own.broadcast(sent, clients_lib.own_names(memory))
        flat = map(mlp.flatten, (model, sent, evaluated.trainable))
        return Start(*flat, list(clients), memory)

    for number, cohort in enumerate(config["cohorts"], start=1):
        before = start()
        output = process.next(
            state,
            [data_set(case, sizes, one) for one in cohort],
            [clients[one] for one in cohort],
        )
        state = output.state
        for one, client_state in zip(cohort, output.client_states):
            clients[one] = client_state
        yield number, cohort, before, start(), state


def check_all(case, prefix, computed, check):
    """Calls `check(value, expected, err_msg=key)` for what the file has of a round."""
    for name in case.keys(prefix):
        if name in computed:
            check(computed[name], case.result(prefix + name), err_msg=prefix + name)
