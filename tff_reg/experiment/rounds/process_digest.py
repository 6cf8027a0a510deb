"""The digest of a learning process's computations.

It covers `process.next`: its types, its structure, and every operation of its
TensorFlow graphs with attributes and constants, such as batch sizes and local epochs;
and the hyperparameters of the initial state, such as learning rates. Names are replaced
by their order of appearance, since TensorFlow and TFF number them by what was traced
before: the same code has the same digest in another Python process. The digest does not
cover seeds and weights that are drawn from them. It covers the weights of
`models.from_keras` if they are a client's initial state (MOON), and differs between
versions of TensorFlow and TFF.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from tff_reg.lazy import np, tf, tff, tree
from tff_reg.training import schedules

# Its name in `config.json`; the value is None if the settings determine the process.
NAME = "digest_of_process"
# Attributes for names, seeds and execution; those that begin with `_` are ignored, too.
_IGNORED = ("config", "config_proto", "container", "debug_name", "metadata")
_IGNORED += ("seed", "seed2", "shared_name")
# Types of messages that contain the names of a computation's values.
_SYMBOLS = ("Reference", "Local", "Lambda")


def of(process: Any, state: Any, *, but_rates: bool = False) -> Optional[str]:
    """Computes the digest of a process.

    Args:
      process: The process.
      state: Its state.
      but_rates: Whether to leave out the rates of a listed schedule, which grow with
        the number of rounds; for a run whose settings have them.

    Returns:
      The digest; None if `next` is not a TFF computation.
    """
    computation = getattr(process, "next", None)
    if not isinstance(computation, tff.framework.ConcreteComputation):
        return None
    symbols: dict[str, int] = {}

    def text(kind: str, value: str) -> str:
        is_symbol = kind in _SYMBOLS
        return str(symbols.setdefault(value, len(symbols))) if is_symbol else value

    parts = [computation, getattr(process, "initial_client_state", None)]
    serialized = [
        tff.framework.serialize_computation(each)
        for each in parts
        if isinstance(each, tff.framework.ConcreteComputation)
    ]
    get_hparams = getattr(process, "get_hparams", lambda state: ())
    leaves = [
        (path, np.asarray(leaf).tolist())
        for path, leaf in tree.flatten_with_path(get_hparams(state))
    ]
    left_out = schedules.LISTED if but_rates else None
    digests = [_of_message(each, text, left_out) for each in serialized]
    return _hashed([*digests, *leaves])


def _hashed(parts: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()


def _of_message(
    message: Any, text: Callable[[str, str], str], left_out: Optional[str] = None
) -> str:
    """Computes the digest of a protocol buffer.

    Args:
      message: The protocol buffer.
      text: Function of a message's type and a string in it; returns a string that does
        not depend on names.
      left_out: Text in the names of constants whose values are left out.
    """
    kind = message.DESCRIPTOR.name
    if kind == "TensorFlow":
        return _of_graph(message, left_out)
    parts = []
    for field, value in message.ListFields():
        is_message = hasattr(value, "ListFields")
        values: Any = value
        if is_message or isinstance(value, (str, bytes, int, float)):
            values = [value]
        for each in values:
            if isinstance(each, str):
                parts.append((field.name, text(kind, each)))
            elif hasattr(each, "ListFields"):
                parts.append((field.name, _of_message(each, text, left_out)))
            else:
                parts.append((field.name, each))
    return _hashed(parts)


def _of_graph(message: Any, left_out: Optional[str]) -> str:
    """Computes the digest of TFF's message `TensorFlow`."""
    graph = tf.compat.v1.GraphDef()
    message.graph_def.Unpack(graph)
    functions = {each.signature.name: each for each in graph.library.function}

    @functools.cache
    def of_function(name: str) -> str:
        signature, results = functions[name].signature, functions[name].ret
        nodes = functions[name].node_def
        places = _places([*signature.input_arg, *nodes])
        return _hashed(
            [
                *(of_argument(each) for each in signature.input_arg),
                *of_nodes(nodes, places),
                *(
                    (of_argument(each), _placed(results[each.name], places))
                    for each in signature.output_arg
                ),
            ]
        )

    def of_argument(argument: Any) -> tuple:
        return argument.type, argument.type_attr, argument.number_attr

    def of_nodes(nodes: Iterable[Any], places: Mapping[str, int]) -> list[tuple]:
        free = {name.partition(":")[0] for each in nodes for name in _seeds(each)}
        if left_out is not None:
            free.update(each.name for each in nodes if left_out in each.name)
        return [
            (
                of_function(node.op) if node.op in functions else node.op,
                [_placed(each, places) for each in node.input],
                [
                    (name, of_attribute(node.attr[name]))
                    for name in sorted(node.attr)
                    if name not in _IGNORED and not name.startswith("_")
                    if name != "value" or node.name not in free
                ],
            )
            for node in nodes
        ]

    def of_attribute(value: Any) -> Any:
        called = value.list.func or ([value.func] if value.HasField("func") else [])
        if all(each.name in functions for each in called) and called:
            return [of_function(each.name) for each in called]
        return value.SerializeToString(deterministic=True)

    places = _places(graph.node)
    bound = [
        _of_message(getattr(message, name), lambda _, value: _placed(value, places))
        for name in ("parameter", "result")
        if message.HasField(name)
    ]
    return _hashed([*of_nodes(graph.node, places), *bound])


def _seeds(node: Any) -> Iterable[str]:
    """The inputs of a random operation that are its seed, or its key and counter."""
    op = node.op
    if not op.startswith("StatelessRandom"):
        return ()
    if op.startswith("StatelessRandomGetKeyCounter"):
        return node.input[:1]
    has_counter = op.endswith(("V2", "V3")) and op != "StatelessRandomGammaV2"
    return node.input[1:3] if has_counter else node.input[1:2]


def _places(nodes: Iterable[Any]) -> dict[str, int]:
    return {node.name: number for number, node in enumerate(nodes)}


def _placed(text: str, places: Mapping[str, int]) -> str:
    """Replaces the operation in a tensor's name, `add:0` or `^add`, by its place."""
    name, colon, rest = text.removeprefix("^").partition(":")
    before = "^" if text.startswith("^") else ""
    return f"{before}{places[name]}{colon}{rest}"
