"""A traced training pass of a Keras model, to find what it reads and changes."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.models import keras_calls

_DRAWS = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("RandomShuffle", "RandomGamma", "RandomPoissonV2", "Multinomial"),
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A pass in training mode that was traced, not executed.

    Attributes:
      call: The call.
      features: The model's input, flattened.
      variables: The model's weights: first the trainable ones, then the others.
      num_trainable: Number of trainable weights.
      fixed: Variables that are neither weights nor states of random generators.
      changed: The `id`s of the weights that the pass changes.
    """

    call: keras_calls.Call
    features: Sequence[Any]
    variables: Sequence[Any]
    num_trainable: int
    fixed: Sequence[Any]
    changed: frozenset[int]


def run(model: Any, spec: Any) -> Trial:
    """Traces a training pass in a new graph, as TFF does."""
    trained = {id(v): v for v in model.trainable_weights}
    kept = {id(v): v for v in model.non_trainable_weights}
    variables = list({**trained, **kept}.values())
    known = {*map(id, variables), *map(id, keras_calls.seeds_of(model))}
    fixed = [v for v in model.variables if id(v) not in known]
    count = len(model.weights)
    with tf.Graph().as_default():
        ours, others = (
            [
                tf.Variable(tf.zeros(tuple(v.shape), v.dtype), n < len(trained))
                for n, v in enumerate(variables)
            ]
            for _ in range(2)
        )
        try:
            found = _traced(model, spec, [*zip(variables, ours, others)], fixed)
        except Exception as error:
            raise ValueError(
                f"The model {model.name!r} cannot be called in a graph of TensorFlow"
                " with variables that stand for its own:"
                f" {type(error).__name__}: {_reason(error)}"
            ) from error
    if len(model.weights) > count:
        raise ValueError(
            f"The model {model.name!r} makes weights in its first pass in training"
            " mode: make it anew, and call it on a batch with training=True before."
        )
    call, features, gradients, mixes, graph = found
    _check_reads(model, graph, [*ours, *others])
    _check_gradients(model, variables, gradients)
    if mixes:
        raise ValueError(
            f"The model {model.name!r} calls a tf.function, which computes with the"
            " weights of its first call, so that a teacher and its student would be one"
            " network: leave @tf.function out; clients' training is traced anyway."
        )
    _warn_of_draws(model, graph)
    changed = frozenset(id(variables[n]) for n in _changed(graph, call, ours))
    return Trial(call, features, variables, len(trained), fixed, changed)


