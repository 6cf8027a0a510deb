"""Division of a Keras model into blocks, at tensors that every path passes."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.models import keras_calls, keras_trial
from tff_reg.models.keras_network import Part
from tff_reg.seam import keras_internals

# Maximum number of blocks if the user names none; the papers' networks have no more.
_MOST_BLOCKS = 6


def in_order(spec: Any) -> Any:
    """Returns specs with sorted `OrderedDict`s and tuples, as TFF needs them."""
    if isinstance(spec, dict):
        pairs = ((name, in_order(spec[name])) for name in sorted(spec))
        return collections.OrderedDict(pairs)
    if isinstance(spec, (list, tuple)):
        return tuple(in_order(each) for each in spec)
    return spec


def example(spec: Any, make: Callable[..., Any]) -> Any:
    """Returns an input of two examples; axes of unknown size get size 32."""

    def one(s: tf.TensorSpec):
        shape = [2, *(32 if n is None else n for n in s.shape[1:])]
        return tf.constant(make(shape), s.dtype)

    return tf.nest.map_structure(one, spec)


def input_of(model: Any) -> Any:
    """Returns the symbolic input of a model with a graph; unwraps a list of one."""
    # In Keras 3 a Sequential's `input` is that of a layer.
    is_sequential = "Sequential" in {kind.__name__ for kind in type(model).__mro__}
    found = model.inputs if is_sequential else model.input
    is_one = isinstance(found, (list, tuple)) and len(found) == 1
    return found[0] if is_one else found


def parts_of(
    model: Any,
    trial: keras_trial.Trial,
    head: Any,
    last: Any,
    names: Optional[Sequence[str]],
    spec: Any,
    keras: Any,
) -> tuple[list[Part], list[Any]]:
    """Divides a model into blocks.

    Returns the blocks before the head, and the layers at which all but the last end.
    """
    has_graph = bool(getattr(model, "inputs", None)) and last is not None
    if names is not None and not has_graph:
        why = "does not end in logits" if last is None else "shows no graph"
        raise ValueError(
            f"The model {model.name!r} {why}, so that it has no blocks to be named."
        )
    whole = [Part("body", model), Part("classifier", None)]
    if head is None:
        whole = [Part("whole", model)]
    ends = _ends_of(model, trial, last, names) if has_graph else []
    nodes = keras_internals.nodes_of(model) if ends else {}
    if not ends or (head is not None and id(head) not in nodes):
        return whole, []  # The head may be inside of another layer.
    tensors = [_only(nodes[id(layer)], "output") for layer in ends]
    goal = model.outputs[0] if head is None else _only(nodes[id(head)], "input")
    part_names = names and [layer.name for layer in ends]
    part_names = part_names or [f"block{n}" for n, _ in enumerate(ends, start=1)]
    parts = [
        Part(name, None if start is end else keras.Model(start, end))
        for name, start, end in zip(
            [*part_names, "classifier"], [input_of(model), *tensors], [*tensors, goal]
        )
    ]
    if _computes_the_same(model, parts, head, spec):
        return parts, ends
    if names is not None:
        raise ValueError(
            f"The blocks of {model.name!r}, one after another, do not compute what"
            " the model does (a mask that travels with a tensor, for example):"
            " leave blocks out."
        )
    return whole, []


def _ends_of(
    model: Any, trial: keras_trial.Trial, last: Any, names: Optional[Sequence[str]]
) -> list[Any]:
    """Returns the layers that end blocks: the named layers, or chosen ones."""
    cuts = _cuts(model, trial, last)
    if names is None:
        return _chosen(model, trial, cuts)
    known = [layer.name for layer in cuts]
    lasts = (getattr(last, "name", None), model.layers[-1].name)
    wanted = [name for name in names if name not in lasts]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ValueError(
            f"No block of {model.name!r} can end at {unknown or list(names)}."
            " Blocks end where one layer's output carries everything: after"
            f" {', '.join(known)}."
        )
    return [layer for layer in cuts if layer.name in wanted]


def _only(node: Any, kind: str) -> Any:
    """Returns the single symbolic tensor of a node's 'input' or 'output'."""
    return tf.nest.flatten(getattr(node, f"{kind}_tensors"))[0]


