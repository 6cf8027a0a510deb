"""The time of a round here, in plain PyTorch, and in other simulators.

All run the same round: the same network with the same initial weights, the same
clients, batches, steps and optimiser, and the mean of the clients' weights. The weights
after the first round are compared; those of ResNet-56 after a round of two steps, since
more of them on random labels make other weights of other last bits. One difference
remains: FedJAX fills a client's last batch with examples of earlier batches. Only
PyTorch and this package run FedAlign, MOON and FedMLB. On a GPU all of them multiply in
float32. The programs (benchmarks/simulators/)
have environments of their own and take turns of one round, so that other work on the
machine affects all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.shared import asking, cases, subject
from benchmarks.simulators import environments
from tff_reg.lazy import np
from tff_reg.runtime import devices

# By device: what the others are compared with.
_PYTORCH = {"cpu": "pytorch", "gpu": "pytorch_gpu"}
_KERNELS = "kernels"
# Seconds between looks at a program's memory.
_BETWEEN_LOOKS = 0.2
# Measured rounds of each, in full and with `--quick`.
_ROUNDS = (3, 1)


# By network: the steps after which weights are compared, if not a whole round.
_COMPARED_STEPS = {"resnet56": 2}

_RESNET56 = cases.Size("resnet56", "batch", (32, 32, 3), 2, 416, 64)
_DIGITS = cases.Size("resnet8", "batch", (8, 8, 1), 8, 160, 64)
CASES = {
    "digits": _DIGITS,
    "digits-fedalign": _DIGITS._replace(method="fedalign"),
    "cnn": cases.Size("cnn", "none", (32, 32, 3), 8, 200, 20),
    "resnet20": cases.Size("resnet20", "group", (32, 32, 3), 8, 200, 20),
    "resnet56": _RESNET56,
    "resnet56-fedalign": _RESNET56._replace(method="fedalign"),
    "resnet56-moon": _RESNET56._replace(method="moon"),
    "resnet18-fedmlb": cases.Size(
        "resnet18", "group", (32, 32, 3), 2, 200, 50, "fedmlb"
    ),
}


class System(NamedTuple):
    """A program that runs rounds.

    Attributes:
      title: Its name in the table.
      program: The module of `benchmarks.simulators`.
      environment: Its environment there; None for this process's environment.
      arguments: The program's arguments after the case's file.
      in_parallel: Clients at a time; None for as many as there are cores.
      methods: The methods that it can run.
      device: 'cpu' or 'gpu'.
    """

    title: str
    program: str
    environment: str | None
    arguments: tuple[str, ...] = ()
    in_parallel: int | None = 1
    methods: tuple[str, ...] = ("fedavg",)
    device: str = "cpu"


_ALL = ("fedavg", "fedalign", "moon", "fedmlb")
_ON_GPU: dict[str, Any] = {"methods": _ALL, "device": "gpu"}
SYSTEMS = {
    "pytorch": System("PyTorch, a plain loop", "pytorch", "torch", methods=_ALL),
    "pytorch_best": System(
        "PyTorch, channels_last, a process a core",
        "pytorch",
        "torch",
        ("best",),
        None,
        methods=_ALL,
    ),
    "flower": System("Flower's simulation", "flower", "torch", in_parallel=None),
    "fluke": System("fluke", "fluke_rounds", "fluke"),
    "blazefl": System("BlazeFL", "blazefl_rounds", "blazefl", in_parallel=None),
    "pfl": System("pfl-research", "pfl_research", "torch"),
    "fedjax": System("FedJAX", "fedjax_rounds", "jax"),
    "tff": System("TFF's runtime", "own", None, ("tff", "1"), None),
    _KERNELS: System("its kernels alone", "kernels_alone", None, ("2",), 2),
    "tff_reg_1": System("tff_reg", "own", None, ("in_process", "1"), methods=_ALL),
    "tff_reg_2": System("tff_reg", "own", None, ("in_process", "2"), 2, methods=_ALL),
    "tff_pins_2": System(
        "tff_reg, TensorFlow 2.14",
        "own",
        environments.TFF_PINS,
        ("in_process", "2"),
        2,
        methods=_ALL,
    ),
    "pytorch_gpu": System(
        "PyTorch, a plain loop", "pytorch", "torch", ("", "cuda"), **_ON_GPU
    ),
    "pytorch_gpu_best": System(
        "PyTorch, channels_last, CUDA graphs",
        "pytorch",
        "torch",
        ("best", "cuda"),
        **_ON_GPU,
    ),
    "fedjax_gpu": System("FedJAX", "fedjax_rounds", "jax", device="gpu"),
    "tff_reg_cpu": System(
        "tff_reg, two CPU cores", "own", None, ("in_process", "2"), 2, **_ON_GPU
    ),
    "tff_reg_gpu_plain": System(
        "tff_reg, not compiled", "own", None, ("in_process", "1", "GPU:0"), **_ON_GPU
    ),
    **{
        f"tff_reg_gpu_{count}": System(
            "tff_reg",
            "own",
            None,
            ("in_process", str(count), "GPU:0", "compiled"),
            count,
            **_ON_GPU,
        )
        for count in (1, 2, 4, 8)
    },
}


def measure(
    names: Sequence[str],
    systems: Sequence[str] = tuple(SYSTEMS),
    *,
    device: str = "cpu",
    quick: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Times rounds.

    Args:
      names: Some of `CASES`.
      systems: Some of `SYSTEMS`; PyTorch is always among them.
      device: 'cpu' or 'gpu'; systems of the other are left out.
      quick: One measured round of each, not three.
      report: Called with a line now and then, to show progress.

    Returns:
      JSON values by name, for each case and system.

    Raises:
      RefusedError: If PyTorch cannot be installed.
    """
    pythons: dict[str | None, str] = {None: sys.executable}
    base, chosen = _PYTORCH[device], {}
    for name in {base: None, **dict.fromkeys(systems)}:
        if SYSTEMS[name].device == device:
            chosen[name] = SYSTEMS[name]
    for name, system in list(chosen.items()):
        if system.environment in pythons:
            continue
        try:
            pythons[system.environment] = environments.python(str(system.environment))
        except subject.RefusedError as error:
            if name == base:
                raise
            report(f"{name} is left out: {error}")
            del chosen[name]
    rows = []
    for case in names:
        able = [n for n, s in chosen.items() if CASES[case].method in s.methods]
        rows += _measure_case(case, able, pythons, _ROUNDS[quick], report)
    return rows


