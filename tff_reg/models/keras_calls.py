"""Calls of a Keras model with this package's variables in place of its own.

For Keras 3 and Keras 2 (`tf_keras`, and the Keras of TensorFlow 2.14). The model and
its own variables do not change: Keras 3 computes in a `StatelessScope`; a Keras 2 model
refers to our variables during the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg import seam
from tff_reg.seam import keras_internals as inner

_NON_LINEAR_LAYERS = ("ReLU", "LeakyReLU", "PReLU", "ELU", "ThresholdedReLU", "Softmax")


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a layer.

    Attributes:
      layer: The layer.
      inputs: All arguments of the call, tensors and others, flattened.
      output: The output.
    """

    layer: Any
    inputs: Sequence[Any]
    output: Any


class Activation(NamedTuple):
    """The output of one call of a non-linearity.

    Attributes:
      inside: The layers whose calls compute it, the outermost first.
      output: The output.
      position: The number of layers' calls that had ended before.
      given: The input; None for a recurrent layer.
    """

    inside: Sequence[Any]
    output: tf.Tensor
    position: int
    given: Optional[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Call:
    """The result of a call of a model.

    Attributes:
      output: The model's output, a tensor or a structure of them.
      layer_calls: The calls of the layers inside, in the order in which they ended.
      activations: The outputs of the non-linearities, in the same order.
      losses: The model's own scalar losses: of weights, of activities, `add_loss`.
      new_values: The new value of each given variable, in order; None for a variable
        that does not change, and for all in Keras 2, which assigns to the variables.
    """

    output: Any
    layer_calls: Sequence[LayerCall]
    activations: Sequence[Activation]
    losses: Sequence[tf.Tensor]
    new_values: Sequence[Optional[tf.Tensor]]


def is_keras_3(layer: Any) -> bool:
    """Whether an object is a layer or model of Keras 3."""
    known = getattr(sys.modules.get("keras"), "Layer", None)
    return known is not None and isinstance(layer, known)


def is_keras_3_variable(variable: Any) -> bool:
    """Whether an object is a variable of Keras 3, whose `value` is TensorFlow's."""
    known = getattr(sys.modules.get("keras"), "Variable", None)
    return known is not None and isinstance(variable, known)


def is_keras_2(layer: Any) -> bool:
    """Whether an object is a layer or model of Keras 2."""
    # A library that is not imported has no layers.
    library = sys.modules.get("tf_keras", sys.modules.get("keras"))
    if library is None or is_keras_3(layer):
        return False
    return isinstance(layer, library.layers.Layer)


def keras_of(model: Any) -> Any:
    """Returns the Keras module that a model belongs to."""
    return sys.modules["keras"] if is_keras_3(model) else seam.keras()


def seeds_of(model: Any) -> list[Any]:
    """Returns the states, integers [2], of a Keras 3 model's random generators."""
    generators = [
        generator
        for layer in inner.layers_of(model)
        for generator in inner.seed_generators(layer)
    ]
    return list({id(g.state): g.state for g in generators}.values())


def is_random(model: Any) -> bool:
    """Whether Keras's own layers draw random numbers in a training pass."""
    if is_keras_3(model):
        return bool(seeds_of(model))
    return any(inner.GENERATOR in vars(layer) for layer in inner.layers_of(model))


def call(
    model: Any,
    x: Any,
    values: Sequence[tuple[Any, Any]],
    *,
    whole: Any,
    training: bool,
    key: Optional[tf.Tensor] = None,
) -> Call:
    """Calls a model, or a part of the model `whole`.

    `values` are pairs of a variable of the model and the value in its place; a Keras 2
    model assigns to values that are variables. `key`, int64 [2], is the key of all
    random draws in training; None draws a key.
    """
    layers = list({id(v): v for v in [*inner.layers_of(whole), model]}.values())
    layer_calls: list[LayerCall] = []
    activations: list[Activation] = []
    run = _call_keras_3 if is_keras_3(model) else _call_keras_2
    with _as_numpy(layers), _recorded(layers, layer_calls, activations):
        output, losses, new_values = run(model, whole, x, values, training, key)
    return Call(output, layer_calls, activations, losses, new_values)


def is_recurrent(layer: Any) -> bool:
    """Whether a layer runs a cell in a loop."""
    return hasattr(getattr(layer, "cell", None), "state_size")


def is_repeated(layer: Any) -> bool:
    """Whether a layer, such as TimeDistributed, calls its inner layer once per step."""
    return "TimeDistributed" in {kind.__name__ for kind in type(layer).__mro__}


def _is_linear(layer: Any) -> bool:
    return getattr(layer.activation, "__name__", "") == "linear"


def _non_linear_layers(layers: Sequence[Any]) -> list[Any]:
    """Returns the layers and functions that apply an activation, such as a ReLU."""
    given = [getattr(layer, "activation", None) for layer in layers]
    in_attention = [id(inner.softmax_of(layer)) for layer in layers]

    def is_one(layer: Any) -> bool:
        if is_recurrent(layer):
            return not hasattr(layer, "activation") or not _is_linear(layer)
        kinds = {kind.__name__ for kind in type(layer).__mro__}
        is_known = not kinds.isdisjoint(_NON_LINEAR_LAYERS)
        is_own = any(layer is f for f in given) and not hasattr(layer, "activation")
        return (is_known and id(layer) not in in_attention) or is_own

    functions = dict(each for layer in layers for each in inner.functions_of(layer))
    known = [*dir(keras_of(layers[0]).activations), *inner.CALLED_FUNCTIONS]
    names = {name.replace("_", "") for name in known}
    return [
        *(layer for layer in layers if is_one(layer)),
        *(f for f, name in functions.items() if name.replace("_", "").lower() in names),
    ]


def layer_that_gave(tensor: Any, call: Call) -> Any:
    """Returns the innermost layer whose output is `tensor`, or None."""
    return next((c.layer for c in call.layer_calls if c.output is tensor), None)


def output_of(layer: Any, call: Call) -> tf.Tensor:
    """Returns the output of a layer's first call."""
    return next(c.output for c in call.layer_calls if c.layer is layer)


def input_of(layer: Any, call: Call) -> tf.Tensor:
    """Returns the first argument of a layer's first call."""
    return next(c.inputs[0] for c in call.layer_calls if c.layer is layer)


def batched_spec(tensor: Any) -> tf.TensorSpec:
    """Returns a tensor's spec with an unknown size of its first axis, the batch."""
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def name_of(variable: Any) -> str:
    """Returns a variable's name with its layer's name, such as 'dense/kernel'."""
    return getattr(variable, "path", variable.name).split(":")[0]


def names_of(variables: Sequence[Any]) -> list[str]:
    """Returns the variables' names, made unique with '_1', '_2' and so on."""
    names: dict[str, None] = {}
    for variable in variables:
        name = name_of(variable)
        numbered = (f"{name}_{n}" for n in itertools.count(1))
        names[next(n for n in itertools.chain([name], numbered) if n not in names)] = (
            None
        )
    return list(names)


def _key_of(key: Optional[tf.Tensor], number: int, training: bool) -> tf.Tensor:
    """Returns the key of random source `number`; in evaluation, a constant key."""
    if not training:
        key = tf.zeros([2], tf.int64)
    elif key is None:
        key = tf.random.uniform([2], maxval=2**62, dtype=tf.int64)
    return tf.random.experimental.stateless_fold_in(key, number)


def _call_keras_3(
    model: Any, whole: Any, x: Any, values: Any, training: bool, key: Any
) -> Any:
    mapping = [(variable, tf.convert_to_tensor(value)) for variable, value in values]
    for number, seed in enumerate(seeds_of(whole)):
        own = _key_of(key, number, training)
        mapping.append((seed, tf.cast(own, seed.dtype)))
    with keras_of(model).StatelessScope(mapping, collect_losses=True) as scope:
        add_update = scope.add_update

        def assign(update: Any):
            """Assigns like a variable: no gradient passes through the new value."""
            variable, value = update
            value = tf.stop_gradient(value)
            if variable.trainable:
                before = scope.get_current_value(variable)
                value += before - tf.stop_gradient(before)
            add_update((variable, value))

        scope.add_update = assign
        output = model(x, training=training)
        losses = list(model.losses)
    new_values = []
    for variable, given in mapping[: len(values)]:
        value = scope.get_current_value(variable)
        new_values.append(None if value is given else value)
    return output, losses, new_values


def _call_keras_2(
    model: Any, whole: Any, x: Any, values: Any, training: bool, key: Any
) -> Any:
    standing_for = {id(variable): value for variable, value in values}
    with contextlib.ExitStack() as stack:
        for module in {id(m): m for m in (model, *_modules_of(whole))}.values():
            stack.enter_context(_replaced(vars(module), standing_for))
        for number, layer in enumerate(inner.layers_of(whole)):
            # In TFF's graphs, Keras 2 would keep the losses of earlier passes.
            stack.enter_context(_set(vars(layer), inner.LOSSES, []))
            if inner.GENERATOR in vars(layer):
                generator = _KeyedGenerator(_key_of(key, number, training))
                stack.enter_context(_set(vars(layer), inner.GENERATOR, generator))
        output = model(x, training=training)
        losses = list(model.losses)
    return output, losses, [None] * len(values)


def _modules_of(model: Any) -> Iterator[Any]:
    """Yields a Keras 2 model, its layers, and the `tf.Module`s inside them."""
    for module in inner.modules_of(model):
        yield module
        if not is_keras_2(module):  # A layer's `submodules` fail at cached masks.
            yield from module.submodules


class _KeyedGenerator:
    """A keyed substitute for the `RandomGenerator` of a Keras 2 layer."""

    def __init__(self, key: tf.Tensor):
        self._key = key
        self._draws = 0

    def _seed(self) -> tf.Tensor:
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self._key, self._draws)

    make_seed_for_stateless_op = _seed

    def dropout(self, inputs: Any, rate: float, noise_shape: Any = None):
        """As `tf.nn.dropout`."""
        return tf.nn.experimental.stateless_dropout(
            inputs,
            rate,
            seed=self._seed(),
            noise_shape=noise_shape,
        )

    def _draw(self, function: Callable, shape: Any, *args: Any, **options: Any):
        """Calls a stateless random function with a shape and a new seed."""
        given = {n: v for n, v in options.items() if v is not None and n != "nonce"}
        return function(shape, self._seed(), *args, **given)

    random_normal = functools.partialmethod(_draw, tf.random.stateless_normal)
    random_uniform = functools.partialmethod(_draw, tf.random.stateless_uniform)
    truncated_normal = functools.partialmethod(
        _draw, tf.random.stateless_truncated_normal
    )


