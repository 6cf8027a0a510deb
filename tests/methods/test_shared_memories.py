"""Memories that methods of a combination share."""

import numpy as np

from tests.methods.test_mistakes import _method
from tff_reg import methods, testing


def test_next_model_sees_the_new_shared_memory():
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
