"""Turns and memory."""

import numpy as np

from benchmarks.shared import measuring


def test_functions_take_turns_and_the_first_ones_do_not_count():
    calls = []
    ways = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    found = measuring.in_turns(ways, 2, unmeasured=1)
    assert calls == ["a", "b"] * 3
    assert list(found) == ["a", "b"]
    assert [len(seconds) for seconds in found.values()] == [2, 2]
    assert min(found["a"] + found["b"]) > 0


def test_the_peak_is_what_was_resident_since_it_was_forgotten():
    np.ones(100_000_000, np.uint8)
    assert measuring.forget_peak()
    before = measuring.resident_bytes(peak=True)
    np.ones(50_000_000, np.uint8)
    grown = measuring.resident_bytes(peak=True) - before
    assert 40_000_000 < grown < 80_000_000
    assert measuring.resident_bytes() < before + 10_000_000


def test_a_system_that_does_not_tell_is_no_error():
    assert not measuring.forget_peak("no such process")
