"""Ray actors, on one or many machines, that do the clients' work in place of threads.

The plan, the server's part and the folding of the clients' results in the clients'
order stay in this process; an actor receives a client's work as a record (`visits`).
So results depend neither on the number of actors nor on the assignment of clients.

This module starts the actors and sends them data; `ray_round` assigns the clients.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from tff_reg.lazy import ray, ray_exceptions, tf
from tff_reg.runtime import (
    devices as devices_lib,
    parcels,
    ray_actor,
    ray_cluster,
    ray_round,
    visits,
)
from tff_reg.seam import WorkerError

if TYPE_CHECKING:
    from tff_reg.runtime import choice

# Maximum bytes of examples that an actor keeps.
_HELD_BYTES = 2**30
_START_SECONDS = 180.0
_FAILED_STARTS = 3
_PATIENCE_SECONDS = 5.0
_LEAVE_SECONDS = 2.0
# Prefixes of the environment variables that actors inherit.
_INHERITED = ("TF_", "TFF_REG_", "ONEDNN_", "DNNL_", "OMP_")


class RayWorkers:
    """Ray actors, in place of `workers.ClientWorkers`.

    Attributes:
        actors: The running and the starting actors.
        numbers: Counter that gives each sent value a number as its name.
    """

    # The device of the server's part.
    devices = ("CPU:0",)

    def __init__(self, options: choice.Options):
        self._options = options
        self._lock = threading.Lock()
        self._is_stopped = False
        self.actors: list[ray_round.Actor] = []
        self._failed_starts = 0
        self._why_not = ""
        self.numbers = itertools.count()
        self._programs: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._dataset_names: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )
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
            self._most = asked
            if self._cluster.is_local and not gpus:
                self._most = here
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
            yield from ray_round.Round(self, cohort).results()
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
            self._say_good_bye()
            for actor in self.actors:
                self._end(actor)
            self.actors = []
            self._cluster.stop()

    # --- actors -----------------------------------------------------------------------

    @property
    def alive(self) -> list[ray_round.Actor]:
        """The actors that can do clients' work."""
        return [actor for actor in self.actors if actor.hello]

    def grow(self) -> None:
        """Starts as many actors as fit; they take part once they have started."""
        if len(self.actors) == self._most or self._failed_starts >= _FAILED_STARTS:
            return
        room = self._room(ray.available_resources())
        if self._most is not None:
            room = min(room, self._most - len(self.actors))
        # Starting actors do not occupy their resources yet.
        room -= sum(actor.starting is not None for actor in self.actors)
        for _ in range(room):
            self.actors.append(self._start())

    def wait(self, everyone: bool = False) -> None:
        """Waits until an actor has started."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            starting = [actor for actor in self.actors if actor.starting is not None]
            if self.alive and not (everyone and starting):
                return
            # The resources of a dead actor are free only after a moment.
            possible = starting or (
                self._failed_starts < _FAILED_STARTS
                and self._room(ray.cluster_resources())
            )
            too_late = time.monotonic() > deadline
            if not possible or too_late or ray_cluster.own_node_is_lost():
                break
            if not starting:
                self.grow()
                time.sleep(0.1)
                continue
            ready, _ = ray.wait([actor.starting for actor in starting], timeout=1.0)
            for actor in starting:
                if actor.starting in ready:
                    self.arrive(actor)
        if not self.alive:
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

    def arrive(self, actor: ray_round.Actor) -> None:
        """Adds a started actor to those that do clients' work."""
        try:
            hello: ray_actor.Hello = ray.get(actor.starting)
        except ray_exceptions.RayError as error:
            self._refuse(actor, ray_cluster.first_line(error))
            return
        finally:
            actor.starting = None
        own = ray_actor.versions()
        if hello.versions == own:
            actor.hello = hello
            return
        self._refuse(actor, f"{hello.host} has {hello.versions}, this machine {own}")

    def lose(self, actor: ray_round.Actor, why: str) -> None:
        """Ends an actor that is dead, does not answer, or cannot be used."""
        self._why_not = f" ({why})"
        self._end(actor)
        self.actors.remove(actor)

    def _refuse(self, actor: ray_round.Actor, why: str) -> None:
        self._failed_starts += 1
        logging.warning("A Ray actor could not be started: %s", why)
        self.lose(actor, why)

    def _start(self) -> ray_round.Actor:
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
        actor_class = remote(concurrency_groups={"watch": 1})(ray_actor.Actor)
        handle = actor_class.options(
            num_cpus=self._options.cpus_per_client,
            num_gpus=self._gpus_per_client,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
            runtime_env={"env_vars": environment},
        ).remote(threads, operations, bool(self._gpus_per_client))
        return ray_round.Actor(handle)

    def _say_good_bye(self) -> None:
        """Lets actors remove their files before they are killed."""
        with contextlib.suppress(Exception):  # Ray is ending.
            leaving = [actor.handle.leave.remote() for actor in self.alive]
            if leaving:
                ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)

    def _end(self, actor: ray_round.Actor) -> None:
        try:
            ray.kill(actor.handle)
        except Exception:  # Ray is ending, or has forgotten it.
            return
        if actor.hello:
            ray_cluster.kill(actor.hello.node, actor.hello.pid)

    # --- what is sent -----------------------------------------------------------------

    def program(self, program: visits.Program) -> tuple[int, list]:
        """Returns the number and the reference of a program, which is dumped once."""
        if program not in self._programs:
            reference = ray.put(program.dump())
            self._programs[program] = (next(self.numbers), [reference])
        return self._programs[program]

    def common(self, cohort: visits.Cohort) -> tuple[int, list]:
        """Returns the number and the reference of the values for all clients."""
        packed = {name: parcels.pack(value) for name, value in cohort.common.items()}
        return next(self.numbers), [ray.put(packed)]

    def examples(self, members: Any) -> dict[Any, Any]:
        """Returns the data sets among a client's members, by name."""
        if isinstance(members, list):
            found = {}
            for member in members:
                found.update(self.examples(member))
            return found
        if isinstance(members, tf.data.Dataset):
            return {self._name(members): members}
        return {}

    def send(
        self, actor: ray_round.Actor, examples: dict[Any, Any]
    ) -> tuple[dict, list]:
        """Returns examples to send to an actor, and names of those to discard."""
        found = {
            name: self._content(dataset)
            for name, dataset in examples.items()
            if name not in actor.held
        }
        actor.held.update({name: size for name, (_, size) in found.items()})
        actor.held_bytes += sum(size for _, size in found.values())
        for name in examples:
            actor.held.move_to_end(name)
        used = examples.keys() | {n for given in actor.running for n in given.names}
        forgotten = []
        while actor.held_bytes > _HELD_BYTES:
            name = next(iter(actor.held))
            if name in used:
                break
            forgotten.append(name)
            actor.held_bytes -= actor.held.pop(name)
        return {name: content for name, (content, _) in found.items()}, forgotten

    def packed(self, members: list) -> list:
        """Packs a client's members without their data sets' examples."""
        return parcels.pack(members, self._held)

    def _held(self, dataset: tf.data.Dataset) -> parcels.Held:
        recipe = getattr(dataset, "recipe", None)
        make = operator.methodcaller("dataset") if recipe is None else recipe.make
        return parcels.Held(self._name(dataset), make)

    def _name(self, dataset: tf.data.Dataset) -> Any:
        recipe = getattr(dataset, "recipe", None)
        if recipe is not None:
            return recipe.name
        if dataset not in self._dataset_names:
            self._dataset_names[dataset] = next(self.numbers)
        return self._dataset_names[dataset]

    def _content(self, dataset: tf.data.Dataset) -> tuple[Any, int]:
        """Returns the form in which a data set is sent, and its bytes on the actor."""
        recipe = getattr(dataset, "recipe", None)
        if recipe is None:
            graph = parcels.Graph.of(dataset)
            return graph, len(graph.serialized)
        if self._options.data_on_nodes and recipe.load is not None:
            return recipe.load, recipe.num_bytes
        return recipe.examples(), recipe.num_bytes
