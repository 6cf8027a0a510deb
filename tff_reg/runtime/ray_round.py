"""Assigns one stage's clients to Ray actors and reassigns those of a lost actor.

Ray does not notice an actor that hangs, and does not know which clients a lost actor
had. So one loop, in the thread that waits for the results, watches the actors, assigns
the clients of lost actors to others, and counts losses per client.
"""

from __future__ import annotations

import bisect
import collections
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from absl import logging

from tff_reg.lazy import ray, ray_exceptions
from tff_reg.runtime import parcels, ray_actor, ray_cluster, visits, workers
from tff_reg.seam import WorkerError

# Clients that an actor has at a time: the current one and the next.
_DEPTH = 2
_TRIES = 2
_TICK_SECONDS = 1.0
# An actor is lost after this many ticks without an answer. Imports take some ticks.
_MISSED_TICKS = 11


class Given(NamedTuple):
    """A client that was assigned to an actor.

    Attributes:
        reference: Ray's reference to the result.
        round: Number of the `Round`.
        index: Index of the client.
        names: Names of the client's examples.
    """

    reference: Any
    round: int
    index: int
    names: frozenset


class Actor:
    """An actor, as the driver sees it.

    Attributes:
        handle: Ray's handle.
        starting: Reference to the actor's `Hello`; None once that has arrived.
        hello: The `Hello`.
        running: The clients that were assigned to the actor, in order.
        held: Bytes of the examples that the actor keeps, by name, in the order of
            their last use.
        held_bytes: The sum of these bytes.
        ping: Reference to the answer to the last ping.
        missed: Number of ticks without that answer.
        is_doubted: Whether the actor gets no clients before it answers.
    """

    def __init__(self, handle: Any):
        self.handle = handle
        self.starting: Any = handle.hello.remote()
        self.hello: Optional[ray_actor.Hello] = None
        self.running: collections.deque[Given] = collections.deque()
        self.held: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self.held_bytes = 0
        self.ping: Any = None
        self.missed = 0
        self.is_doubted = False

    def references(self) -> list[Any]:
        """Returns the references to all pending answers of the actor."""
        found = [self.starting, self.ping, *(given.reference for given in self.running)]
        return [reference for reference in found if reference is not None]


