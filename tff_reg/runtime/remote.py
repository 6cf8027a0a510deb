"""Clients on several machines: TFF's C++ workers do the clients' TensorFlow.

Everything else stays in this process: the plan, the server's part, the folding of the
clients' results in the clients' order. So results do not depend on how many workers
there are or on who worked for whom, and a worker that is lost costs no more than the
clients it was working on: these are given to the others.

A client's task is a `Visit` to one worker. What is the same for all clients (the
model) is sent to a worker once, a computation once for as long as it is alive; values
between a client's computations stay on the worker.

A worker that dies closes its connection. One that hangs, or whose machine vanishes,
does not: so every worker is asked, on a connection of its own, once a second whether
it is there. (gRPC's own keepalive will not do: a server ends connections that ask
more often than every five minutes in the middle of a call.)
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import grpc

from tff_reg.lazy import tf, tff
from tff_reg.runtime import (
    graph_rewrites,
    placement,
    service,
    tff_internals,
    values,
    worker_process,
    workers as workers_lib,
)
from tff_reg.runtime.placement import WorkerLost

_messages = tff_internals.messages

PING_SECONDS = 1.0
# Twice in a row without an answer: lost. Once may be ourselves, after Ctrl-Z.
ANSWER_SECONDS = 4.0
_GOODBYE_SECONDS = 1.0

_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection for each channel: a question does not wait behind a model.
    ("grpc.use_local_subchannel_pool", 1),
)

# What gRPC itself says when nobody answers, and the worker where it has started anew.
# What goes wrong in a computation is never one of these, but INTERNAL.
_WORKER_IS_LOST = frozenset(
    (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAVAILABLE,
    )
)


class RemoteError(RuntimeError):
    """What a worker said when a computation failed on it."""


class _Calls:
    """Calls under way, which can all be cancelled."""

    def __init__(self):
        self._lock = threading.Lock()
        self._futures = set()
        self.cancelled = False

    @contextlib.contextmanager
    def including(self, future: grpc.Future) -> Iterator[None]:
        """Has `future` among them for the body of a `with` statement."""
        with self._lock:
            self._futures.add(future)
            cancelled = self.cancelled
        if cancelled:
            future.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._futures.discard(future)

    def cancel(self) -> None:
        """Cancels them, and all that come."""
        with self._lock:
            self.cancelled = True
            futures = list(self._futures)
        for future in futures:
            future.cancel()


class _Connection:
    """A connection to a worker, until it is lost.

    Raises:
        WorkerLost: If the worker does not answer within `service.CONNECT_SECONDS`.
    """

    def __init__(self, address: str):
        self.address = address
        self.busy = 0  # Clients that it works for; belongs to `RemoteWorkers`.
        self.problem: Optional[str] = None  # Why it is lost.
        self._losing = threading.Lock()
        self._lock = threading.Lock()
        self._functions: dict[int, Any] = {}
        self._garbage: list[Any] = []  # Goes with the next question.
        self._disposals = set()
        self._missed = 0
        self._calls = _Calls()
        self._channels = [
            tff_internals.open_channel(address, _CHANNEL_OPTIONS) for _ in range(2)
        ]
        self._service, self._questions = map(
            tff_internals.connect_service, self._channels
        )
        try:
            for channel in self._channels:
                grpc.channel_ready_future(channel).result(service.CONNECT_SECONDS)
            answer = self._service.GetExecutor(
                tff_internals.executor_request(), timeout=service.CONNECT_SECONDS
            )
        except grpc.FutureTimeoutError as error:
            self.lose("cannot be reached")
            raise WorkerLost(address) from error
        except grpc.RpcError as error:
            self.lose(_said(error))
            raise WorkerLost(address) from error
        self._executor = answer.executor

    def request(self, method: str, calls: _Calls, **fields: Any) -> Any:
        """Calls a method of the service.

        Args:
            method: Its name.
            calls: Where the call can be cancelled.
            **fields: Of the request, beside the executor.

        Raises:
            WorkerLost: If the worker is lost, or the call cancelled.
            RemoteError: If the worker says that something else is wrong.
        """
        message = getattr(_messages, f"{method}Request")
        message = message(executor=self._executor, **fields)
        try:
            future = getattr(self._service, method).future(message)
            with self._calls.including(future), calls.including(future):
                return future.result()
        except grpc.FutureCancelledError as error:
            raise WorkerLost(self.address) from error
        except grpc.RpcError as error:
            if error.code() not in _WORKER_IS_LOST:
                raise RemoteError(f"{self.address}: {error.details()}") from None
            self.lose(_said(error))
            raise WorkerLost(self.address) from error
        except ValueError as error:  # what gRPC says of a closed channel
            if self.problem is None:
                raise
            raise WorkerLost(self.address) from error

    def function(self, function: Any, calls: _Calls) -> Any:
        """The worker's reference to a `TensorFlowFunction`, sent there once."""
        with self._lock:
            reference = self._functions.get(id(function))
            if reference is None:
                computation = _quick_to_iterate(function.computation)
                value = tff_internals.computation_message(computation)
                answer = self.request("CreateValue", calls, value=value)
                reference = answer.value_ref
                self._functions[id(function)] = reference
                forget = weakref.finalize(function, self._forget, id(function))
                forget.atexit = False
        return reference

    def _forget(self, key: int) -> None:
        reference = self._functions.pop(key, None)
        if reference is not None:
            self._garbage.append(reference)

    def dispose(self, references: Sequence[Any]) -> None:
        """Makes the worker forget values; does not wait until it has."""
        if not references:
            return
        request = _messages.DisposeRequest(
            executor=self._executor, value_ref=references
        )
        try:
            future = self._service.Dispose.future(request)
        except ValueError:  # the channel is closed
            return
        self._disposals.add(future)  # else it would be cancelled with the variable
        future.add_done_callback(self._disposals.discard)

    def is_there(self) -> bool:
        """Whether the worker answers and is the one that was connected to."""
        if self.problem is not None:
            return False
        request = _messages.CreateStructRequest(executor=self._executor)
        try:
            answer = self._service.CreateStruct(request, timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            self.lose(_said(error))
            return False
        except ValueError:  # the channel has been closed
            return False
        self._garbage.append(answer.value_ref)
        return True

    def ask(self) -> None:
        """Asks whether the worker is there, and notes it as lost if it is not."""
        garbage, self._garbage = self._garbage, []
        request = _messages.DisposeRequest(executor=self._executor, value_ref=garbage)
        try:
            self._questions.Dispose(request, timeout=ANSWER_SECONDS)
            self._missed = 0
        except grpc.RpcError as error:
            self._garbage += garbage
            self._missed += 1
            if self._missed == 2:
                self.lose(_said(error))
        except ValueError:  # the channel has been closed
            pass

    def lose(self, problem: str) -> None:
        """Ends the connection and all calls on it."""
        if self._end(problem):
            self._close_channels()

    def close(self) -> None:
        """The same in good order: the worker forgets all that it was sent."""
        if self._end("was let go"):
            request = _messages.DisposeExecutorRequest(executor=self._executor)
            with contextlib.suppress(grpc.RpcError):
                self._service.DisposeExecutor(request, timeout=_GOODBYE_SECONDS)
            self._close_channels()

    def _end(self, problem: str) -> bool:
        """Cancels all calls; False if that was done before."""
        with self._losing:
            if self.problem is not None:
                return False
            self.problem = problem
        self._calls.cancel()
        return True

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()


def _quick_to_iterate(computation: Any) -> Any:
    """A computation's proto, rewritten where it goes over data sets slowly."""
    graph_def = tf.compat.v1.GraphDef()
    computation.tensorflow.graph_def.Unpack(graph_def)
    if not graph_rewrites.iterate_over_datasets(graph_def):
        return computation
    rewritten = type(computation)()
    rewritten.CopyFrom(computation)
    rewritten.tensorflow.graph_def.Pack(graph_def)
    return rewritten


def _said(error: grpc.RpcError) -> str:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "does not answer"
    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
        return "has started anew"
    return "has closed the connection"


class _Worker:
    """A worker, connected to again whenever it was lost, by a thread of its own."""

    def __init__(self, address: str):
        self.address = address
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._connection: Optional[_Connection] = None

    @property
    def problem(self) -> Optional[str]:
        """Why it is lost."""
        connection = self._connection
        return connection.problem if connection else "was never there"

    def connect(self) -> Optional[_Connection]:
        """Connects if there is no connection; None if that fails."""
        with self._lock:
            if self._connection is not None and self.problem is None:
                return self._connection
            try:
                self._connection = _Connection(self.address)
            except WorkerLost:
                return None
        if self._stopped.is_set():
            self._connection.close()
        return self._connection

    def watch(self) -> None:
        """Starts the thread."""
        threading.Thread(
            target=self._watch, name=f"tff_reg watch over {self.address}", daemon=True
        ).start()

    def _watch(self) -> None:
        while not self._stopped.wait(PING_SECONDS):
            connection = self._connection
            if connection is not None and connection.problem is None:
                connection.ask()
            else:
                self.connect()

    def connection(self) -> Optional[_Connection]:
        """The connection, if the worker is there."""
        connection = self._connection
        if connection is None:
            return self.connect()
        known_as_lost = connection.problem is not None
        if connection.is_there():
            return connection
        # It may have started anew since. Of a worker known as lost the thread takes
        # care, so that a machine that has gone is not waited for again and again.
        return None if known_as_lost else self.connect()

    def stop(self) -> None:
        self._stopped.set()
        if self._connection is not None:
            self._connection.close()


class RemoteValue:
    """A value on a worker. `value[i]` is an element of a structure.

    Args:
        visit: The visit that it belongs to.
        type_spec: Its type.
        refer: Gives the worker's reference to it.
        known: The same value here, where it came from here.
    """

    def __init__(
        self,
        visit: Visit,
        type_spec: tff.Type,
        refer: Callable[[], Any],
        known: Any = None,
    ):
        self.visit = visit
        self.type_spec = type_spec
        self.known = known
        self._refer = refer
        self._reference = None
        self._elements: dict[int, RemoteValue] = {}

    @property
    def reference(self) -> Any:
        """What the worker knows it by, asked for once."""
        if self._reference is None:
            self._reference = self._refer()
        return self._reference

    def __getitem__(self, index: int) -> RemoteValue:
        if index not in self._elements:
            self._elements[index] = RemoteValue(
                self.visit,
                self.type_spec[index],
                functools.partial(self.visit.select, self, index),
                None if self.known is None else self.known[index],
            )
        return self._elements[index]


class Visit:
    """The place of one client's work on one worker; for `placement`."""

    def __init__(self, cohort: _Cohort, connection: _Connection):
        self._cohort = cohort
        self._connection = connection
        self._references: list[Any] = []

    def call(self, function: Any, argument: Any) -> RemoteValue:
        """Calls a `TensorFlowFunction` on the worker; does not wait for the result."""
        fields = dict(
            function_ref=self._connection.function(function, self._cohort.calls)
        )
        parameter_type = function.type_signature.parameter
        if parameter_type is not None:
            fields.update(argument_ref=self._refer(argument, parameter_type))
        reference = self._create("CreateCall", **fields)
        return RemoteValue(self, function.type_signature.result, lambda: reference)

    def same_at_clients(self, name: str, value: Any, type_spec: tff.Type):
        """A value of this process, which is sent to a worker once for all clients."""
        if isinstance(value, RemoteValue):
            return value
        refer = functools.partial(
            self._cohort.shared, self._connection, name, value, type_spec
        )
        return RemoteValue(self, type_spec, refer, value)

    def select(self, source: RemoteValue, index: int) -> Any:
        """The worker's reference to an element of a structure."""
        return self._create("CreateSelection", source_ref=source.reference, index=index)

    def fetch(self, value: Any) -> Any:
        """`value` with what is on the worker brought here."""
        wanted: list[RemoteValue] = []
        _find(value, wanted)
        found = iter(())
        if wanted:
            type_spec = tff.StructType([each.type_spec for each in wanted])
            answer = self._request("Compute", value_ref=self._refer(wanted, type_spec))
            found = tff_internals.value_of_message(answer.value, type_spec)
            found = iter(values.argument(found, type_spec, _refuse_function))
        return _replace(value, found)

    def close(self) -> None:
        """Makes the worker forget what this client needed."""
        self._connection.dispose(self._references)

    def _refer(self, value: Any, type_spec: tff.Type) -> Any:
        """The worker's reference to `value`, of which parts may be there already."""
        if isinstance(value, RemoteValue):
            return value.reference
        if not _is_on_worker(value):
            message = _message(value, type_spec)
            return self._create("CreateValue", value=message)
        element = _messages.CreateStructRequest.Element
        elements = [
            element(name=name, value_ref=self._refer(part, part_type))
            for part, (name, part_type) in zip(
                value, tff.structure.iter_elements(type_spec)
            )
        ]
        return self._create("CreateStruct", element=elements)

    def _create(self, method: str, **fields: Any) -> Any:
        reference = self._request(method, **fields).value_ref
        self._references.append(reference)
        return reference

    def _request(self, method: str, **fields: Any) -> Any:
        return self._connection.request(method, self._cohort.calls, **fields)


def _message(value: Any, type_spec: tff.Type) -> Any:
    return tff_internals.value_message(values.to_numpy(value), type_spec)


def _is_on_worker(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_on_worker(element) for element in value)
    return isinstance(value, RemoteValue)


def _find(value: Any, found: list[RemoteValue]) -> None:
    """Appends those parts of `value` that are on a worker and nowhere else."""
    if isinstance(value, list):
        for element in value:
            _find(element, found)
    elif isinstance(value, RemoteValue) and value.known is None:
        found.append(value)


def _replace(value: Any, found: Iterator[Any]) -> Any:
    """`value` with the parts on a worker replaced, in the order of `_find`."""
    if isinstance(value, list):
        return [_replace(element, found) for element in value]
    if isinstance(value, RemoteValue):
        return next(found) if value.known is None else value.known
    return value


def _refuse_function(value: Any) -> Any:
    raise TypeError(f"A worker gave a function, {value!r}, for a value.")


class _Cohort:
    """The clients of one `in_order`: who works for them, and what was sent once."""

    def __init__(self, connections: list[_Connection]):
        self.connections = connections
        self.calls = _Calls()
        self._locks = {connection: threading.Lock() for connection in connections}
        self._shared: dict[_Connection, dict[str, Any]] = {
            connection: {} for connection in connections
        }

    def shared(
        self, connection: _Connection, name: str, value: Any, type_spec: tff.Type
    ) -> Any:
        """The worker's reference to `value`; sends it there if it is the first."""
        with self._locks[connection]:
            references = self._shared[connection]
            if name not in references:
                message = _message(value, type_spec)
                answer = connection.request("CreateValue", self.calls, value=message)
                references[name] = answer.value_ref
            return references[name]

    def close(self) -> None:
        """Ends what is still under way, and makes the workers forget."""
        self.calls.cancel()
        for connection in self.connections:
            with self._locks[connection]:
                connection.dispose(list(self._shared[connection].values()))


class RemoteWorkers:
    """TFF's workers at `addresses`, in the place of `workers.ClientWorkers`.

    Args:
        addresses: As host:port.
        clients_in_parallel: How many clients at a time on each worker.

    Raises:
        WorkerError: If one cannot be reached.
    """

    # Where the server's part runs.
    devices = ("CPU:0",)

    def __init__(self, addresses: Sequence[str], clients_in_parallel: int):
        self._clients_in_parallel = clients_in_parallel
        self._workers = [_Worker(address) for address in addresses]
        self._pool = concurrent.futures.ThreadPoolExecutor(
            len(addresses) * clients_in_parallel,
            thread_name_prefix="tff_reg clients on workers",
        )
        # Notified when a worker may have got time for another client.
        self._condition = threading.Condition()
        connections = _at_once(_Worker.connect, self._workers)
        missing = [w.address for w, c in zip(self._workers, connections) if c is None]
        if missing:
            self.stop()
            raise worker_process.WorkerError(service.no_answer(missing))
        for worker in self._workers:
            worker.watch()

    def in_order(
        self, count: int, task: Callable[[int], Any], size: Callable[[Any], int]
    ) -> Iterator[Any]:
        """Yields `task(0)`, ..., `task(count - 1)`, each with a worker as its place.

        A task whose worker is lost is done again on another one. If the caller stops
        early, or a task raises, those under way are given up.

        Args:
            count: How many tasks there are.
            task: What to run, given its number.
            size: The bytes of a result; the first one's decides how many may wait.

        Yields:
            The results in the order of their numbers.

        Raises:
            WorkerError: If no worker is left.
        """
        if not count:
            return
        cohort = _Cohort(self._connections())

        def submit(index):
            return self._pool.submit(self._run, cohort, task, index)

        at_a_time = len(cohort.connections) * self._clients_in_parallel
        try:
            yield from workers_lib.in_order(count, submit, at_a_time, size)
        finally:
            cohort.close()

    def stop(self) -> None:
        """Lets the workers go; they keep running for whoever comes next."""
        _at_once(_Worker.stop, self._workers)
        self._pool.shutdown(wait=False)

    def _connections(self) -> list[_Connection]:
        """Connections to the workers that are there."""
        for find in (_Worker.connection, _Worker.connect):
            found = [c for c in _at_once(find, self._workers) if c is not None]
            if found:
                return found
        raise self._nobody_left()

    def _run(self, cohort: _Cohort, task: Callable[[int], Any], index: int) -> Any:
        while True:
            connection = self._take(cohort)
            visit = Visit(cohort, connection)
            try:
                with placement.at(visit), tf.device(self.devices[0]):
                    return task(index)
            except WorkerLost:
                if cohort.calls.cancelled:
                    raise
            finally:
                visit.close()
                with self._condition:
                    connection.busy -= 1
                    self._condition.notify_all()

    def _take(self, cohort: _Cohort) -> _Connection:
        """Waits for a worker of the cohort with time for another client."""
        with self._condition:
            while True:
                left = [c for c in cohort.connections if c.problem is None]
                if not left:
                    raise self._nobody_left()
                connection = min(left, key=lambda c: c.busy)
                if connection.busy < self._clients_in_parallel:
                    connection.busy += 1
                    return connection
                self._condition.wait()

    def _nobody_left(self) -> worker_process.WorkerError:
        said = ", ".join(
            f"{worker.address} {worker.problem or 'has just come back'}"
            for worker in self._workers
        )
        return worker_process.WorkerError(
            f"No TFF worker is left for the clients: {said}. Start them again with "
            "bin/worker; a run then resumes with the same command."
        )


def _at_once(function: Callable[[_Worker], Any], workers: Sequence[_Worker]) -> list:
    """`function` of each of the workers, all at the same time."""
    found = [None] * len(workers)

    def run(index):
        found[index] = function(workers[index])

    threads = [
        threading.Thread(target=run, args=[index], daemon=True)
        for index in range(len(workers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
