"""Whose fault the loss of a Ray actor is; there is no Ray here."""

import types
from unittest import mock

import pytest

from tff_reg import runtime
from tff_reg.runtime import ray_round, visits


class _Lost:
    """A `Round` whose actors are lost and answer as a test says; there is no Ray."""

    def __init__(self, monkeypatch, is_cut_off=False):
        answering = types.SimpleNamespace(get=lambda reference: None)
        monkeypatch.setattr(ray_round, "ray", answering)
        monkeypatch.setattr(
            ray_round.ray_cluster, "own_node_is_lost", lambda: is_cut_off
        )
        self.alive, self.numbers = [], iter([0])
        program = types.SimpleNamespace(member_parameters=())
        cohort = mock.MagicMock(program=program)
        cohort.__len__.return_value = 8
        cohort.failure = lambda index, why: visits.ClientError(index, None, why)
        self.round = ray_round.Round(self, cohort)

    def actor(self, client):
        """A new one, which works for a client."""
        found = ray_round.Actor(mock.MagicMock())
        found.hello = types.SimpleNamespace(host="there")
        found.running.append(ray_round.Given(None, 0, client, frozenset()))
        if client in self.round._waiting:
            self.round._waiting.remove(client)
        self.alive.append(found)
        return found

    def lose(self, actor, why):
        self.alive.remove(actor)


def test_a_loss_of_all_actors_at_once_is_counted_against_no_client(monkeypatch):
    found = _Lost(monkeypatch)
    for again in (False, True):
        actors = [found.actor(0), found.actor(1)]
        found.round._lose(actors[0], "gone")
        if not again:
            found.round._lose(actors[1], "gone")
            assert found.round._waiting == list(range(8))
    with pytest.raises(runtime.WorkerError, match=r"All Ray .* 2 times.* there: gone"):
        found.round._lose(actors[1], "gone")


@pytest.mark.parametrize("others", [0, 1])
def test_a_loss_that_others_survive_or_of_the_only_actor_is_its_clients(
    others, monkeypatch
):
    found = _Lost(monkeypatch)
    survivors = [found.actor(1) for _ in range(others)]

    def lose():
        found.round._lose(found.actor(0), "gone")
        for other in survivors:
            found.round._hear(other)

    lose()
    with pytest.raises(visits.ClientError, match="lost 2 times, the last on there"):
        lose()


def test_the_loss_of_the_drivers_own_node_is_counted_against_no_client(monkeypatch):
    found = _Lost(monkeypatch, is_cut_off=True)
    found.round._lose(found.actor(0), "gone")
    with pytest.raises(runtime.WorkerError, match="no client's fault"):
        found.round._lose(found.actor(0), "gone")