class Round:
    """The work of one stage's clients, on the actors of a `RayWorkers`."""

    def __init__(self, actors: Any, cohort: visits.Cohort):
        self._workers = actors
        self._cohort = cohort
        self._number = next(actors.numbers)
        self._waiting = list(range(len(cohort)))
        self._tries: collections.Counter[Optional[int]] = collections.Counter()
        # Losses since an actor last answered a ping: the actor's current client, its
        # host and the reason.
        self._losses: list[tuple[Optional[int], str, str]] = []
        self._lost_all = 0
        self._done: dict[int, Any] = {}
        self._yielded = 0
        self._window: Optional[int] = None
        self._next_tick = 0.0

    def results(self) -> Iterator[list[list[Any]]]:
        """Yields the results in the clients' order."""
        actors = self._workers
        actors.grow()
        actors.wait()
        self._program = actors.program(self._cohort.program)
        self._common = actors.common(self._cohort)
        while self._yielded < len(self._cohort):
            actors.wait()
            self._hand_out()
            self._collect()
            self._tick()
            # Actors continue while the caller processes the results.
            self._hand_out()
            while self._yielded in self._done:
                problem, packed = self._done.pop(self._yielded)
                if problem is not None:
                    failed = self._cohort.failure(self._yielded, problem)
                    raise failed
                result = parcels.unpack(packed, _refuse)
                self._yielded += 1
                if self._window is None:
                    at_a_time = _DEPTH * len(actors.alive)
                    self._window = at_a_time + workers.may_wait(result, at_a_time)
                yield result
                del result, packed

    def _hand_out(self) -> None:
        """Assigns clients to idle actors."""
        alive = self._workers.alive
        window = self._window or _DEPTH * len(alive)
        for depth in range(_DEPTH):
            for actor in alive:
                end = bisect.bisect_left(self._waiting, self._yielded + window)
                few = self._waiting[:end]
                # No actor gets a second client while another may soon have none.
                if not few or (depth and len(self._waiting) < len(alive)):
                    return
                if len(actor.running) <= depth and not actor.is_doubted:
                    index = self._choose(few, actor, alive, depth)
                    if index is not None:
                        self._give(index, actor)

    def _choose(self, few, actor, alive, depth) -> Optional[int]:
        """Returns an actor's next client: one whose examples it has, if any."""
        others = None
        for index in few:
            names = self._examples(index).keys()
            if names <= actor.held.keys():
                return index
            if others is None and not any(names <= a.held.keys() for a in alive):
                others = index
        if others is None and not depth:
            return few[0]
        return others

    def _give(self, index: int, actor: Actor) -> None:
        examples = self._examples(index)
        try:
            members = self._workers.packed(self._cohort.members(index))
            sent, forgotten = self._workers.send(actor, examples)
        except Exception as error:  # Something cannot be sent.
            raise self._cohort.failure(index, visits.reason(error)) from error
        reference = actor.handle.visit.remote(
            self._program, self._common, members, sent, forgotten
        )
        self._waiting.remove(index)
        given = Given(reference, self._number, index, frozenset(examples))
        actor.running.append(given)

    def _examples(self, index: int) -> dict[Any, Any]:
        return self._workers.examples(self._cohort.members(index))

    def _collect(self) -> None:
        """Waits for a result or the next tick."""
        actors = {
            reference: actor
            for actor in self._workers.actors
            for reference in actor.references()
        }
        if not actors:
            return
        timeout = max(0.0, self._next_tick - time.monotonic())
        ready, pending = ray.wait(list(actors), timeout=timeout)
        if ready and pending:
            ready += ray.wait(pending, num_returns=len(pending), timeout=0)[0]
        for reference in ready:
            actor = actors[reference]
            if actor not in self._workers.actors:  # It has just been lost.
                continue
            if reference == actor.starting:
                self._workers.arrive(actor)
            elif reference == actor.ping:
                self._hear(actor)
            else:
                self._take(actor, reference)

    def _take(self, actor: Actor, reference: Any) -> None:
        found = [each for each in actor.running if each.reference == reference]
        if not found:  # The answer is no longer needed.
            return
        (given,) = found
        try:
            problem, result = ray.get(reference)
        except ray_exceptions.RayTaskError as error:  # Not the client's work failed.
            actor.running.remove(given)
            problem, result = visits.reason(error.cause or error), None
        except ray_exceptions.RayError as error:
            self._lose(actor, ray_cluster.first_line(error))
            return
        else:
            actor.running.remove(given)
        if problem is not None:
            for name in given.names & actor.held.keys():  # It may lack them.
                actor.held_bytes -= actor.held.pop(name)
        if given.round == self._number:  # Else an abandoned round.
            self._done[given.index] = (problem, result)

    def _tick(self) -> None:
        """Pings every actor once per tick."""
        if time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + _TICK_SECONDS
        self._workers.grow()
        for actor in self._workers.alive:
            if actor.ping is None:
                actor.ping = actor.handle.ping.remote()
                continue
            actor.missed += 1
            if actor.missed == _MISSED_TICKS:
                self._lose(actor, "it does not answer")

    def _hear(self, actor: Actor) -> None:
        """Takes an actor's answer to a ping."""
        try:
            ray.get(actor.ping)
        except ray_exceptions.RayError as error:
            self._lose(actor, ray_cluster.first_line(error))
            return
        actor.ping, actor.missed, actor.is_doubted = None, 0, False
        self._blame()

    def _lose(self, actor: Actor, why: str) -> None:
        """Returns a lost actor's clients to the queue; the first was being trained."""
        host = actor.hello.host if actor.hello else "?"
        self._workers.lose(actor, why)
        logging.warning("A Ray actor on %s was lost: %s", host, why)
        others = self._workers.alive
        # The cause may have hit other actors, too.
        for other in others:
            other.ping = other.handle.ping.remote()
            other.is_doubted = True
        client = None
        for place, given in enumerate(actor.running):
            if given.round == self._number:
                bisect.insort(self._waiting, given.index)
                client = client if place else given.index
        self._losses.append((client, host, why))
        if others:
            return
        if len(self._losses) == 1 and not ray_cluster.own_node_is_lost():
            self._blame()
            return
        self._losses.clear()
        self._lost_all += 1
        if self._lost_all == _TRIES:
            raise WorkerError(
                f"All Ray actors were lost at once, {_TRIES} times, which is no"
                f" client's fault; the last on {host}: {why}. The same command resumes"
                " a run."
            )

    def _blame(self) -> None:
        """Counts losses against the actors' clients, since other actors survived."""
        while self._losses:
            index, host, why = self._losses.pop()
            self._tries[index] += 1
            if index is not None and self._tries[index] == _TRIES:
                raise self._cohort.failure(
                    index,
                    f"the Ray actor that worked for it was lost {_TRIES} times,"
                    f" the last on {host}: {why}",
                )


def _refuse(held: parcels.Held) -> Any:
    raise TypeError(f"An actor sent {held} for a data set.")