@contextlib.contextmanager
def _set(container: Any, name: Any, value: Any) -> Iterator[None]:
    """Within the context, sets an item of a dict or list without Keras tracking it."""
    kind: Any = dict if isinstance(container, dict) else list
    is_new = kind is dict and name not in container
    before = None if is_new else container[name]
    kind.__setitem__(container, name, value)
    try:
        yield
    finally:
        if is_new:
            del container[name]
        else:
            kind.__setitem__(container, name, before)


@contextlib.contextmanager
def _recorded(
    layers: Sequence[Any], calls: list[LayerCall], activations: list[Activation]
) -> Iterator[None]:
    """Within the context, appends the calls of layers and of their activations."""
    running: list[Any] = []
    non_linear = _non_linear_layers(layers)

    def keep(layer: Any, output: Any, given: Any) -> None:
        # A recurrent layer may return its states, too.
        output = tf.nest.flatten(output)[0]
        given = None if is_recurrent(layer) else given
        activations.append(Activation((*running, layer), output, len(calls), given))

    def recording(layer: Any, function: Callable[..., Any]):
        is_non_linear = any(layer is each for each in non_linear)

        @functools.wraps(function)
        def record(*args: Any, **kwargs: Any):
            running.append(layer)
            try:
                output = function(*args, **kwargs)
            finally:
                running.pop()
            inputs = tf.nest.flatten([args, kwargs])
            if is_non_linear:
                keep(layer, output, inputs[0])
            calls.append(LayerCall(layer, inputs, output))
            return output

        return record

    def keeping(function: Callable[..., Any], *inside: Any):
        @functools.wraps(function)
        def activate(*args: Any, **kwargs: Any):
            output = function(*args, **kwargs)
            given = tf.nest.flatten([args, kwargs])[0]
            layers = (*running, *inside)
            activations.append(Activation(layers, output, len(calls), given))
            return output

        return activate

    def unseen(function: Callable[..., Any]):
        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any):
            before = len(calls), len(activations)
            mask = function(*args, **kwargs)
            del calls[before[0] :], activations[before[1] :]
            return mask

        return compute

    with contextlib.ExitStack() as stack:
        for layer in layers:
            new = recording(layer, layer.call)
            stack.enter_context(_set(vars(layer), "call", new))
            if is_keras_2(layer):  # A model computes its mask by a second call.
                new = unseen(layer.compute_mask)
                stack.enter_context(_set(vars(layer), "compute_mask", new))
            function = vars(layer).get("activation")
            # Recurrent layers compare their cell's activation with known ones.
            if (
                callable(function)
                and not hasattr(function, "call")
                and not hasattr(layer, "state_size")
                and not _is_linear(layer)
            ):
                new = keeping(function)
                stack.enter_context(_set(vars(layer), "activation", new))
        for each in non_linear:
            if all(each is not layer for layer in layers):  # A Keras 3 function.
                new = keeping(each.call, each)
                stack.enter_context(_set(vars(each), "call", new))
        yield


