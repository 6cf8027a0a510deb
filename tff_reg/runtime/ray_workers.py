"""Ray actors, on one or many machines, that do the clients' work in place of threads.

The plan, the server's part and the folding of the clients' results in the clients'
order stay in this process; an actor receives a client's work as a record (`visits`),
and a client's examples from Ray's object store. So results depend neither on the number
of actors nor on the assignment of clients. The clients of a lost actor go to others.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import itertools
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from absl import logging

from tff_reg.lazy import ray, ray_exceptions, tf
from tff_reg.runtime import (
    devices as devices_lib,
    parcels,
    ray_actor,
    ray_cluster,
    visits,
    workers,
)
from tff_reg.seam import WorkerError

if TYPE_CHECKING:
    from tff_reg.runtime import choice

# Clients that an actor has at a time: the current one and the next.
_DEPTH = 2
_TRIES = 2
# Bytes of examples that stay in Ray's object store from round to round.
_KEPT_BYTES = 2**30
_START_SECONDS = 180.0
_FAILED_STARTS = 3
_TICK_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_LEAVE_SECONDS = 2.0
# Prefixes of the environment variables that actors inherit.
_INHERITED = ("TF_", "TFF_REG_", "ONEDNN_", "DNNL_", "OMP_")


class _Given(NamedTuple):
    """A client that was given to an actor: Ray's reference to its result, and whose."""

    reference: Any
    stage: _Stage
    index: int


class _Actor:
    """An actor, as this process sees it.

    Attributes:
        handle: Ray's handle.
        starting: Reference to the actor's `Hello`; None once that has arrived.
        hello: The `Hello`.
        running: The clients that the actor was given, in order.
    """

    def __init__(self, handle: Any):
        self.handle = handle
        self.starting: Any = handle.hello.remote()
        self.hello: Optional[ray_actor.Hello] = None
        self.running: list[_Given] = []


