"""The activations that a call of a Keras model recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_reg.models import block_model, keras_calls


class Activations(Sequence[Any]):
    """The outputs of the non-linearities before the head, each once.

    Reading them raises a MissingCapabilityError if a loop of TensorFlow holds some.
    """

    def __init__(self, call: keras_calls.Call, head: Any, is_whole: bool = False):
        ended = [each.layer for each in call.layer_calls]
        most = ended.index(head) if head in ended else len(ended)
        graph = _graph_of(tf.nest.flatten(call.output)[0])
        found: dict[Any, list[Any]] = {}
        hidden: dict[int, str] = {}
        for number, (inside, output, position, _) in enumerate(call.activations):
            is_in_cell = any(map(keras_calls.is_recurrent, inside[:-1]))
            is_last = is_whole and output is call.output
            if position > most or head in inside or is_in_cell or is_last:
                continue
            layer = inside[-1]
            if _graph_of(output) is not graph or _is_in_loop(output):
                hidden[id(layer)] = layer.name
                continue
            # The steps of a TimeDistributed layer are one activation.
            call_number = -1 if any(map(keras_calls.is_repeated, inside)) else number
            found.setdefault((id(layer), call_number), []).append(output)
        self._hidden = [
            n for i, n in hidden.items() if not any(i == k for k, _ in found)
        ]
        self._found = [a[0] if len(a) == 1 else tf.stack(a, 1) for a in found.values()]

    def _all(self) -> list[Any]:
        if self._hidden:
            raise block_model.MissingCapabilityError(
                f"The layer {self._hidden[0]!r} runs in a loop of TensorFlow, where no"
                " method can read its activations: give the model's input a known"
                " number of steps, or call the layer outside of the loop."
            )
        return self._found

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())


def before(call: keras_calls.Call, output: Any) -> Any:
    """Returns a block's values before its last non-linearity, such as a ReLU.

    Layers without weights, such as pooling, may follow it. Returns `output` itself if a
    layer with weights or with several inputs follows, or no non-linearity is known.
    """
    ended = [n for n, each in enumerate(call.layer_calls) if each.output is output]
    for activation in reversed(call.activations):
        if not ended or activation.position > ended[0]:
            continue
        following = call.layer_calls[activation.position : ended[0] + 1]
        given, around = activation.given, activation.inside
        is_last = all(
            any(each.layer is layer for layer in around)
            or (not each.layer.weights and sum(map(tf.is_tensor, each.inputs)) == 1)
            for each in following
        )
        is_known = tf.is_tensor(given) and _graph_of(given) is _graph_of(output)
        is_once = not any(map(keras_calls.is_repeated, around))
        if is_last and is_known and is_once and not _is_in_loop(given):
            return given
        break
    return output


def _graph_of(tensor: Any) -> Any:
    """Returns a tensor's graph; None for an eager tensor."""
    return None if hasattr(tensor, "numpy") else tensor.graph


def _is_in_loop(tensor: Any) -> bool:
    """Whether a tensor is of the first step that `tf.vectorized_map` traces."""
    return not hasattr(tensor, "numpy") and "/loop_body/" in tensor.name
