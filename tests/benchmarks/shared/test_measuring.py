"""Turns and memory."""

import numpy as np

from benchmarks.shared import measuring


def test_peak_memory_is_measured_since_the_last_reset():
    np.ones(100_000_000, np.uint8)
    assert measuring.forget_peak()
    before = measuring.resident_bytes(peak=True)
    np.ones(50_000_000, np.uint8)
    grown = measuring.resident_bytes(peak=True) - before
    assert 40_000_000 < grown < 80_000_000
    assert measuring.resident_bytes() < before + 10_000_000