def _traced(model: Any, spec: Any, triples: Sequence[Any], fixed: Sequence[Any]):
    """Traces a call, and a second call with other variables."""
    found: list[Any] = []

    def called(place: int, *x: Any) -> keras_calls.Call:
        zeros = [(v, tf.zeros(tuple(v.shape), v.dtype)) for v in fixed]
        return keras_calls.call(
            model,
            tf.nest.pack_sequence_as(spec, x),
            [*((each[0], each[place]) for each in triples), *zeros],
            whole=model,
            training=True,
            key=tf.zeros([2], tf.int64),
        )

    def trace(*x: Any):
        trained = [first for _, first, _ in triples if first.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            call = called(1, *x)
            outputs = _trained_outputs(call, x)
        gradients = tape.gradient(outputs, trained)
        graph = tf.compat.v1.get_default_graph()
        ops = graph.get_operations()
        mixes = any(op.type.endswith("PartitionedCall") for op in ops) and _reads(
            graph, called(2, *x).output, [first for _, first, _ in triples]
        )
        found.extend([call, x, gradients, mixes])
        return tf.nest.flatten(call.output)

    function = tf.function(trace, autograph=False)
    graph = function.get_concrete_function(*tf.nest.flatten(spec)).graph
    return *found, graph


def _reads(graph: Any, outputs: Any, variables: Sequence[tf.Variable]) -> bool:
    """Whether tensors of a graph depend on variables outside it."""
    handles = {id(v.handle) for v in variables}
    entries = {
        internal.op for external, internal in graph.captures if id(external) in handles
    }
    tensors = [x for x in tf.nest.flatten(outputs) if tf.is_tensor(x)]
    return any(depends(x.op, entries) for x in tensors)


def depends(
    last: tf.Operation,
    entries: Collection[tf.Operation],
    without: Optional[tf.Operation] = None,
) -> bool:
    """Whether an operation depends on one of `entries`."""
    seen, to_see = {without}, [last]
    while to_see:
        op = to_see.pop()
        if op in seen:
            continue
        if op in entries:
            return True
        seen.add(op)
        to_see += [x.op for x in op.inputs]
    return False


def _trained_outputs(call: keras_calls.Call, features: Sequence[Any]) -> list[Any]:
    """Returns the float outputs, and the losses that depend on the examples.

    The remaining losses are those of regularisers, which use the weights directly.
    """
    entries = {x.op for x in features}
    given = [x for x in tf.nest.flatten(call.output) if tf.is_tensor(x)]
    losses = [x for x in call.losses if tf.is_tensor(x) and not hasattr(x, "numpy")]
    given += [x for x in losses if depends(x.op, entries)]
    return [x for x in given if x.dtype.is_floating]


def _reason(error: Exception) -> str:
    """Returns the first line of an error's message after Keras's introduction."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    lines = [line.strip() for line in text.splitlines()]
    around = "Exception encountered when calling"
    return next((x for x in lines if x and not x.startswith(around)), "")


def _check_reads(model: Any, graph: Any, ours: Sequence[tf.Variable]) -> None:
    """Raises a ValueError if a pass reads variables or tensors that clients lack."""
    held = {id(v) for v in ours}
    names = [v.name for v in graph.variables if id(v) not in held]
    if any("seed_generator_state" in name for name in names):
        raise ValueError(
            f"The model {model.name!r} draws random numbers by keras.random without a"
            " seed: give it seed=self.seeds, where self.seeds is a"
            " keras.random.SeedGenerator that the layer makes."
        )
    if names:
        raise ValueError(
            f"The model {model.name!r} reads the variable {names[0]!r}, which is no"
            " weight of it, and clients have its weights alone: make it a weight of a"
            " layer."
        )
    if any(hasattr(external, "numpy") for external, _ in graph.captures):
        raise ValueError(
            f"The model {model.name!r} reads a lookup table, or a tensor that no layer"
            " has as an attribute, and clients do not have them: look up before"
            " training, and give the model the ids; make tensors NumPy arrays."
        )


def _check_gradients(
    model: Any, trained: Collection[Any], gradients: Sequence[Any]
) -> None:
    """Raises a ValueError if trainable weights have no gradient."""
    names = [
        keras_calls.name_of(variable)
        for variable, gradient in zip(trained, gradients)
        if gradient is None
    ]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise ValueError(
            f"What the model {model.name!r} gives does not depend on the weights"
            f" {', '.join(names[:3])}{more}, or their gradient is lost: set"
            " trainable=False on layers that are not to be trained, and call the"
            " others without tf.recompute_grad or keras.remat."
        )


def _warn_of_draws(model: Any, graph: tf.Graph) -> None:
    draws = [op for op in graph.get_operations() if op.type in _DRAWS]
    if draws:
        warnings.warn(
            f"The model {model.name!r} draws random numbers by {draws[0].name!r}, not"
            " by a layer of Keras or a keras.random.SeedGenerator: they depend on no"
            " seed, and a run cannot be repeated to the bit.",
            stacklevel=4,
        )


def _changed(
    graph: Any, call: keras_calls.Call, ours: Sequence[tf.Variable]
) -> set[int]:
    """Returns the positions of the variables that a pass changes."""
    changed = {n for n, v in enumerate(call.new_values[: len(ours)]) if v is not None}
    inner = {id(external): internal for external, internal in graph.captures}
    handles = {
        id(inner[id(v.handle)]): n for n, v in enumerate(ours) if id(v.handle) in inner
    }
    for op in graph.get_operations():
        if op.type.startswith("Assign") or op.type.endswith("PartitionedCall"):
            changed.update(handles[id(x)] for x in op.inputs if id(x) in handles)
    return changed
