"""Checks a machine in one process: imports, a round of FedAlign, a golden test.

    PYTHONPATH=. python tests/machines/check.py FOLDER

For machines that are too slow for the test suite, such as emulated ones. Prints one
line per part with its seconds. The run is written to FOLDER.
"""

import contextlib
import importlib
import math
import platform
import sys
import time

import pytest

from tff_reg import experiment, quiet

GOLDEN_TEST = "tests/golden/test_golden_univarfl.py::test_univarfl_terms"


@contextlib.contextmanager
def _timed(part):
    started = time.monotonic()
    print(f"{part} ...", flush=True)
    yield
    print(f"{part}: passed in {time.monotonic() - started:.0f} s", flush=True)


def main(folder):
    """Runs the parts in turn; the first that fails raises."""
    python = f"Python {platform.python_version()}"
    print(f"{python} on {platform.system()} {platform.machine()}", flush=True)
    quiet.silence()
    for name in ("tensorflow", "tensorflow_federated"):
        with _timed(f"import {name}"):
            print(importlib.import_module(name).__version__)
    with _timed("one round of FedAlign on digits"):
        config = experiment.RunConfig(
            process="fedalign", scale="tiny", output_dir=folder, overwrite=True
        )
        loss = experiment.run(config).summary["final_training_loss"]
        # Of ten classes, of which the network has seen hardly anything.
        assert abs(loss - math.log(10)) < 0.5, loss
    with _timed(GOLDEN_TEST):
        assert pytest.main([GOLDEN_TEST]) == pytest.ExitCode.OK


if __name__ == "__main__":
    main(*sys.argv[1:])
