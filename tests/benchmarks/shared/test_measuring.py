"""Turns and memory."""

import numpy as np

from benchmarks.shared import measuring


def test_peak_memory_is_measured_since_the_last_reset():
    np.ones(1_000_000_000, np.uint8)
    assert measuring.forget_peak()
    before = measuring.resident_bytes(peak=True)
    np.ones(500_000_000, np.uint8)  # What other tests leave may go meanwhile.
    grown = measuring.resident_bytes(peak=True) - before
    assert 300_000_000 < grown < 530_000_000
    assert measuring.resident_bytes() < before + 10_000_000