def _cuts(model: Any, trial: keras_trial.Trial, last: Any) -> list[Any]:
    """Returns the layers before `last` whose output every path passes, in order."""
    calls = _own_calls(model, trial)
    entries = {x.op for x in trial.features}
    layers = [each.layer for each in trial.call.layer_calls]
    cuts = []
    for each in calls:
        if each.layer is last:
            break
        is_once = sum(layer is each.layer for layer in layers) == 1
        if not is_once or not tf.is_tensor(each.output):
            continue
        cut, end = each.output.op, trial.call.output.op
        is_inside = cut is not end and cut not in entries
        if is_inside and not keras_trial.depends(end, entries, without=cut):
            cuts.append(each.layer)
    return cuts


def _own_calls(model: Any, trial: keras_trial.Trial) -> list[keras_calls.LayerCall]:
    """Returns the calls of a model's own layers, without those of nested layers."""
    own = {id(layer) for layer in model.layers}
    return [c for c in trial.call.layer_calls if id(c.layer) in own]


def _chosen(model: Any, trial: keras_trial.Trial, cuts: Sequence[Any]) -> list[Any]:
    """Chooses the layers that end blocks, evenly, each before a layer with weights."""

    def rank(layer: Any) -> int:
        return max((len(v.shape) for v in layer.weights), default=0)

    layers = [each.layer for each in _own_calls(model, trial)]
    ends = []
    has_kernel = False
    for layer, following in zip(layers, layers[1:]):
        has_kernel = has_kernel or rank(layer) > 1
        # A norm belongs to the layer before it.
        starts = rank(following) > 1 or (rank(following) == 1 and rank(layer) < 2)
        if has_kernel and starts and any(layer is cut for cut in cuts):
            ends.append(layer)
            has_kernel = False
    most = _MOST_BLOCKS - 1
    if len(ends) > most:
        at = np.linspace(0, len(ends) - 1, most + 1).round().astype(int)[1:]
        ends = [ends[n] for n in at]
    return ends


@contextlib.contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Restores the values of a model's variables after the context."""
    held = [(v, np.array(v)) for v in (model.variables if model.built else ())]
    yield
    for variable, value in held:
        variable.assign(value)


def ends_in(head: Any, call: keras_calls.Call, gives_probabilities: bool) -> bool:
    """Whether a traced call returns a `Dense` layer's logits, or their softmax."""
    op, softmaxes = call.output.op, 0
    while op.type in ("Identity", "Reshape", "Softmax"):
        if op.type == "Softmax":
            softmaxes += 1
            if op.outputs[0].shape[1:] != [head.units]:
                return False
        op = op.inputs[0].op
    if head.bias is not None and op.type in ("Add", "AddV2", "BiasAdd"):
        op = op.inputs[0].op
    given = keras_calls.input_of(head, call)
    is_product = op.type == "MatMul" and op.inputs[0].name == given.name
    return is_product and softmaxes == gives_probabilities


def _computes_the_same(model: Any, parts: Any, head: Any, spec: Any) -> bool:
    """Whether the chained parts compute the head's input, or the output if no head."""
    x, values, whole = example_call(model, spec)
    for part in (part.model for part in parts if part.model is not None):
        x = keras_calls.call(part, x, values, whole=model, training=False).output
    wanted = whole.output if head is None else keras_calls.input_of(head, whole)
    wanted = np.asarray(wanted)
    size = 1 + np.max(np.abs(wanted))
    return np.allclose(x, wanted, rtol=0, atol=1e-4 * size)


def example_call(model: Any, spec: Any) -> tuple[Any, Any, keras_calls.Call]:
    """Returns random examples, the model's variables, and its call on the examples."""
    generator = np.random.default_rng(0)
    x = example(spec, lambda shape: generator.uniform(0, 2, shape))
    with unchanged(model):
        values = [(v, v) for v in model.variables]
        call = keras_calls.call(model, x, values, whole=model, training=False)
    return x, values, call