class RayWorkers:
    """Ray actors, in place of `workers.ClientWorkers`.

    Attributes:
        actors: The running and the starting actors.
    """

    # The device of the server's part.
    devices = ("CPU:0",)

    def __init__(self, options: choice.Options):
        self._options = options
        self._lock = threading.Lock()
        self._is_stopped = False
        self.actors: list[_Actor] = []
        self._failed_starts = 0
        self._why_not = ""
        self._numbers = itertools.count()
        self._programs: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._graphs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._examples: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        asked = options.clients_in_parallel
        here = asked or devices_lib.default_clients_in_parallel(["CPU:0"])
        self._cluster = ray_cluster.Cluster(
            options.ray_address, here * options.cpus_per_client
        )
        try:
            gpus = ray.cluster_resources().get("GPU", 0)
            if options.require_gpu and not (gpus and options.gpus_per_client):
                raise devices_lib.NoGpuError(
                    "A GPU is required and Ray has none for a client."
                )
            self._gpus_per_client = options.gpus_per_client if gpus else 0.0
            self.most = here if self._cluster.is_local and not gpus else asked
            self.grow()
            if not self.actors:  # The first round waits for starting actors.
                self.wait()
        except BaseException:
            self.stop()
            raise

    def describe(self) -> str:
        """Returns one line on the actors and their nodes."""
        hellos = [actor.hello for actor in self.actors if actor.hello]
        if not hellos:
            count = len(self.actors)
            return f"clients run in {count} Ray actor{'s' * (count != 1)} (starting)"
        nodes = len({hello.node for hello in hellos})
        kinds = {hello.device.split(":")[0] for hello in hellos}
        return (
            f"clients run in {len(hellos)} Ray actor{'s' * (len(hellos) != 1)} on"
            f" {nodes} node{'s' * (nodes != 1)} ({' and '.join(sorted(kinds))})"
        )

    def results(self, cohort: visits.Cohort) -> Iterator[list[list[Any]]]:
        """Yields results as `workers.Workers.results` does.

        A client whose actor is lost goes to another actor; after a second loss it
        fails.
        """
        if not len(cohort):
            return
        while not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            if self._is_stopped:
                raise WorkerError("The ray runtime was ended.")
        try:
            yield from _Stage(self, cohort).results()
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Ends the actors, and Ray if it was started here.

        While another thread waits for results, actors are left to end with the
        process.
        """
        # The lock is kept: later calls of `results` raise.
        if not self._is_stopped and self._lock.acquire(blocking=False):
            self._is_stopped = True
            with contextlib.suppress(Exception):  # Ray is ending.
                leaving = [a.handle.leave.remote() for a in self.actors if a.hello]
                if leaving:
                    ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)
            for actor in [*self.actors]:
                self.lose(actor, "the run has ended")
            self._cluster.stop()

    # --- actors -----------------------------------------------------------------------

    def alive(self) -> list[_Actor]:
        """Returns the actors that can do clients' work."""
        return [actor for actor in self.actors if actor.hello]

    def grow(self) -> None:
        """Starts as many actors as fit; they take part once they have started."""
        if len(self.actors) == self.most or self._failed_starts >= _FAILED_STARTS:
            return
        room = self._room(ray.available_resources())
        if self.most is not None:
            room = min(room, self.most - len(self.actors))
        # Starting actors do not occupy their resources yet.
        room -= sum(actor.starting is not None for actor in self.actors)
        for _ in range(room):
            self.actors.append(self._start())

    def wait(self, everyone: bool = False) -> None:
        """Waits until an actor, or every actor, has started."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            starting = [a.starting for a in self.actors if a.starting is not None]
            if self.alive() and not (everyone and starting):
                return
            # The resources of a dead actor are free only after a moment.
            possible = starting or (
                self._failed_starts < _FAILED_STARTS
                and self._room(ray.cluster_resources())
            )
            too_late = time.monotonic() > deadline
            if not possible or too_late or ray_cluster.own_node_is_lost():
                break
            if starting:
                ray.wait(starting, timeout=_TICK_SECONDS)
                self.welcome()
            else:
                self.grow()
                time.sleep(0.1)
        if not self.alive():
            raise WorkerError(
                "There is no Ray actor for the clients, and no room for one of"
                f" {self._options.cpus_per_client:g} CPUs and"
                f" {self._gpus_per_client:g} GPUs{self._why_not}. Once there is room,"
                " the same command resumes a run."
            )

    def _room(self, resources: Mapping[str, float]) -> int:
        room = int(resources.get("CPU", 0) // self._options.cpus_per_client)
        if self._gpus_per_client:
            room = min(room, int(resources.get("GPU", 0) // self._gpus_per_client))
        return room

    def welcome(self) -> None:
        """Adds the actors that have started to those that do clients' work."""
        own = ray_actor.versions()
        for actor in [each for each in self.actors if each.starting is not None]:
            if not ray.wait([actor.starting], timeout=0)[0]:
                continue
            try:
                hello: ray_actor.Hello = ray.get(actor.starting)
                if hello.versions == own:
                    actor.hello = hello
                    continue
                why = f"{hello.host} has {hello.versions}, this machine {own}"
            except ray_exceptions.RayError as error:
                why = ray_cluster.first_line(error)
            finally:
                actor.starting = None
            self._failed_starts += 1
            logging.warning("A Ray actor could not be started: %s", why)
            self.lose(actor, why)

    def lose(self, actor: _Actor, why: str) -> None:
        """Ends an actor that is dead or cannot be used."""
        self._why_not = f" ({why})"
        self.actors.remove(actor)
        with contextlib.suppress(Exception):  # Ray is ending, or has forgotten it.
            ray.kill(actor.handle)

    def _start(self) -> _Actor:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_INHERITED)
        }
        if self._cluster.folder is not None:
            environment["TMPDIR"] = self._cluster.folder
        threads = devices_lib.intra_op_threads()
        operations = math.ceil(self._options.cpus_per_client) or 1
        # Type checkers do not understand the types that Ray declares.
        remote: Any = ray.remote
        handle = (
            remote(ray_actor.Actor)
            .options(
                num_cpus=self._options.cpus_per_client,
                num_gpus=self._gpus_per_client,
                max_restarts=0,
                max_task_retries=0,
                runtime_env={"env_vars": environment},
            )
            .remote(
                threads,
                operations,
                bool(self._gpus_per_client),
                self._options.deterministic,
                self._options.tf32,
            )
        )
        return _Actor(handle)

    # --- what is sent -----------------------------------------------------------------

    def program(self, program: visits.Program) -> tuple[int, list[Any]]:
        """Returns the number and the reference of a program, which is dumped once."""
        if program not in self._programs:
            self._programs[program] = self._numbered(program.dump())
        return self._programs[program]

    def common(self, cohort: visits.Cohort) -> tuple[int, list[Any]]:
        """Returns the number and the reference of the values for all clients."""
        return self._numbered({k: parcels.pack(v) for k, v in cohort.common.items()})

    def _numbered(self, value: Any) -> tuple[int, list[Any]]:
        return next(self._numbers), [ray.put(value)]

    def packed(self, members: list[Any]) -> tuple[list[Any], list[Any]]:
        """Packs a client's members; returns them and what holds their examples."""
        contents: list[Any] = []

        def held(dataset: tf.data.Dataset) -> parcels.Held:
            origin = getattr(dataset, "origin", None)
            make = operator.methodcaller("dataset") if origin is None else origin.make
            contents.append(self._content(dataset, origin))
            return parcels.Held(len(contents) - 1, make)

        return parcels.pack(members, held), contents

    def _content(self, dataset: tf.data.Dataset, origin: Any) -> Any:
        """Returns a reference to a data set's examples, or what loads them."""
        if origin is None:
            if dataset not in self._graphs:
                self._graphs[dataset] = ray.put(parcels.Graph.of(dataset))
            return self._graphs[dataset]
        if self._options.data_on_nodes and origin.load is not None:
            return origin.load
        kept = self._examples
        if origin.name not in kept:
            kept[origin.name] = (ray.put(origin.examples()), origin.num_bytes)
        kept.move_to_end(origin.name)
        reference, _ = kept[origin.name]
        while sum(size for _, size in kept.values()) > _KEPT_BYTES and len(kept) > 1:
            kept.popitem(last=False)  # Ray keeps it while an actor needs it.
        return reference


