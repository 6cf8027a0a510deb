"""Declarations of the memories of clients and of the server.

    client_memory = {"s": memories.zeros}
    server_memory = {"s": memories.sent(memories.zeros)}
    server_memory = {"mean": memories.recent(5)}

A memory has a name and a function that makes its first value, a structure of tensors,
from the initial trainable weights. It belongs to its method, even if another method of
the combination uses the same name, unless it is `shared`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from tff_reg.lazy import tf
from tff_reg.methods import contract

Initial = Callable[[Sequence[Any]], Any]


class Declared(NamedTuple):
    """The complete declaration of a memory.

    Attributes:
      initial: Function from the initial trainable weights to the first value.
      is_sent: Whether the server sends the memory to clients.
      is_shared: Whether all methods that declare a shared memory of this name use one
        memory.
    """

    initial: Initial
    is_sent: bool = False
    is_shared: bool = False


Declaration = Union[Initial, Declared]


def zeros(weights: Sequence[Any]) -> list[Any]:
    """Returns zeros with the weights' shapes and data types."""
    return [tf.zeros_like(w) for w in weights]


def initial_weights(weights: Sequence[Any]) -> list[Any]:
    """Returns the trainable weights that training begins with."""
    return list(weights)


def count(weights: Sequence[Any]) -> tf.Tensor:
    """Returns 0, int32, of which a method counts."""
    del weights
    return tf.constant(0)


def sent(memory: Declaration) -> Declared:
    """Declares a server memory that clients receive with the model."""
    return declared(memory)._replace(is_sent=True)


def shared(memory: Declaration) -> Declared:
    """Declares a memory that is shared by all methods which declare it as shared."""
    return declared(memory)._replace(is_shared=True)


@dataclasses.dataclass(frozen=True)
class Recent:
    """The first value of `recent`, and what follows it: the last models' weights.

    A memory has `models`, for each weight [num_models, ...], the newest first, of which
    `count` are there; the others are zeros.
    """

    num_models: int

    def __call__(self, weights: Sequence[Any]) -> collections.OrderedDict[str, Any]:
        models = [tf.zeros([self.num_models, *w.shape], w.dtype) for w in weights]
        return collections.OrderedDict[str, Any](models=models, count=tf.constant(0))

    def added(self, history: Any, weights: Sequence[Any]) -> Any:
        """Returns the history with these weights as the newest, if they are others."""
        pairs = list(zip(weights, history["models"]))
        is_same = tf.reduce_all(
            [tf.reduce_all(tf.equal(w, old[0])) for w, old in pairs]
        )
        is_new = tf.logical_or(tf.equal(history["count"], 0), tf.logical_not(is_same))
        models = [
            tf.where(is_new, tf.concat([[w], old], axis=0)[: self.num_models], old)
            for w, old in pairs
        ]
        count = history["count"] + tf.cast(is_new, tf.int32)
        found = dict(models=models, count=tf.minimum(count, self.num_models))
        return collections.OrderedDict[str, Any](found)

    def mean(self, history: Any, weights: Sequence[Any]) -> list[Any]:
        """Returns the mean of the models, these weights among them."""
        new = self.added(history, weights)
        total = [m[0] + tf.reduce_sum(m[1:], axis=0) for m in new["models"]]
        return [t / tf.cast(new["count"], t.dtype) for t in total]


def recent(num_models: int) -> Declared:
    """Declares a server memory whose value at clients is the mean of the last models.

    The global models' trainable weights, this round's included; rounds that left the
    model as it was are skipped. All methods with such a memory of one name share it.
    """
    return Declared(Recent(num_models), is_sent=True, is_shared=True)


def declared(memory: Declaration) -> Declared:
    """Returns a declaration as `Declared`."""
    return memory if isinstance(memory, Declared) else Declared(memory)


def keys(method: str, declarations: Mapping[str, Declaration]) -> dict[str, str]:
    """Returns the keys of a method's memories, unique within a combination."""
    return {
        name: name if declared(memory).is_shared else f"{method}/{name}"
        for name, memory in declarations.items()
    }


def own(
    method: str, declarations: Mapping[str, Declaration], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns one method's memories by name, from all memories by key."""
    found = keys(method, declarations)
    there = {name: key for name, key in found.items() if key in values}
    return _Memories({name: frozen(values[key]) for name, key in there.items()})


class _Memories(Mapping[str, Any]):
    """A method's memories by name, which a hook reads; it returns the new ones."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise contract.NeedError(
                f"there is no memory {name!r} here, only {', '.join(self) or 'none'}. A"
                " method reads its own, and at clients those of the server's that are"
                " declared by methods.sent(...)."
            )
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def frozen(structure: Any) -> Any:
    """Returns a memory with tuples for lists: a hook returns values, and edits none."""
    if contract.is_a(structure, Mapping):
        return {name: frozen(value) for name, value in structure.items()}
    if contract.is_a(structure, (list, tuple)) and not hasattr(structure, "_fields"):
        return tuple(map(frozen, structure))
    return structure


def packed_as(old: Any, new: Any) -> Any:
    """Returns a memory's new value in the containers of its old one."""
    return tf.nest.pack_sequence_as(old, tf.nest.flatten(new))


def initial(method: Any, attribute: str, weights: Sequence[Any]) -> dict[str, Any]:
    """Computes the first values of a method's memories."""
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


def first(
    methods: Sequence[Any], attribute: str, weights: Sequence[Any]
) -> collections.OrderedDict[str, Any]:
    """Computes the first values of all methods' memories, by key."""
    found: dict[str, Any] = collections.OrderedDict()
    for method in methods:
        found.update(initial(method, attribute, weights))
    return found


def leaving(
    methods: Sequence[Any], memory: Mapping[str, Any], weights: Sequence[Any]
) -> collections.OrderedDict[str, Any]:
    """Returns the server's memories that clients receive, by key."""
    found: dict[str, Any] = collections.OrderedDict()
    for key, each in _of_server(methods).items():
        if each.is_sent:
            is_recent, value = isinstance(each.initial, Recent), memory[key]
            found[key] = each.initial.mean(value, weights) if is_recent else value
    return found


def with_recent(
    methods: Sequence[Any], memory: Mapping[str, Any], weights: Sequence[Any]
) -> collections.OrderedDict[str, Any]:
    """Returns the server's memories after a round that began with these weights."""
    new = collections.OrderedDict(memory)
    for key, each in _of_server(methods).items():
        if isinstance(each.initial, Recent):
            new[key] = each.initial.added(memory[key], weights)
    return new


def _of_server(methods: Sequence[Any]) -> dict[str, Any]:
    return {
        key: declared(method.server_memory[name])
        for method in methods
        for name, key in keys(method.name, method.server_memory).items()
    }
