"""The parts of the benchmark that can be wrong without being slow."""

import pytest

from benchmarks import runtime


@pytest.mark.slow
def test_programs_answer_and_failures_are_reported():
    with runtime.program(threads=1) as process:
        assert process.ask("round", "cnn", "hand_written", 1) > 0
        with pytest.raises(RuntimeError, match="before its time, with status 1"):
            process.ask("nothing")
