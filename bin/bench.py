"""Measures: `bin/bench runtime` compares the ways to run a round.

bin/bench runtime [--quick] [--json=FILE]: the same rounds by a loop written by hand,
in process, and in TFF's own runtime; prints a table, and the memory that a round of 60
clients with a model of 20 megabytes needs. `tff_reg.runtime.benchmark` does it.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

# pylint: disable=wrong-import-position
from absl import app
from absl import flags

from tff_reg import quiet
from tff_reg.runtime import benchmark

_QUICK = flags.DEFINE_bool("quick", False, "Fewer rounds: minutes instead of ten.")
_JSON = flags.DEFINE_string("json", None, "File to write the measurements to.")


def runtime() -> None:
    """Measures rounds and memory; prints a table."""
    quiet.silence()
    rows = benchmark.as_json(
        benchmark.measure(_QUICK.value, report=lambda line: print(line, flush=True))
    )
    print()
    print(*benchmark.table(rows), sep="\n")
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(
            json.dumps(rows, indent=2) + "\n", encoding="utf-8"
        )
    print()
    seconds = benchmark.measure_group_norm()
    print(
        "GroupNorm, forward and backward: Keras's "
        f"{1000 * seconds['keras']:.1f} ms, ours {1000 * seconds['tff_reg']:.1f} ms "
        f"({seconds['tff_reg'] / seconds['keras']:.2f})"
    )
    for kind, megabytes in benchmark.measure_memory().items():
        print(f"60 clients, a model of 20 MB, {kind}: {megabytes:.0f} MB at most")


_SUBJECTS = {"runtime": runtime}


def main(argv):
    """Runs the benchmark that is named."""
    if len(argv) != 2 or argv[1] not in _SUBJECTS:
        raise app.UsageError(
            f"Say what to measure, one of: {', '.join(_SUBJECTS)}; found "
            f"{' '.join(argv[1:]) or 'nothing'}."
        )
    _SUBJECTS[argv[1]]()


if __name__ == "__main__":
    app.run(main)