class _Stage:
    """The work of one stage's clients, on the actors of a `RayWorkers`."""

    def __init__(self, actors: RayWorkers, cohort: visits.Cohort):
        self._workers, self._cohort = actors, cohort
        self._waiting = list(range(len(cohort)))
        self._tries: collections.Counter[int] = collections.Counter()
        self._done: dict[int, Any] = {}
        self._next_look = 0.0

    def results(self) -> Iterator[list[list[Any]]]:
        """Yields the results in the clients' order."""
        actors, cohort = self._workers, self._cohort
        actors.grow()
        actors.wait()
        record = (actors.program(cohort.program), actors.common(cohort))
        window = _DEPTH * len(actors.alive())
        for index in range(len(cohort)):
            give = functools.partial(self._give, record, index + window)
            while index not in self._done:
                actors.wait()
                give()
                self._collect()
            give()  # Actors continue while the caller processes the results.
            problem, packed = self._done.pop(index)
            if problem is not None:
                failed = cohort.failure(index, problem)
                raise failed
            result = parcels.unpack(packed)
            if index == 0:
                window += workers.may_wait(result, window)
            yield result
            del result, packed

    def _give(self, record: tuple[Any, Any], end: int) -> None:
        """Gives clients before `end` to idle actors."""
        alive = self._workers.alive()
        for depth in range(_DEPTH):
            for actor in alive:
                # No actor gets a second client while another may soon have none.
                few = depth and len(self._waiting) < len(alive)
                if few or not self._waiting or self._waiting[0] >= end:
                    return
                if len(actor.running) <= depth:
                    self._hand(actor, self._waiting.pop(0), record)

    def _hand(self, actor: _Actor, index: int, record: tuple[Any, Any]) -> None:
        try:
            members, contents = self._workers.packed(self._cohort.members(index))
        except Exception as error:  # Something cannot be sent.
            failed = self._cohort.failure(index, visits.reason(error))
            raise failed from error
        reference = actor.handle.visit.remote(*record, members, *contents)
        actor.running.append(_Given(reference, self, index))

    def _collect(self) -> None:
        """Waits for a result, for a started actor, or a second."""
        actors = self._workers
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _TICK_SECONDS
            actors.grow()
        references = [a.starting for a in actors.actors if a.starting is not None]
        references += [g.reference for a in actors.actors for g in a.running]
        if not references:
            return
        ray.wait(references, timeout=_TICK_SECONDS)
        actors.welcome()
        for actor in actors.alive():
            while actor.running and self._take(actor):
                pass

    def _take(self, actor: _Actor) -> bool:
        """Takes the result of an actor's first client; returns whether it is there."""
        given = actor.running[0]
        if not ray.wait([given.reference], timeout=0)[0]:
            return False
        try:
            found = ray.get(given.reference)
        except ray_exceptions.RayTaskError as error:  # Not the client's work failed.
            found = visits.reason(error.cause or error), None
        except ray_exceptions.RayError as error:
            self._lose(actor, ray_cluster.first_line(error))
            return False
        actor.running.pop(0)
        if given.stage is self:  # Else of a stage that was abandoned.
            self._done[given.index] = found
        return True

    def _lose(self, actor: _Actor, why: str) -> None:
        """Returns a lost actor's clients to the queue; the first was being trained."""
        assert actor.hello
        host = actor.hello.host
        self._workers.lose(actor, why)
        logging.warning("A Ray actor on %s was lost: %s", host, why)
        if ray_cluster.own_node_is_lost():
            raise WorkerError(
                f"Ray's node on this machine was lost: {why}. The same command resumes"
                " a run."
            )
        own = [given.index for given in actor.running if given.stage is self]
        for index in own:
            bisect.insort(self._waiting, index)
        if own and actor.running[0].stage is self:
            self._tries[own[0]] += 1
            if self._tries[own[0]] == _TRIES:
                raise self._cohort.failure(
                    own[0],
                    f"the Ray actor that worked for it was lost {_TRIES} times,"
                    f" the last on {host}: {why}",
                )
