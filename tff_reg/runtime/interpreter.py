"""An interpreter of TFF's building blocks, given the values of their names."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tff_reg.lazy import tf, tff
from tff_reg.runtime import intrinsics, values
from tff_reg.runtime.tensorflow_function import TensorFlowFunction


class AtClient:
    """A value placed at the current client."""

    def __init__(self, value: Any):
        self.value = value


class Interpreter:
    """Evaluates blocks, and caches the functions that it builds for them."""

    def __init__(self, lock: threading.RLock, on_build: Callable[[], None]):
        self._lock = lock
        self._on_build = on_build
        # By the block's id. The block is kept, so that its id is not used again.
        self._functions: dict[int, tuple[Any, TensorFlowFunction]] = {}

    def evaluate(self, block: Any, bindings: dict[str, Any]) -> Any:
        """Returns the internal value of a building block."""
        if isinstance(block, tff.framework.Reference):
            return bindings[block.name]
        if isinstance(block, tff.framework.Selection):
            return _select(self.evaluate(block.source, bindings), block.as_index())
        if isinstance(block, tff.framework.Struct):
            return [self.evaluate(element, bindings) for element in block]
        if isinstance(block, tff.framework.CompiledComputation):
            return self._function(block)
        if isinstance(block, tff.framework.Lambda):
            return _Closure(self, block, bindings)
        if isinstance(block, tff.framework.Block):
            bindings = dict(bindings)
            for name, value in block.locals:
                bindings[name] = self.evaluate(value, bindings)
            return self.evaluate(block.result, bindings)
        if isinstance(block, tff.framework.Call):
            return self.call(block, bindings)
        if isinstance(block, tff.framework.Literal):
            return tf.constant(block.value, values.tf_dtype(block.type_signature))
        raise NotImplementedError(
            f"The in_process runtime cannot evaluate a {type(block).__name__}: "
            f"{block.compact_representation()}."
        )

    def call(self, call: tff.framework.Call, bindings: dict[str, Any]) -> Any:
        """Returns the result of a call that is made once, not at every client."""
        argument = None
        if call.argument is not None:
            argument = self.evaluate(call.argument, bindings)
        if isinstance(call.function, tff.framework.Intrinsic):
            uri = call.function.uri
            if uri not in intrinsics.ONCE:
                raise NotImplementedError(
                    f"The in_process runtime does not know TFF's intrinsic {uri!r}."
                )
            return intrinsics.ONCE[uri](argument, call.function.type_signature)
        return self.evaluate(call.function, bindings)(argument)

    def _function(self, block) -> TensorFlowFunction:
        found = self._functions.get(id(block))
        if found is None:
            with self._lock:
                found = self._functions.get(id(block))
                if found is None:
                    function = TensorFlowFunction(block, self._lock, self._on_build)
                    found = self._functions[id(block)] = (block, function)
        return found[1]


class _Closure:
    """A lambda of the computation, with the values of its free names."""

    def __init__(
        self, interpreter: Interpreter, block: tff.framework.Lambda, bindings: dict
    ):
        self._interpreter = interpreter
        self._block = block
        self._bindings = bindings

    def __call__(self, argument: Any) -> Any:
        bindings = dict(self._bindings)
        if self._block.parameter_name is not None:
            bindings[self._block.parameter_name] = argument
        return self._interpreter.evaluate(self._block.result, bindings)


def _select(value: Any, index: int) -> Any:
    """Returns element `index` of a structure, which may be placed at clients."""
    if isinstance(value, AtClient):
        return AtClient(value.value[index])
    if isinstance(value, values.ClientValues):
        return values.ClientValues([member[index] for member in value.members])
    return value[index]
