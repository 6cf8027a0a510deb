"""Measures how long things take: `bin/bench --help` says what and how.

The thin end of `tff_reg.runtime.benchmark`, `tff_reg.analysis.method_benchmark`,
`tff_reg.experiment.state_benchmark` and `tff_reg.analysis.hessian_benchmark`.
"""

import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    from tff_reg.experiment import interruption

    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    STOP = interruption.Interruption()
    STOP.take_over()

# pylint: disable=wrong-import-position
from tff_reg import quiet
from tff_reg.analysis import hessian_benchmark
from tff_reg.analysis import method_benchmark
from tff_reg.experiment import command_line
from tff_reg.experiment import state_benchmark
from tff_reg.lazy import flags
from tff_reg.models import names
from tff_reg.runtime import benchmark

_COMMAND = "bin/bench"
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

bin/bench commands [--quick] [--json=FILE]
  What people wait for: bin/launch, `import tff_reg`, help, a wrong flag, the first
  round, the end after Ctrl-C. Two minutes, or half a minute with --quick.

All print a table, and --json writes what they found to a file."""


def fail(message):
    command_line.fail(message, command=_COMMAND)


def _say(line):
    print(line, flush=True)


def _finish(given, rows, lines):
    """Prints the table; writes the file."""
    print()
    print(*lines, sep="\n")
    if given.json:
        pathlib.Path(given.json).write_text(
            json.dumps(rows, indent=2) + "\n", encoding="utf-8"
        )
    print()


def runtime(given) -> None:
    """Measures rounds and memory; prints a table."""
    rows = benchmark.as_json(benchmark.measure(given.quick, report=_say))
    _finish(given, rows, benchmark.table(rows))
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


def methods(given) -> None:
    """Measures local steps; prints a table."""
    setting = None
    if given.model:
        setting = method_benchmark.Setting(given.model, given.batch_size)
    try:
        rows = method_benchmark.as_json(
            method_benchmark.measure(
                method_benchmark.parse_methods(given.methods),
                quick=given.quick,
                setting=setting,
                report=_say,
            )
        )
    except ValueError as error:  # A method that is none, or not for this model.
        fail(error)
    _finish(given, rows, method_benchmark.table(rows))
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


def client_states(given) -> None:
    """Measures the store of clients' states; prints a table."""
    setting = state_benchmark.QUICK if given.quick else state_benchmark.Setting()
    try:
        measurement = state_benchmark.measure(setting, report=_say)
    except state_benchmark.NotEnoughDiskError as error:
        fail(error)
    row = state_benchmark.as_json(measurement)
    _finish(given, [row], state_benchmark.table(row))


def hessian(given) -> None:
    """Measures Hessian-vector products; prints a table."""
    setting = hessian_benchmark.QUICK if given.quick else hessian_benchmark.Setting()
    row = hessian_benchmark.as_json(hessian_benchmark.measure(setting, report=_say))
    _finish(given, [row], hessian_benchmark.table(row))


_RUN = (sys.executable, str(_ROOT / "bin" / "run.py"))
_WAITS = {
    "Python": (sys.executable, "-I", "-S", "-c", ""),
    "bin/launch and Python": (str(_ROOT / "bin" / "launch"), "-I", "-S", "-c", ""),
    "import tff_reg": (sys.executable, "-c", "import tff_reg, tff_reg.quiet"),
    "bin/run --help": (*_RUN, "--help"),
    "bin/run with a wrong flag": (*_RUN, "--process=fedavg", "--batchsize=3"),
}


def _seconds_of_a_run():
    """Until the first round is printed, and from Ctrl-C to the end."""
    with tempfile.TemporaryDirectory() as folder:
        flags_ = ("--process=fedavg", "--total_rounds=100000")
        began = time.perf_counter()
        process = subprocess.Popen(
            [*_RUN, *flags_, f"--output_dir={folder}/run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in process.stdout:
            if line.startswith("round "):
                break
        printed = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.communicate()
        return printed - began, time.perf_counter() - printed


def commands(given) -> None:
    """Measures what people wait for; prints a table."""
    seconds = {}
    for turn in range(1 if given.quick else 5):
        for name, command in _WAITS.items():
            began = time.perf_counter()
            subprocess.run(command, capture_output=True)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
        first, end = _seconds_of_a_run()
        seconds.setdefault("bin/run to the first round", []).append(first)
        seconds.setdefault("Ctrl-C to the end", []).append(end)
        _say(f"turn {turn + 1}")
    rows = [
        {"what": name, "seconds_median": statistics.median(each), "turns": len(each)}
        for name, each in seconds.items()
    ]
    lines = [f"| {row['what']} | {row['seconds_median']:.2f} |" for row in rows]
    _finish(given, rows, ["| what | seconds |", "|---|---|", *lines])


_SUBJECTS = {
    "runtime": runtime,
    "methods": methods,
    "client_states": client_states,
    "hessian": hessian,
    "commands": commands,
}


@command_line.command(_HELP)
def main(argv, stop):
    """Runs the benchmark that is named."""
    stop.say(lambda: "nothing was written")
    given = flags.FlagValues()
    flags.DEFINE_bool("quick", False, "Fewer rounds.", given)
    flags.DEFINE_string("json", None, "File to write to.", given)
    flags.DEFINE_string("methods", None, "Separated by commas.", given)
    flags.DEFINE_enum("model", None, names.MODEL_NAMES, "Network.", given)
    flags.DEFINE_integer("batch_size", 32, "Of a step.", 1, flag_values=given)
    words = command_line.parse_own(argv, given, command=_COMMAND, takes_words=True)
    if len(words) != 1 or words[0] not in _SUBJECTS:
        found = " ".join(words) or "nothing"
        fail(
            f"say what to measure, one of: {', '.join(_SUBJECTS)} (found {found}); "
            "--help says what they do."
        )
    if given.json and not pathlib.Path(given.json).absolute().parent.is_dir():
        fail(f"--json={given.json}: there is no such directory.")
    quiet.silence()
    _SUBJECTS[words[0]](given)


if __name__ == "__main__":
    command_line.execute(main, STOP)
