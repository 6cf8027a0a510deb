"""By what a run knows the user's functions again."""

import functools

import keras
import numpy as np
import pytest

from tff_reg.experiment.config import functions

COUNT = 1


def first_clients(round_num, client_ids):
    return [client_ids[:COUNT] for _ in range(1)][0]


def test_functions_are_known_by_the_globals_that_they_name(monkeypatch):
    before = functions.described(first_clients)
    assert functions.described(first_clients) == before
    monkeypatch.setitem(globals(), "COUNT", 2)
    assert functions.described(first_clients) != before


def test_functions_are_known_by_what_they_compute():
    def rates(factor):
        return lambda round_num: factor * round_num

    def others(factor):
        return lambda round_num: factor * round_num  # With a comment.

    described = functions.described
    assert described(rates(2)) == described(others(2)) != described(rates(3))
    assert described(rates(2)) != described(lambda round_num: 2 * round_num)
    assert described(keras.metrics.MeanSquaredError()).startswith("MeanSquaredError 3.")
    top = keras.metrics.SparseTopKCategoricalAccuracy
    assert described(top(3)) == described(top(3)) != described(top(2))
    used = keras.metrics.AUC()  # Keras gives the next one another name.
    used.update_state(np.eye(2), np.eye(2))
    assert described(used) == described(keras.metrics.AUC())

    def halving(round_num):
        return 0.1 if round_num < 2 else halving(round_num - 1) / 2

    assert described(halving) == described(halving)


@pytest.mark.parametrize("kind", [list, tuple, np.array, set, iter], ids=str)
def test_functions_are_known_by_the_values_that_they_hold(kind):
    class Sampler:
        def __init__(self, rows):
            self.rows = kind(rows)

        def __call__(self, round_num, client_ids):
            return [client_ids[row] for row in self.rows]

    def sampler(rows):
        rows = kind(rows)
        return lambda round_num, client_ids: [client_ids[row] for row in rows]

    for make in (sampler, Sampler, lambda rows: functools.partial(sum, kind(rows))):
        is_known = functions.described(make([0, 1])) != functions.described(make([2]))
        assert is_known == (kind is not iter)
        assert functions.described(make([0, 1])) == functions.described(make([0, 1]))
    one_by_one = sampler([0, 1])
    functions.described(one_by_one)
    assert one_by_one(1, ["a", "b"]) == ["a", "b"]
