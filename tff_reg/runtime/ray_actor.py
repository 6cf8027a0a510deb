"""A Ray actor that does clients' work, one client at a time.

Between two clients it keeps programs with their TensorFlow functions, and the values
for all clients of a stage.
"""

from __future__ import annotations

import collections
import os
import socket
import threading
from typing import Any, NamedTuple, Optional

import ray

import tff_reg
from tff_reg import lazy, quiet, scratch
from tff_reg.lazy import tf
from tff_reg.runtime import devices

interpreter = lazy.module("tff_reg.runtime.interpreter")
parcels = lazy.module("tff_reg.runtime.parcels")
visits = lazy.module("tff_reg.runtime.visits")

# The number of programs that are kept: a learning process has a handful.
_PROGRAMS = 32


class Hello(NamedTuple):
    """An actor's description of itself.

    Attributes:
        host: Name of the machine.
        node: Ray's id of the node.
        pid: Id of the process.
        device: Device of its clients, such as "GPU:0".
        gpus: Numbers of the node's GPUs that it uses, wholly or in part.
        versions: The versions that driver and actor must have in common.
    """

    host: str
    node: str
    pid: int
    device: str
    gpus: tuple[str, ...]
    versions: str


def versions() -> str:
    """Returns the versions that driver and actors must have in common."""
    return f"tff_reg {tff_reg.__version__}, TensorFlow {tf.__version__}"


class Actor:
    """A Ray actor that does the work of clients."""

    def __init__(
        self,
        threads: int,
        operations: int,
        uses_gpu: bool,
        deterministic: bool,
        tf32: bool,
    ):
        quiet.silence()
        scratch.use_own_folder()
        # It imports TFF: after the two lines above, and before `hello` answers.
        self._interpreter = interpreter.Interpreter
        if not uses_gpu:
            tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_inter_op_parallelism_threads(operations)
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._device = devices.resolve(None, False)[0]
        devices.set_arithmetic(deterministic, tf32)
        self._programs: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._common: tuple[Optional[int], Any] = (None, {})

    def hello(self) -> Hello:
        """Returns the actor's description, once everything is imported."""
        context = ray.get_runtime_context()
        return Hello(
            socket.gethostname(),
            context.get_node_id(),
            os.getpid(),
            self._device,
            tuple(map(str, ray.get_gpu_ids())),
            versions(),
        )

    def leave(self) -> None:
        """Removes the actor's folder before it is killed."""
        scratch.remove()

    def visit(
        self,
        program: tuple[int, list[Any]],
        common: tuple[int, list[Any]],
        members: list[Any],
        *contents: Any,
    ) -> tuple[Optional[str], Any]:
        """Does the work of one client; `contents` are its examples, or load them."""
        # Errors are returned: Ray cannot pass on every exception.
        try:
            with tf.device("CPU:0"):
                given = parcels.unpack(members, [_examples(each) for each in contents])
                everywhere = self._everywhere(*common)
            with tf.device(self._device):
                result = self._program(*program).run(everywhere, given)
            return None, parcels.pack(result)
        except Exception as error:
            return visits.reason(error), None

    def _program(self, number: int, reference: list):
        if number not in self._programs:
            self._programs[number] = visits.Program.load(
                ray.get(reference[0]),
                self._interpreter(threading.RLock(), lambda: None),
            )
            while len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(number)
        return self._programs[number]

    def _everywhere(self, number: int, reference: list) -> dict[str, Any]:
        if self._common[0] != number:
            self._common = (None, {})  # Before the next: it may be large.
            packed: Any = ray.get(reference[0])
            unpacked = {name: parcels.unpack(value) for name, value in packed.items()}
            self._common = (number, unpacked)
        return self._common[1]


def _examples(content: Any) -> Any:
    if isinstance(content, parcels.Graph):
        return content
    found = content() if callable(content) else content
    return tf.nest.map_structure(tf.constant, found)
