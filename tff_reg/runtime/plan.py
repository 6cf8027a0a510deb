"""The execution plan of a computation: TFF's compiler output, sorted into stages.

A computation in call-dominant form is a list of calls, which need results of earlier
calls. Some calls are evaluated once, some at every client, some fold the clients'
values into one. A stage visits each client once: first it makes the calls that are
evaluated once, then, for each client, all its calls and the folding of their results.
So a client's values are kept only if a later stage needs them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Optional

from tff_reg.lazy import tf, tff
from tff_reg.runtime import intrinsics, values, visits
from tff_reg.runtime.interpreter import Interpreter
from tff_reg.seam import internals


@dataclasses.dataclass
class _Local:
    """One call of the computation: the name of its result, and the callee."""

    name: str
    call: tff.framework.Call
    stage: int

    @property
    def uri(self) -> Optional[str]:
        function = self.call.function
        return function.uri if isinstance(function, tff.framework.Intrinsic) else None


@dataclasses.dataclass
class _Stage:
    once: list[_Local] = dataclasses.field(default_factory=list)
    at_clients: list[_Local] = dataclasses.field(default_factory=list)
    folded: list[_Local] = dataclasses.field(default_factory=list)
    # Names of this stage's client values that later stages or the result need.
    needed_later: list[str] = dataclasses.field(default_factory=list)
    # Names of earlier values that this stage's clients need.
    needed: set[str] = dataclasses.field(default_factory=set)
    program: Optional[visits.Program] = None


class ComputationPlan:
    """A compiled computation; `execute` runs it."""

    def __init__(
        self,
        comp: tff.framework.ConcreteComputation,
        lock: threading.RLock,
        on_build: Callable[[], None],
    ):
        # Compiling loses the result's Python containers.
        self.type_signature = comp.type_signature
        block, _ = internals.without_secure_intrinsics(
            internals.building_block_of(comp)
        )
        self._parameter_name, locals_, self._result = _call_dominant(block)
        self._interpreter = Interpreter(lock, on_build)
        self._stages = _staged(locals_, self._parameter_name, self._result)
        for stage in self._stages:
            stage.program = self._program(stage)

    def execute(self, argument: Any, number_of_clients: int, workers) -> Any:
        """Runs the computation on internal values."""
        bindings: dict[str, Any] = {}
        if self._parameter_name is not None:
            bindings[self._parameter_name] = argument
        with tf.device(workers.devices[0]):
            for stage in self._stages:
                for local in stage.once:
                    bindings[local.name] = self._interpreter.call(local.call, bindings)
                if stage.at_clients or stage.folded:
                    self._visit_clients(
                        stage, bindings, argument, number_of_clients, workers
                    )
            return self._interpreter.evaluate(self._result, bindings)

    def function_value(self, comp: Any) -> Callable[[Any], Any]:
        """Returns the function value of a computation that is an argument."""
        if not isinstance(comp, tff.framework.ConcreteComputation):
            raise TypeError(
                "Expected a TFF computation for an argument of functional type, found "
                f"a value of type {type(comp).__name__}."
            )
        _, locals_, block = _call_dominant(
            internals.building_block_of(comp), peel=False
        )
        bindings: dict[str, Any] = {}
        for name, call in locals_:
            bindings[name] = self._interpreter.call(call, bindings)
        return self._interpreter.evaluate(block, bindings)

    def _program(self, stage: _Stage) -> visits.Program:
        calls = [(local.name, local.call) for local in stage.at_clients]
        folded = [
            local.call.argument[0]
            if local.uri in intrinsics.WITH_SETTINGS
            else local.call.argument
            for local in stage.folded
        ]
        for block in [call for _, call in calls] + folded:
            stage.needed |= _references(block)
        return visits.Program(self._interpreter, calls, stage.needed_later, folded)

    def _visit_clients(self, stage, bindings, argument, number_of_clients, workers):
        evaluate = self._interpreter.evaluate
        folds = []
        for local in stage.folded:
            settings = []
            if local.uri in intrinsics.WITH_SETTINGS:
                elements = list(local.call.argument)[1:]
                settings = [evaluate(element, bindings) for element in elements]
            type_spec = local.call.function.type_signature
            folds.append(intrinsics.AGGREGATIONS[local.uri](settings, type_spec))
        needed = {name: bindings[name] for name in stage.needed & bindings.keys()}
        cohort = visits.Cohort(stage.program, needed, argument, number_of_clients)
        kept = {name: [] for name in stage.needed_later}
        for index, (kept_values, to_fold) in enumerate(workers.results(cohort)):
            for name, value in zip(stage.needed_later, kept_values):
                kept[name].append(value)
            with cohort.naming(index):  # A secure sum refuses values above its bound.
                for fold, value in zip(folds, to_fold):
                    fold.accumulate(value)
            # Frees this client's values before the next client's arrive.
            kept_values = to_fold = value = None
        for name, members in kept.items():
            bindings[name] = values.ClientValues(members)
        for local, fold in zip(stage.folded, folds):
            bindings[local.name] = fold.result()


def _call_dominant(block, peel=True):
    """Compiles a building block to call-dominant form."""
    if peel and not isinstance(block, tff.framework.Lambda):
        block = _as_lambda(block)
    block = tff.framework.to_call_dominant(block)
    locals_ = []
    parameter_name = None
    while True:
        if isinstance(block, tff.framework.Block):
            locals_.extend(block.locals)
            block = block.result
        elif peel and isinstance(block, tff.framework.Lambda):
            parameter_name = block.parameter_name
            block = block.result
            peel = False
            if isinstance(block, tff.framework.Block):
                locals_.extend(block.locals)
                block = block.result
            return parameter_name, locals_, block
        else:
            return parameter_name, locals_, block


def _as_lambda(block):
    """Wraps a value of a functional type into a lambda that calls it."""
    parameter_type = block.type_signature.parameter
    if parameter_type is None:
        return tff.framework.Lambda(None, None, tff.framework.Call(block))
    name = next(tff.framework.unique_name_generator(block))
    reference = tff.framework.Reference(name, parameter_type)
    return tff.framework.Lambda(
        name, parameter_type, tff.framework.Call(block, reference)
    )


def _staged(locals_, parameter_name, result) -> list[_Stage]:
    """Sorts the calls into stages."""
    stage_of = {parameter_name: 0}
    client_names: dict[str, int] = {}
    stages: list[_Stage] = []
    for name, call in locals_:
        references = _references(call) & stage_of.keys()
        stage = max((stage_of[r] for r in references), default=0)
        local = _Local(name, call, stage)
        while len(stages) <= stage:
            stages.append(_Stage())
        if local.uri in intrinsics.AGGREGATIONS:
            stages[stage].folded.append(local)
            stage_of[name] = stage + 1  # known when the stage's clients are done
        elif local.uri in intrinsics.AT_CLIENTS:
            stages[stage].at_clients.append(local)
            stage_of[name] = stage
            client_names[name] = stage
        else:
            stages[stage].once.append(local)
            stage_of[name] = stage
    needed_later = _references(result) & client_names.keys()
    for stage_index, stage in enumerate(stages):
        for local in stage.at_clients + stage.folded:
            needed_later |= {
                name
                for name in _references(local.call) & client_names.keys()
                if client_names[name] < stage_index
            }
    for name in client_names:
        if name in needed_later:
            stages[client_names[name]].needed_later.append(name)
    return stages


def _references(block) -> set[str]:
    """Returns the names that occur in a block (all names of a computation differ)."""
    found = set()

    def look(inner):
        if isinstance(inner, tff.framework.Reference):
            found.add(inner.name)
        return inner, False

    tff.framework.transform_postorder(block, look)
    return found