@contextlib.contextmanager
def _as_numpy(layers: Sequence[Any]) -> Iterator[None]:
    """Within the context, replaces eager tensors by NumPy arrays.

    They are attributes of layers and regularisers; TFF's graphs accept only arrays.
    """
    with contextlib.ExitStack() as stack:
        regularizers = [
            getattr(source, name, None)
            for layer in layers
            for source in (layer, *inner.own_weights(layer))
            for name in ("regularizer", "activity_regularizer")
        ]
        holders = {id(each): each for each in (*layers, *regularizers)}
        for holder in holders.values():
            attributes = getattr(holder, "__dict__", {})
            for name, value in list(attributes.items()):
                if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
                    stack.enter_context(_set(attributes, name, value.numpy()))
        yield


@contextlib.contextmanager
def _replaced(container: Any, standing_for: dict[int, Any]) -> Iterator[None]:
    """Within the context, replaces variables in a dict or list, nested ones too."""
    is_dict = isinstance(container, dict)
    with contextlib.ExitStack() as stack:
        for name, value in list(container.items() if is_dict else enumerate(container)):
            new = _replacement(value, standing_for)
            value = inner.untracked(value)
            if new is not value and not isinstance(container, tuple):
                stack.enter_context(_set(container, name, new))
            if isinstance(value, (dict, list, tuple)) and not inner.is_internal(name):
                stack.enter_context(_replaced(value, standing_for))
        yield


def _replacement(value: Any, standing_for: dict[int, Any]) -> Any:
    value = inner.untracked(value)
    if isinstance(value, tf.Variable):
        return standing_for.get(id(value), value)
    if isinstance(value, functools.partial):  # A weight's regulariser.
        args = [_replacement(each, standing_for) for each in value.args]
        return functools.partial(value.func, *args, **value.keywords)
    if type(value) is tuple:
        new = tuple(_replacement(each, standing_for) for each in value)
        return new if any(n is not v for n, v in zip(new, value)) else value
    return value
