"""A client's work as a record: the program, the server's values, the client's values.

A stage's `Program` and the server's values are the same for all clients of the stage; a
client's own values are its members. A thread of this process can do the work, or a
process on another machine, which receives the program as bytes (`Program.dump`).
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_reg.lazy import tf, tff
from tff_reg.runtime import intrinsics, values
from tff_reg.runtime.interpreter import AtClient, Interpreter
from tff_reg.seam import internals


class ClientError(RuntimeError):
    """Raised if a client's part of a computation fails.

    Attributes:
        client_index: Position of the client in the argument, from 0.
        client_id: The attribute `client_id` of the client's data set, or None.
    """

    def __init__(self, client_index: int, client_id: Optional[str], reason: str):
        name = f" ({client_id})" if client_id is not None else ""
        super().__init__(f"Client {client_index}{name} failed: {reason}")
        self.client_index = client_index
        self.client_id = client_id


# TensorFlow's words, and the name scope of a method's hook that `contract.run` opens.
_WRONG_LABEL = re.compile(r"label value of (-?\d+) which is outside .* \[0, (\d+)\)")
_HOOK = re.compile(r"([\w-]+\.(?:term|change_\w+|correct\w*|keep|begin|start|finish))/")


def reason(error: BaseException) -> str:
    """Returns the type and message of an error, and the method's hook that failed."""
    text = str(error)
    if label := _WRONG_LABEL.search(text):
        return (
            f"a label is {label[1]}, and the model has {label[2]} outputs: number the"
            " classes from 0, and give the model one output for each."
        )
    if isinstance(error, tf.errors.ResourceExhaustedError):
        what = text.partition(" [")[0].partition(";")[0].strip().partition("\n")[0]
        return (
            f"the memory of its device is full ({what}): give a smaller batch_size or"
            " model, fewer clients_in_parallel, or mixed_precision=bfloat16."
        )
    hooks = _HOOK.findall(text)
    whose = f"{hooks[-1]}: " if hooks else ""
    return f"{whose}{type(error).__name__}: {text}"


class Program:
    """The computation at each client of a stage."""

    def __init__(
        self,
        interpreter: Interpreter,
        calls: Sequence[tuple[str, tff.framework.Call]],
        kept: Sequence[str],
        folded: Sequence[Any],
    ):
        self._interpreter = interpreter
        self._calls = list(calls)
        self._kept = list(kept)
        self._folded = list(folded)

    def dump(self) -> bytes:
        """Returns the program as bytes, for `load`."""
        calls = [(name, call.proto.SerializeToString()) for name, call in self._calls]
        folded = [block.proto.SerializeToString() for block in self._folded]
        return pickle.dumps((calls, self._kept, folded))

    @classmethod
    def load(cls, dumped: bytes, interpreter: Interpreter) -> Program:
        """Returns the program that was dumped."""
        block = internals.building_block
        calls, kept, folded = pickle.loads(dumped)
        return cls(
            interpreter,
            [(name, block(proto)) for name, proto in calls],
            kept,
            [block(proto) for proto in folded],
        )

    def run(self, common: dict[str, Any], members: Sequence[Any]) -> list[list[Any]]:
        """Does the work of one client."""
        bindings = {name: _with(value, members) for name, value in common.items()}
        evaluate = self._interpreter.evaluate
        for name, call in self._calls:
            value = _alone(evaluate(call.argument, bindings))
            signature = call.function.type_signature
            at_client = intrinsics.AT_CLIENTS[call.function.uri](value, signature)
            bindings[name] = AtClient(at_client)
        kept = [_alone(bindings[name]) for name in self._kept]
        return [kept, [_alone(evaluate(block, bindings)) for block in self._folded]]


class Cohort:
    """A stage's work at all clients.

    Attributes:
        program: The program.
        common: The values for all clients by name, with marks in the places of the
            client's own values.
    """

    def __init__(
        self, program: Program, bindings: dict[str, Any], argument: Any, count: int
    ):
        self.program = program
        self._at_clients: list[values.ClientValues] = []
        self.common = {name: self._marked(each) for name, each in bindings.items()}
        self._argument = argument
        self._count = count

    def __len__(self) -> int:
        return self._count

    def members(self, index: int) -> list[Any]:
        """Returns the values of client `index`."""
        return [each.members[index] for each in self._at_clients]

    def num_bytes(self, index: int) -> int:
        """Returns the bytes of client `index`'s values, its examples among them."""
        return values.num_bytes(self.members(index))

    def visit(self, index: int) -> list[list[Any]]:
        """Does the work of client `index` in this thread; see `Program.run`."""
        with self.naming(index):
            return self.program.run(self.common, self.members(index))

    @contextlib.contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Turns errors of the `with` body into ClientErrors of client `index`."""
        try:
            yield
        except Exception as error:
            failed = self.failure(index, reason(error))
            raise failed from error

    def failure(self, index: int, reason: str) -> ClientError:
        """Returns the ClientError of client `index`."""
        return ClientError(index, values.client_id(self._argument, index), reason)

    def _marked(self, value: Any) -> Any:
        """Returns `value` with a mark in place of each part that is at clients."""
        if isinstance(value, values.ClientValues):
            self._at_clients.append(value)
            return _Mark(len(self._at_clients) - 1)
        if isinstance(value, list):
            marked = [self._marked(element) for element in value]
            if any(isinstance(element, (_Mark, _Marked)) for element in marked):
                return _Marked(marked)
        return value


class _Mark:
    """Stands for one of a client's members."""

    def __init__(self, position: int):
        self.position = position


class _Marked(list):
    """A structure with marks in it."""


def _with(value: Any, members: Sequence[Any]) -> Any:
    """Returns `value` with the members in place of their marks."""
    if isinstance(value, _Mark):
        return AtClient(members[value.position])
    if isinstance(value, _Marked):
        return [_with(element, members) for element in value]
    return value


def _alone(value: Any) -> Any:
    """Returns a value with the content of each `AtClient` in its place."""
    if isinstance(value, AtClient):
        return value.value
    if isinstance(value, list):
        return [_alone(element) for element in value]
    return value
