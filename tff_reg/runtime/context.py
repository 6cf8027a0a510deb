"""TFF contexts that run computations in this process's TensorFlow."""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from typing import Any

from tff_reg.lazy import tff
from tff_reg.runtime import values
from tff_reg.runtime.plan import ComputationPlan
from tff_reg.runtime.workers import Workers
from tff_reg.seam import internals, tensorflow_internals


class PlanCache:
    """The plans of all live computations.

    Computations are found by identity and held by weak references: their hash would
    serialise the whole computation at each call, and a plan (with its TensorFlow
    functions) must be freed with its computation.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._plans: dict[int, tuple[weakref.ref, ComputationPlan]] = {}
        self.builds = 0  # Number of TensorFlow functions built so far.

    def plan(self, comp: tff.framework.ConcreteComputation) -> ComputationPlan:
        """Returns the plan of a computation; makes it at the first call."""
        found = self._plans.get(id(comp))
        if found is not None and found[0]() is comp:
            return found[1]
        with self._lock:
            found = self._plans.get(id(comp))
            if found is None or found[0]() is not comp:
                forget = functools.partial(self._forget, id(comp))
                plan = ComputationPlan(comp, self._lock, self._count_build)
                found = (weakref.ref(comp, forget), plan)
                self._plans[id(comp)] = found
        return found[1]

    def _forget(self, key: int, reference: weakref.ref) -> None:
        found = self._plans.get(key)
        if found is not None and found[0] is reference:
            del self._plans[key]

    def _count_build(self) -> None:
        self.builds += 1


PLANS = PlanCache()


class InProcessContext(tff.framework.SyncContext):
    """Runs computations in this process; safe to call from several threads."""

    def __init__(self, workers: Workers, default_num_clients: int = 0):
        self._workers = workers
        self._default_num_clients = default_num_clients

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        internals.refuse_tracing()
        # Even if the caller builds a graph.
        with tensorflow_internals.eager_context.eager_mode():
            plan = PLANS.plan(comp)
            parameter_type = plan.type_signature.parameter
            number_of_clients = internals.number_of_clients(
                arg, parameter_type, self._default_num_clients
            )
            if arg is not None:
                arg = values.argument(arg, parameter_type, plan.function_value)
            result = plan.execute(arg, number_of_clients, self._workers)
            return values.result(result, plan.type_signature.result)


class InProcessAsyncContext(tff.framework.AsyncContext):
    """An `InProcessContext` for callers that await."""

    def __init__(self, context: InProcessContext):
        self._context = context

    async def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        return await asyncio.to_thread(self._context.invoke, comp, arg)