def _measure_case(
    case: str,
    systems: Sequence[str],
    pythons: Mapping[str | None, str],
    rounds: int,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The rows of one case; the first system is PyTorch's plain loop."""
    base = systems[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        path = os.path.join(folder, "case.npz")
        cases.write(path, CASES[case])
        compared = path
        if steps := _COMPARED_STEPS.get(CASES[case].network):
            compared = os.path.join(folder, "compared.npz")
            examples = steps * CASES[case].batch_size
            cases.write(compared, CASES[case]._replace(examples=examples))
        environment = {
            **os.environ,
            "FLWR_HOME": folder,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": folder,
            "NVIDIA_TF32_OVERRIDE": "0",  # No TF32, whatever a system's default is.
        }
        programs: dict[str, asking.Program] = {}
        found: dict[str, dict[str, Any]] = {}
        weights: dict[str, list[Any]] = {}
        for name in systems:
            command = _command(SYSTEMS[name], pythons, path)
            errors = stack.enter_context(open(os.path.join(folder, name), "w+b"))
            try:
                began = time.perf_counter()
                programs[name] = stack.enter_context(
                    asking.Program(command, environment=environment, errors=errors)
                )
                taken = time.perf_counter() - began
                first = programs[name].ask("round")
                if compared == path:
                    weights[name] = cases.weights_of(programs[name], folder)
                else:
                    command = _command(SYSTEMS[name], pythons, compared)
                    with asking.Program(
                        command, environment=environment, errors=errors
                    ) as program:
                        program.ask("round")
                        weights[name] = cases.weights_of(program, folder)
                with peak_memory(programs[name].pid) as peak:
                    programs[name].ask("round")
            except RuntimeError as error:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                if name == base:
                    raise RuntimeError("\n".join([str(error), *said[-20:]])) from error
                report(f"{case}: {name} is left out: {said[-1] if said else error}")
                continue
            found[name] = {
                "seconds_start": round(taken, 2),
                "seconds_first": round(first, 3),
                "peak_mb": round(peak[0] / 2**20),
            }
            report(f"{case}: {name} starts in {taken:.1f} s, first round {first:.2f} s")
        seconds: dict[str, list[float]] = {name: [] for name in found}
        for index in range(rounds):
            for name in found:
                seconds[name].append(programs[name].ask("round"))
            report(f"{case}: {index + 1} of {rounds} rounds of each")
        start_weights = cases.read_weights(compared)
    for name, own in weights.items():
        found[name]["difference"] = difference(own, weights[base], start_weights)
    return rows_of(case, base, seconds, found)


def _command(system: System, pythons: Mapping[str | None, str], path: str) -> list[str]:
    """The command of a system's program for the case in a file."""
    program = f"benchmarks.simulators.{system.program}"
    return [pythons[system.environment], "-m", program, path, *system.arguments]


def difference(
    weights: Sequence[Any], expected: Sequence[Any], before: Sequence[Any]
) -> float:
    """The distance between two results of a round, divided by the round's change."""

    def distance(one: Sequence[Any], other: Sequence[Any]):
        return np.sqrt(sum(np.sum(np.square(a - b)) for a, b in zip(one, other)))

    return float(f"{distance(weights, expected) / distance(expected, before):.2g}")


def rows_of(
    case: str,
    base: str,
    seconds: Mapping[str, Sequence[float]],
    more: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The median times of a case, and their ratios to PyTorch's and the kernels' time.

    Args:
      case: Its name.
      base: The name of PyTorch's plain loop.
      seconds: The seconds of rounds, by system.
      more: Other results, by system.

    Returns:
      JSON values by name, for each of `seconds`.
    """
    pytorch = statistics.median(seconds[base])
    kernels = statistics.median(seconds.get(_KERNELS, [math.nan]))
    return [
        {
            "case": case,
            "system": name,
            "clients_in_parallel": SYSTEMS[name].in_parallel or devices.cores(),
            "seconds_median": round(statistics.median(found), 4),
            "ratio_to_pytorch": round(statistics.median(found) / pytorch, 4),
            "ratio_to_kernels": round(statistics.median(found) / kernels, 4),
            "seconds_min": round(min(found), 4),
            "seconds_max": round(max(found), 4),
            "rounds": len(found),
            **more[name],
        }
        for name, found in seconds.items()
    ]


@contextlib.contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Watches the memory of a process and its descendants; returns the peak, in bytes.

    Shared memory is divided among them (PSS).
    """
    most = [0]
    is_over = threading.Event()

    def look():
        while True:
            most[0] = max(most[0], sum(map(_memory, _family(pid))))
            if is_over.wait(_BETWEEN_LOOKS):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _memory(pid: int) -> int:
    """The bytes of memory of a process, 0 if it has ended."""
    with contextlib.suppress(OSError):
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        line = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) * 1024
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown(
        [
            {
                "case": row["case"],
                "system": SYSTEMS[row["system"]].title,
                "clients at a time": str(row["clients_in_parallel"]),
                "seconds (median)": f"{row['seconds_median']:.3f}",
                "to PyTorch": f"{row['ratio_to_pytorch']:.2f}",
                "to its kernels": f"{row['ratio_to_kernels']:.2f}",
                "first round": f"{row['seconds_first']:.1f}",
                "start": f"{row['seconds_start']:.1f}",
                "peak MB": str(row["peak_mb"]),
                "off by": f"{row['difference']:.0e}",
            }
            for row in rows
        ]
    )


def _define_flags(given: flags.FlagValues) -> None:
    flags.DEFINE_enum("device", "cpu", [*_PYTORCH], "Where clients train.", given)
    for flag, known in (("cases", CASES), ("systems", SYSTEMS)):
        names = list(known)
        flags.DEFINE_list(flag, names, f"Some of: {', '.join(names)}.", given)


def _run(given: flags.FlagValues) -> None:
    for flag, known in (("cases", CASES), ("systems", SYSTEMS)):
        chosen = given[flag].value or []
        if not chosen or not {*chosen} <= {*known}:
            raise subject.RefusedError(
                f"--{flag}={','.join(chosen)}: choose some of {', '.join(known)}."
            )
    options = {"device": given.device, "quick": given.quick, "report": subject.say}
    rows = measure(given.cases, given.systems, **options)
    subject.finish(given, rows, table(rows))


SUBJECT = subject.Subject(
    run=_run,
    define_flags=_define_flags,
    help=f"""\
bin/bench peers [--device=gpu] [--cases=CASE,...] [--systems=SYSTEM,...] [--quick]
      [--json=FILE]
  The same rounds in plain PyTorch, as usually written and at its best (pytorch_best:
  channels_last, a process a core), Flower's simulation, fluke, BlazeFL (with Python
  3.12 or 3.13 on PATH), pfl-research, FedJAX, TFF's own runtime and here, with one
  client and two at a time, also in the lane tff_pins; beside them the network's
  kernels alone (FedAvg, two at a time). Half an hour, or a quarter with --quick. The
  first call installs the others into build/peers (4 GB). --device=gpu: PyTorch, also
  at its best (channels_last, cuDNN's search, CUDA graphs), FedJAX, and here with 1, 2,
  4 and 8 clients at a time, all of them in float32; TFF_REG_PEERS_TORCH and
  TFF_REG_PEERS_JAX name Pythons that have them, with CUDA.
  CASE: {", ".join(CASES)}.
  SYSTEM: {", ".join(SYSTEMS)}; PyTorch is always among them.""",
)
