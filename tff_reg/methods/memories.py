"""Declarations of the memories of clients and of the server.

    client_memory = {"s": memories.zeros}
    server_memory = {"s": memories.sent(memories.zeros)}

A memory has a name and a function that makes its first value, a structure of tensors,
from the initial trainable weights. It belongs to its method, even if another method of
the combination uses the same name, unless it is `shared`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from tff_reg.lazy import tf
from tff_reg.methods import contract

Initial = Callable[[Sequence[Any]], Any]


class Declared(NamedTuple):
    """A memory with more than a first value.

    Attributes:
      initial: From the trainable weights to the first value.
      is_sent: Whether the server sends it to clients.
      is_shared: Whether all methods that declare a shared memory of this name have the
        same one.
    """

    initial: Initial
    is_sent: bool = False
    is_shared: bool = False


Declaration = Union[Initial, Declared]


def zeros(weights: Sequence[Any]) -> list[Any]:
    """Zeros in the weights' shapes."""
    return [tf.zeros_like(w) for w in weights]


def initial_weights(weights: Sequence[Any]) -> list[Any]:
    """The trainable weights that training begins with."""
    return list(weights)


def sent(memory: Declaration) -> Declared:
    """A memory of the server that is sent to clients with the model."""
    return declared(memory)._replace(is_sent=True)


def shared(memory: Declaration) -> Declared:
    """A memory that methods share if all of them declare it shared."""
    return declared(memory)._replace(is_shared=True)


def declared(memory: Declaration) -> Declared:
    """A declaration in full."""
    return memory if isinstance(memory, Declared) else Declared(memory)


def keys(method: str, declarations: Mapping[str, Declaration]) -> dict[str, str]:
    """Returns the names of a method's memories among all methods'.

    Args:
      method: The method's name.
      declarations: Its `client_memory` or `server_memory`.

    Returns:
      By its own name `<method>/<memory>`, or its own name again if it is shared.
    """
    return {
        name: name if declared(memory).is_shared else f"{method}/{name}"
        for name, memory in declarations.items()
    }


def own(
    method: str, declarations: Mapping[str, Declaration], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Picks a method's memories from the memories of all, by its own names."""
    found = keys(method, declarations)
    there = {name: key for name, key in found.items() if key in values}
    # Lists that a hook may change.
    return _Own({name: _copied(values[key]) for name, key in there.items()})


class _Own(dict[str, Any]):
    """Memories; a missing one is said plainly."""

    def __missing__(self, name: str) -> Any:
        raise contract.NeedError(
            f"there is no memory {name!r} here, only {', '.join(self) or 'none'}. A"
            " method reads its own, and at clients those of the server's that are"
            " declared by methods.sent(...)."
        )


def _copied(structure: Any) -> Any:
    return tf.nest.pack_sequence_as(structure, tf.nest.flatten(structure))


def initial(method: Any, attribute: str, weights: Sequence[Any]) -> dict[str, Any]:
    """Computes the first values of a method's memories.

    Args:
      method: The method.
      attribute: `client_memory` or `server_memory`.
      weights: The trainable weights that training begins with.

    Returns:
      Structures of tensors, by their names among all methods'.

    Raises:
      HookError: If a declaration is no function, or fails.
    """
    declarations = getattr(method, attribute)
    found: dict[str, Any] = collections.OrderedDict()
    for name, key in keys(method.name, declarations).items():
        function = declared(declarations[name]).initial
        where = f"{attribute} {name!r}"
        if not callable(function):
            why = "must be a function of the initial weights, such as methods.zeros"
            raise contract.HookError(
                f"{method.name}.{where} {why}, not {contract.spec(function)}."
            )
        value = contract.run(method, where, function, list(weights))
        found[key] = tf.nest.map_structure(tf.convert_to_tensor, value)
    return found


def sent_keys(method: str, declarations: Mapping[str, Declaration]) -> list[str]:
    """The names among all methods' of the memories that the server sends."""
    return [
        key
        for name, key in keys(method, declarations).items()
        if declared(declarations[name]).is_sent
    ]
