"""One-line checks for the tests of your own method.

    from tff_reg import testing

    def test_my_method():
        testing.assert_fedavg(MyMethod(strength=0.0))
        testing.assert_combinations(MyMethod())
        testing.assert_resumes(MyMethod())

    def test_its_term():
        step = testing.step(logits=[[1.0, 0.0]], labels=[0])
        assert MyMethod(strength=2.0).term(step).weighted == 4.0

The checks train a small CNN in float64 on random images, in the in-process runtime.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_reg import methods as methods_lib, models, runtime, training
from tff_reg.lazy import tff
from tff_reg.methods import catalogue, checks, method as method_lib
from tff_reg.models import forward

IMAGE_SHAPE = (8, 8, 1)
CLASSES = 3
_CLIENTS = 3
_RATE = 0.05


class Trained(NamedTuple):
    """The result of some rounds of training.

    Attributes:
      weights: The trainable weights, arrays.
      state: The server's state.
      client_states: The clients' states; None for a process without client states.
      metrics: The clients' training metrics in the last round, by name.
    """

    weights: list[np.ndarray]
    state: Any
    client_states: Any
    metrics: dict[str, Any]


def model_fn(projector: str = "none") -> Any:
    """Returns a function that makes the model that the checks train.

    Args:
      projector: One of `models.PROJECTOR_NAMES`.

    Returns:
      A function without arguments that returns a `LearningModel`.
    """
    return models.build_model_fn(
        "cnn",
        image_shape=IMAGE_SHAPE,
        num_classes=CLASSES,
        projector=projector,
        seed=7,
        dtype="float64",
    )


def client(seed: int, examples: int = 6) -> tf.data.Dataset:
    """Makes a client's data set of random images, with a single element.

    Args:
      seed: Seed of the images and labels.
      examples: Number of examples.

    Returns:
      One element of `x` float64 [examples, 8, 8, 1], `y` int32 [examples] and `key`.
    """
    generator = np.random.default_rng(seed)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=generator.normal(size=(examples, *IMAGE_SHAPE)),
            y=generator.integers(0, CLASSES, examples).astype(np.int32),
            key=np.array([seed, 1], np.int64),
        )
    )


def step(
    *,
    logits: Any = None,
    labels: Any = None,
    embedding: Any = None,
    activations: Sequence[Any] = (),
    task_loss: Any = 0.0,
    weights: Sequence[Any] = (),
    start: Sequence[Any] = (),
    class_counts: Any = None,
    key: Any = (1, 2),
    of_models: Optional[dict[str, Any]] = None,
) -> methods_lib.Step:
    """Makes a step from arrays, for a call of `term` without training.

    Args:
      logits: float [batch, classes].
      labels: int [batch].
      embedding: float [batch, features].
      activations: Tensors [batch, ...].
      task_loss: A scalar.
      weights: The local weights.
      start: The weights that the client began with.
      class_counts: int [classes].
      key: int [2].
      of_models: The logits, or whole `models.Outputs`, that `step.outputs_of` returns
        for each model, by name.

    Returns:
      The step; numbers are float64.
    """

    def floats(value: Any) -> Any:
        return None if value is None else tf.constant(value, tf.float64)

    def outputs(value: Any) -> Any:
        if isinstance(value, forward.Outputs):
            return value
        return forward.Outputs([], floats(value), floats(value), [])

    known = {name: outputs(value) for name, value in (of_models or {}).items()}
    none: Any = None
    return methods_lib.Step(
        network=none,
        outputs=forward.Outputs(
            block_outputs=[floats(logits)],
            embedding=floats(logits if embedding is None else embedding),
            logits=floats(logits),
            activations=[floats(each) for each in activations],
        ),
        labels=None if labels is None else tf.constant(labels, tf.int32),
        task_loss=floats(task_loss),
        weights=[floats(each) for each in weights],
        start=[floats(each) for each in start],
        global_weights=[floats(each) for each in start],
        outputs_of=known.__getitem__,
        class_counts=None if class_counts is None else tf.constant(class_counts),
        key=tf.constant(key, tf.int64),
    )


def build(
    methods: Sequence[method_lib.Method],
    *,
    projector: Optional[str] = None,
    **arguments: Any,
) -> Any:
    """Builds the process of a combination on the small model.

    Args:
      methods: The methods of the combination.
      projector: The model's projector; by default a required one, or none.
      **arguments: Arguments of `training.build_regularized` that replace the defaults.

    Returns:
      The process.
    """
    asked = [projector, *(m.required_settings.get("projector") for m in methods)]
    given: dict[str, Any] = {
        "client_optimizer_fn": training.build_sgd(_RATE),
        "client_weighting": _weighting(methods),
        "client_data": training.WholeClientData(batch_size=4, local_epochs=2),
        "population": training.Population(_CLIENTS, mean_examples=6.0),
        **arguments,
    }
    make = model_fn(next(filter(None, asked), "none"))
    return training.build_regularized(make, list(methods), **given)


def _weighting(methods: Sequence[method_lib.Method]) -> Any:
    kinds = tff.learning.ClientWeighting
    uniform = any(method_lib.UNIFORM_WEIGHTING in m.needs for m in methods)
    return kinds.UNIFORM if uniform else kinds.NUM_EXAMPLES


def train(
    methods: Sequence[method_lib.Method],
    rounds: int = 2,
    *,
    after: Optional[Trained] = None,
    **arguments: Any,
) -> Trained:
    """Trains rounds of three clients.

    Args:
      methods: The methods of the combination.
      rounds: Number of rounds.
      after: The result of earlier rounds, from which to continue.
      **arguments: As for `build`.

    Returns:
      The result after the last round.
    """
    with runtime.running("in_process", clients_in_parallel=1):
        process = build(methods, **arguments)
        data = [client(number) for number in range(_CLIENTS)]
        state = process.initialize() if after is None else after.state
        client_states = None if after is None else after.client_states
        if client_states is None and hasattr(process, "initial_client_state"):
            client_states = [process.initial_client_state(state)] * _CLIENTS
        metrics: Any = {}
        for _ in range(rounds):
            if client_states is None:
                output = process.next(state, data)
            else:
                output = process.next(state, data, client_states)
                client_states = output.client_states
            state, metrics = output.state, output.metrics["client_work"]["train"]
        weights = [np.asarray(w) for w in process.get_model_weights(state).trainable]
    return Trained(weights, state, client_states, dict(metrics))


def assert_pure(method: method_lib.Method) -> None:
    """Checks that a method's hooks are pure functions: called again, they do the same.

    Args:
      method: The method.

    Raises:
      HookError: If a hook gives other numbers, or changes the model's variables.
    """
    build([method], debug_eager=True)


def assert_fedavg(method: method_lib.Method, rounds: int = 2) -> None:
    """Checks that a method trains as FedAvg does, up to rounding.

    Args:
      method: The method, for instance with a strength of 0.
      rounds: Number of rounds to compare.

    Raises:
      AssertionError: If a weight differs; the message says by how much.
    """
    same = {
        "client_weighting": _weighting([method]),
        "projector": method.required_settings.get("projector", "none"),
    }
    _assert_same(
        train([method], rounds).weights,
        train([], rounds, **same).weights,
        f"{method.name} is not FedAvg",
        tolerance=1e-5,
    )


def assert_combinations(
    method: method_lib.Method, names: Sequence[str] = ("fedprox", "man", "scaffold")
) -> None:
    """Checks that a method, combined with others, trains to finite weights.

    Args:
      method: The method.
      names: The other methods; incompatible ones are left out.

    Raises:
      AssertionError: If weights are not finite, clients rejected, or all incompatible.
      HookError: As for `assert_pure`.
    """
    assert_pure(method)
    tried: list[str] = []
    for name in names:
        parts = [*catalogue.build(name, {}), method]
        try:
            checks.check_combination(parts)
        except checks.IncompatibleMethodsError:
            continue
        tried.append(name)
        trained = train(parts, 1)
        if not all(np.isfinite(w).all() for w in trained.weights):
            raise AssertionError(f"{name}+{method.name}: weights are not finite.")
        rejected = trained.metrics["rejected_clients"]
        if rejected:
            raise AssertionError(f"{name}+{method.name}: {rejected} clients rejected.")
    if not tried:
        raise AssertionError(f"{method.name} goes with none of {', '.join(names)}.")


def assert_resumes(method: method_lib.Method) -> None:
    """Checks that two rounds equal one round and one more by a newly built process.

    A method that keeps state outside its memories fails here.

    Args:
      method: The method.

    Raises:
      AssertionError: If a weight differs.
    """
    whole = train([method], 2)
    again = train([method], 1, after=train([method], 1))
    _assert_same(again.weights, whole.weights, f"{method.name} resumed differs")


def _assert_same(
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    what: str,
    tolerance: float = 0.0,
) -> None:
    for i, (one, other) in enumerate(zip(found, expected)):
        apart = np.abs(one - other).max()
        if not apart <= tolerance:
            raise AssertionError(f"{what}: weight {i} differs by up to {apart:.3g}.")
