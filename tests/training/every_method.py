"""A process of every method, over one small network that can do all they ask for."""

import dataclasses
import functools

from tests import random_clients
from tff_reg import models, training
from tff_reg.methods import catalogue, checks, method, words
from tff_reg.models import resnet

SIZE = 4
NAMES = catalogue.names()
CLASSES = catalogue.methods()
STATEFUL = [
    n
    for n in NAMES
    if CLASSES[n]().client_memory or method.overrides(CLASSES[n], "personal")
]
# Whose networks are not those that `model_fn` makes.
ADAPTING = [n for n in NAMES if method.overrides(CLASSES[n], "adapt_network")]
# All but FedAvg that can have its settings.
_OWN_SETTINGS = {words.GRADIENT, method.DRIFT, method.SERVER}
REGULARIZERS = [
    n
    for n in NAMES
    if n != "fedavg"
    and method.UNIFORM_WEIGHTING not in CLASSES[n].needs
    and not _OWN_SETTINGS & checks.exclusive_of(CLASSES[n])
]
WITH_TERM = [n for n in REGULARIZERS if method.overrides(CLASSES[n], "term")]


def variants():
    """(name, hyperparameters): every method, and each of its choices by itself."""
    for name in NAMES:
        yield name, {}
        for each in catalogue.hyperparameters(name):
            choices = (False, True) if each.setting.type is bool else ()
            for choice in each.setting.choices or choices:
                if choice != each.setting.default:
                    yield name, {each.flag: choice}


def of_variant(name, hyperparameters):
    """The method of a variant."""
    return catalogue.find(name)(
        **{flag.removeprefix(f"{name}_"): v for flag, v in hyperparameters.items()}
    )


def variant_id(value):
    """A variant's method or hyperparameters in the name of a test."""
    if isinstance(value, dict):
        return ",".join(f"{flag}={v}" for flag, v in value.items()) or "default"
    return value


def sum_of(names):
    """Those of the methods that go together, the first first."""
    chosen = []
    for name in names:
        try:
            checks.check_combination([CLASSES[each] for each in (*chosen, name)])
        except checks.IncompatibleMethodsError:
            continue
        chosen.append(name)
    return "+".join(chosen)


def build_network(**options):
    """Two residual stages of one convolution each: blocks, branches, widths."""
    return resnet.build_resnet(
        lambda planes, stride: [(3, planes, stride)],
        (1, 1),
        planes=(8, 32),
        input_shape=(SIZE, SIZE, 1),
        num_classes=3,
        **options,
    )


def model_fn(**options):
    """Makes the `LearningModel` of `build_network`, by default with BatchNorm."""
    return models.LearningModel(build_network(**{"norm": "batch", **options}))


def settings(name):
    """Settings of little work; for FedAvg and all regularisers the same."""
    if {"fedavg", *REGULARIZERS} >= set(name.split("+")):
        of_paper = training.ProcessSettings.of(
            "fedavg",
            max_gradient_norm=10.0,
            learning_rate_schedule="exponential",
            learning_rate_decay=0.9,
        )
    else:
        of_paper = training.ProcessSettings.of(name)
    return dataclasses.replace(of_paper, batch_size=4, local_epochs=2, num_clients=3)


@functools.cache
def build(name, **hyperparameters):
    """The process of a method or sum, with these hyperparameters."""
    if "fedrs" in name.split("+"):
        # With all classes at all clients, its default is FedAvg.
        hyperparameters = {"fedrs_scaling": "frequency", **hyperparameters}
    return training.build_from_settings(name, model_fn, settings(name), hyperparameters)


def clients(**options):
    """Three clients of different sizes."""
    return random_clients.clients((8, 12, 5), size=SIZE, **options)


def run(process, data, rounds, state=None):
    """Rounds of all clients; returns the last output and the weights after it."""
    state = state or process.initialize()
    arguments = [data]
    if isinstance(process, training.StatefulLearningProcess):
        arguments.append([process.initial_client_state(state)] * len(data))
    for _ in range(rounds):
        output = process.next(state, *arguments)
        state = output.state
        if len(arguments) == 2:
            arguments[1] = output.client_states
    weights = process.get_model_weights(state)
    return output, [*weights.trainable, *weights.non_trainable]
