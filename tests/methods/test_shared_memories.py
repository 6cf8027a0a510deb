"""Memories that methods of a combination share."""

import numpy as np
import pytest

from tests.methods.test_mistakes import _method
from tff_reg import methods, testing
from tff_reg.methods import checks


def test_the_new_model_is_made_of_the_new_shared_memory():
    shared = {"s": methods.shared(methods.zeros)}
    counting = _method(
        server_memory=shared,
        update_memory=lambda self, server: {"s": [s + 1.0 for s in server.memory["s"]]},
    )()
    reading = _method(
        name="reading",
        server_memory=shared,
        next_model=lambda self, server: [
            w + s for w, s in zip(server.before, server.memory["s"])
        ],
    )()
    before = testing.train([], 0).weights
    after = testing.train([counting, reading], 1).weights
    for one, other in zip(before, after):
        np.testing.assert_allclose(np.array(other) - one, 1.0)


def test_a_memory_of_its_own_does_not_hide_that_two_share_one_differently():
    own = _method(name="own", server_memory={"s": methods.initial_weights})()
    parts = [
        _method(name=name, server_memory={"s": methods.shared(first)})()
        for name, first in (("a", methods.zeros), ("b", methods.initial_weights))
    ]
    with pytest.raises(ValueError, match="a and b share the memory 's'"):
        checks.check_memories([own, *parts])
