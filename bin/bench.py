"""Measures how long things take: `bin/bench --help` says what and how.

The thin end of `tff_reg.runtime.benchmark`, `tff_reg.analysis.method_benchmark`,
`tff_reg.experiment.state_benchmark` and `tff_reg.analysis.hessian_benchmark`.
"""

import functools
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

# pylint: disable=wrong-import-position
from absl import app
from absl import flags

from tff_reg import quiet
from tff_reg.analysis import hessian_benchmark
from tff_reg.analysis import method_benchmark
from tff_reg.experiment import command_line
from tff_reg.experiment import state_benchmark
from tff_reg.models import names
from tff_reg.runtime import benchmark

_COMMAND = "bin/bench"
_QUICK = flags.DEFINE_bool("quick", False, "Fewer rounds.")
_JSON = flags.DEFINE_string("json", None, "File to write the measurements to.")
_METHODS = flags.DEFINE_string("methods", None, "Methods, separated by commas.")
_MODEL = flags.DEFINE_enum("model", None, names.MODEL_NAMES, "Network of all methods.")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 32, "Examples of a step, with --model.", lower_bound=1
)
_HELP = """\
bin/bench runtime [--quick] [--json=FILE]
  The same rounds by a loop written by hand, in process, and in TFF's own runtime; then
  GroupNorm, the CNN's convolutions alone, the ends of tf.data's iterators, and the
  memory that rounds of 60 clients with a model of 20 megabytes need. Ten minutes, or
  three with --quick.

bin/bench methods [--methods=NAME,...] [--quick] [--json=FILE]
  Time of a local step of every method, or of those named, relative to FedAvg's, beside
  the targets and what the authors' code takes. Ten minutes, or four with --quick.

  --methods=NAME,...    methods, or sums such as fedprox+man
  --model=NAME          the network that all methods run on, and FedAvg; by default
                        ResNet-20 with batches of 32, and ResNet-18 with batches of 8
                        for FedMLB
  --batch_size=N        examples of a step, with --model [32]

bin/bench client_states [--quick] [--json=FILE]
  Rounds that load and store the states of 10 of 500 clients, 44 megabytes each, and
  commit a checkpoint: seconds, memory, disk (25 gigabytes under TMPDIR, deleted in the
  end). Five minutes; with --quick 40 clients, half a minute and 4 gigabytes.

bin/bench hessian [--quick] [--json=FILE]
  Hessian-vector products relative to gradients of the same batch, of ResNet-20 and the
  small CNN; seconds for the top eigenvalue of ResNet-20 on 512 images. Two minutes, or
  one with --quick.

All print a table, and --json writes what they found to a file."""


def fail(message):
    command_line.fail(message, command=_COMMAND)


def _say(line):
    print(line, flush=True)


def _finish(rows, lines):
    """Prints the table; writes the file."""
    print()
    print(*lines, sep="\n")
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(
            json.dumps(rows, indent=2) + "\n", encoding="utf-8"
        )
    print()


def runtime() -> None:
    """Measures rounds and memory; prints a table."""
    rows = benchmark.as_json(benchmark.measure(_QUICK.value, report=_say))
    _finish(rows, benchmark.table(rows))
    seconds = benchmark.measure_group_norm()
    print(
        "GroupNorm, forward and backward: Keras's "
        f"{1000 * seconds['keras']:.1f} ms, ours {1000 * seconds['tff_reg']:.1f} ms "
        f"({seconds['tff_reg'] / seconds['keras']:.2f})"
    )
    seconds = benchmark.measure_convolutions()
    print(
        f"A round of the CNN by hand: {seconds['hand_written']:.3f} s; its convolutions "
        f"alone: {seconds['convolutions']:.3f} s "
        f"({seconds['convolutions'] / seconds['hand_written']:.2f})"
    )
    for name, seconds in benchmark.measure_iterators().items():
        print(
            f"A loop over a data set, {name}: {1000 * statistics.mean(seconds):.0f} ms "
            f"on average, {1000 * min(seconds):.0f} to {1000 * max(seconds):.0f}"
        )
    for (kind, rounds), megabytes in benchmark.measure_memory().items():
        print(
            f"60 clients, a model of 20 MB, {kind}, the {rounds}: "
            f"{megabytes:.0f} MB at most"
        )


def methods() -> None:
    """Measures local steps; prints a table."""
    setting = None
    if _MODEL.value:
        setting = method_benchmark.Setting(_MODEL.value, _BATCH_SIZE.value)
    try:
        rows = method_benchmark.as_json(
            method_benchmark.measure(
                method_benchmark.parse_methods(_METHODS.value),
                quick=_QUICK.value,
                setting=setting,
                report=_say,
            )
        )
    except ValueError as error:  # A method that is none, or not for this model.
        fail(error)
    _finish(rows, method_benchmark.table(rows))
    print(
        "Processor time on one core; arithmetic is the ratio of multiply-adds. "
        "FedAvg itself: "
        + "; ".join(
            f"{1000 * seconds:.1f} ms on {model}, {batch_size}"
            for model, batch_size, seconds in dict.fromkeys(
                (row["model"], row["batch_size"], row["fedavg_seconds_median"])
                for row in rows
            )
        )
    )


def client_states() -> None:
    """Measures the store of clients' states; prints a table."""
    setting = state_benchmark.QUICK if _QUICK.value else state_benchmark.Setting()
    try:
        measurement = state_benchmark.measure(setting, report=_say)
    except state_benchmark.NotEnoughDiskError as error:
        fail(error)
    row = state_benchmark.as_json(measurement)
    _finish([row], state_benchmark.table(row))


def hessian() -> None:
    """Measures Hessian-vector products; prints a table."""
    setting = hessian_benchmark.QUICK if _QUICK.value else hessian_benchmark.Setting()
    row = hessian_benchmark.as_json(hessian_benchmark.measure(setting, report=_say))
    _finish([row], hessian_benchmark.table(row))


_SUBJECTS = {
    "runtime": runtime,
    "methods": methods,
    "client_states": client_states,
    "hessian": hessian,
}


def main(argv):
    """Runs the benchmark that is named."""
    if len(argv) != 2 or argv[1] not in _SUBJECTS:
        found = " ".join(argv[1:]) or "nothing"
        fail(
            f"say what to measure, one of: {', '.join(_SUBJECTS)} (found {found}); "
            "--help says what they do."
        )
    if _JSON.value and not pathlib.Path(_JSON.value).absolute().parent.is_dir():
        fail(f"--json={_JSON.value}: there is no such directory.")
    quiet.silence()
    _SUBJECTS[argv[1]]()


if __name__ == "__main__":
    app.run(
        main,
        flags_parser=functools.partial(
            command_line.parse_own, help_text=_HELP, command=_COMMAND
        ),
    )
