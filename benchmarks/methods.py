"""The time of a local step of each method, relative to FedAvg.

The benchmark times rounds of the method's own process (`training.build`) in process,
with one client that takes a few steps from the initial weights. This is a whole local
step: gathering the batch, the gradient, any clipping, the optimiser and the
measurements. The time of a round whose client has no examples is subtracted: the
server's part and a client's work once per round, such as copying the reference models'
weights. In the papers' rounds of 50 to 1000 steps this part is less than a thousandth
of a step's time.

Time is the processor time of the process, which runs each operation on one thread and
one operation at a time. A client has these conditions while parallel clients fill all
cores, and other programs hardly change this time. Wall-clock times are measured beside
it. The methods take turns of one round, many times, and a method's ratio is the median
of the ratios within a turn, so that other work on the machine affects all methods.

All methods have their default hyperparameters, and train on the CPU with FedAvg's
optimiser of the FedAlign paper. Only FedAlign clips gradients, as in its authors'
comparison.
MOON and UniVarFL have their projectors, and FedAvg has none. FedMLB runs on the
FedMLB paper's ResNet-18, against FedAvg on the same.
"""

from __future__ import annotations

import concurrent.futures
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.shared import cases as shared_cases, subject
from tff_reg import models, runtime, training
from tff_reg.analysis import cost
from tff_reg.lazy import tf
from tff_reg.methods import catalogue
from tff_reg.models import names

_FEDAVG = "fedavg"
_IMAGE, _CLASSES = (32, 32, 3), 10
# Of whom one takes part; drift corrections want to know.
_CLIENTS = 10
_STEPS = 3
# FedAvg has one turn for each group of this many methods.
_BETWEEN = 4
# Rounds of turns, in full and with `quick`.
_TURNS = (25, 3)
# Steps whose random draws are counted, of a method whose multiply-adds depend on them.
_DRAWS = 64

# Ratios to FedAvg's time that the methods are meant to keep.
TARGETS = {
    "fedprox": 1.05,
    "mixup": 1.05,
    "stochdepth": 1.0,
    "fedalign": 1.15,
    "moon": 1.8,
    "gradaug": 2.2,
    "man": 1.08,
    "univarfl": 1.10,
    "kd": 1.40,
    "fedntd": 1.40,
    "asd": 1.30,
    "fedrcl": 1.30,
    "fedmlb": 2.2,
}
# Wall-clock ratios of the authors' own code: Table 5 of the FedAlign paper, on a GPU;
# FedMLB's as we measured it, on two cores.
AUTHORS = {
    "fedprox": 1.18,
    "moon": 3.02,
    "mixup": 1.00,
    "stochdepth": 1.00,
    "gradaug": 2.36,
    "fedalign": 1.21,
    "fedmlb": 2.69,
}


class Setting(NamedTuple):
    """The network and batches on which a method is timed.

    Attributes:
      model: Name of the network, with group norm, for images of 32x32x3, 10 classes.
      batch_size: Examples of a step.
    """

    model: str
    batch_size: int


_SETTING, _SETTING_OF = Setting("resnet20", 32), {"fedmlb": Setting("resnet18", 8)}


def parse_methods(text: str | None) -> list[str]:
    """Checks the methods to measure; needs no TensorFlow.

    Args:
      text: Process names joined by commas, or None for all methods but server
        optimisers, whose local step is FedAvg's.

    Returns:
      The process names, each once.

    Raises:
      UnknownProcessError: If one does not exist.
    """
    if text is None:
        return [
            name
            for name, method in catalogue.methods().items()
            if "server_optimizer" not in method.required_settings
        ]
    chosen = ["+".join(catalogue.parse(name)) or _FEDAVG for name in text.split(",")]
    return list(dict.fromkeys(chosen))


def measure(
    methods: Sequence[str],
    *,
    quick: bool = False,
    setting: Setting | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Measures methods; before anything else uses TensorFlow, whose threads it sets.

    Takes about ten minutes for all, three to four if `quick`, most of them tracing.

    Args:
      methods: As `parse_methods` gives them.
      quick: Fewer turns.
      setting: The network and batches of all methods; None means ResNet-20 with batches
        of 32, and for FedMLB ResNet-18 with batches of 8.
      report: Called with a line now and then, to show progress.

    Returns:
      The `row` of each method.

    Raises:
      ValueError: If a method cannot be trained on the model.
    """
    settings = {
        name: setting
        or next((_SETTING_OF[m] for m in name.split("+") if m in _SETTING_OF), _SETTING)
        for name in methods
    }
    baselines = [(_FEDAVG, used) for used in dict.fromkeys(settings.values())]
    cases = list(dict.fromkeys([*baselines, *settings.items()]))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with runtime.running(
        "in_process", devices="CPU:0", clients_in_parallel=1, intra_op_threads=1
    ):
        rounds, multiply_adds = _prepare(cases, report)
        empty, full = _time(cases, rounds, _TURNS[quick], report)

    def per_step(case, kind):
        # Not the same turn's empty round, whose noise would be added.
        once = statistics.median(found[kind] for found in empty[case])
        in_turns = [statistics.fmean(t[kind] for t in found) for found in full[case]]
        return tuple((seconds - once) / _STEPS for seconds in in_turns)

    return [
        row(
            *case,
            seconds=per_step(case, 0),
            fedavg_seconds=per_step(fedavg, 0),
            wall_seconds=per_step(case, 1),
            fedavg_wall_seconds=per_step(fedavg, 1),
            empty_round_seconds=statistics.median(t[0] for t in empty[case]),
            multiply_adds_ratio=multiply_adds[case] / multiply_adds[fedavg],
        )
        for case in settings.items()
        for fedavg in [(_FEDAVG, case[1])]
    ]


def _time(cases, rounds, turns: int, report) -> tuple[dict, dict]:
    """Times rounds without a step, and with `_STEPS`, in turns.

    Returns:
      For each case the times of its empty rounds, and of each turn's full rounds.
    """
    empty, full = ({case: [] for case in cases} for _ in range(2))
    for turn in range(turns):
        for case in cases:
            full[case].append([])
        for number, case in enumerate(cases):
            # FedAvg's are in every ratio: several of them, spread over the turns.
            again = [] if number % _BETWEEN else [(_FEDAVG, case[1])]
            for each in dict.fromkeys([*again, case]):
                empty[each].append(rounds[each].time(0, turn))
                full[each][-1].append(rounds[each].time(_STEPS, turn))
        report(f"{turn + 1} of {turns} turns of each")
    return empty, full


def row(
    method: str,
    setting: Setting,
    *,
    seconds: Sequence[float],
    fedavg_seconds: Sequence[float],
    wall_seconds: Sequence[float],
    fedavg_wall_seconds: Sequence[float],
    empty_round_seconds: float,
    multiply_adds_ratio: float,
) -> dict[str, Any]:
    """A method's result: medians, and quartiles of the ratios.

    Args:
      method: The process name.
      setting: The network and batches.
      seconds: Processor seconds per step, one number for each of at least two turns.
      fedavg_seconds: FedAvg's on the same network, in the same turns.
      wall_seconds: Wall-clock seconds per step.
      fedavg_wall_seconds: FedAvg's wall-clock seconds.
      empty_round_seconds: Processor seconds of a round without a step, the median.
      multiply_adds_ratio: Multiply-adds of a step over those of FedAvg's.

    Returns:
      JSON values by name. Seconds are processor seconds per step, and the ratio is
      computed from them, unless a key says `wall` or `round`.
    """
    ratios = [a / b for a, b in zip(seconds, fedavg_seconds)]
    walls = [a / b for a, b in zip(wall_seconds, fedavg_wall_seconds)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "method": method,
        "model": setting.model,
        "batch_size": setting.batch_size,
        "seconds_median": round(statistics.median(seconds), 6),
        "fedavg_seconds_median": round(statistics.median(fedavg_seconds), 6),
        "ratio_to_fedavg": round(median, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "target": TARGETS.get(method),
        "authors_ratio": AUTHORS.get(method),
        "arithmetic_ratio": round(multiply_adds_ratio, 4),
        "wall_seconds_median": round(statistics.median(wall_seconds), 6),
        "wall_ratio_to_fedavg": round(statistics.median(walls), 4),
        "empty_round_seconds": round(empty_round_seconds, 6),
        "turns": len(ratios),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    return subject.to_markdown([_cells(found) for found in rows])


def _cells(found: Mapping[str, Any]) -> dict[str, str]:
    low, high = found["ratio_quartiles"]
    target = _number(found["target"])
    if found["target"] is not None and found["ratio_to_fedavg"] > found["target"]:
        target += " missed"
    return {
        "method": found["method"],
        "on": f"{found['model']}, {found['batch_size']}",
        "ms a step": f"{1000 * found['seconds_median']:.1f}",
        "ratio to FedAvg": f"{found['ratio_to_fedavg']:.2f}",
        "quartiles": f"{low:.2f} - {high:.2f}",
        "target": target,
        "authors' code": _number(found["authors_ratio"]),
        "arithmetic": f"{found['arithmetic_ratio']:.2f}",
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# --- rounds -------------------------------------------------------------------------


def _model_fn(method: str, setting: Setting):
    return models.build_model_fn(
        setting.model,
        image_shape=_IMAGE,
        num_classes=_CLASSES,
        projector=catalogue.settings(method).get("projector", "none"),
    )


class _Rounds:
    """Rounds of one process, always from its initial state."""

    def __init__(self, method: str, setting: Setting):
        self._batch_size = setting.batch_size
        fedavg = training.ProcessSettings.of(_FEDAVG)
        max_norm = fedavg.max_gradient_norm
        if "fedalign" in method.split("+"):
            max_norm = training.ProcessSettings.of("fedalign").max_gradient_norm
        self._process = training.build(
            method,
            _model_fn(method, setting),
            client_data=training.WholeClientData(batch_size=setting.batch_size),
            num_clients=_CLIENTS,
            client_learning_rate=fedavg.client_learning_rate,
            learning_rate_schedule="constant",
            client_momentum=fedavg.client_momentum,
            client_nesterov=fedavg.client_nesterov,
            client_weight_decay=fedavg.client_weight_decay,
            max_gradient_norm=max_norm,
        )
        self._state = self._process.initialize()
        self._client_states = []
        if isinstance(self._process, training.StatefulLearningProcess):
            self._client_states = [[self._process.initial_client_state(self._state)]]

    def count_multiply_adds(self) -> float:
        """Counts the multiply-adds of a step per example."""
        return cost.count_multiply_adds(self._process, draws=_DRAWS).total

    def time(self, steps: int, turn: int) -> tuple[float, float]:
        """Runs a round of one client; returns its processor and wall seconds."""
        examples = steps * self._batch_size
        data = [shared_cases.random_client(_IMAGE, _CLASSES, examples, turn)]
        wall, processor = time.perf_counter(), time.process_time()
        self._process.next(self._state, data, *self._client_states)
        return time.process_time() - processor, time.perf_counter() - wall


def _prepare(cases, report):
    """Makes the processes, runs their first rounds, counts their multiply-adds.

    Tracing, which is Python, and TensorFlow's work at the first round, which is not,
    overlap.
    """
    rounds, multiply_adds = {}, {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = []
        for number, case in enumerate(cases, start=1):
            rounds[case] = _Rounds(*case)
            first.append(pool.submit(rounds[case].time, 1, 0))
            multiply_adds[case] = rounds[case].count_multiply_adds()
            report(f"{number} of {len(cases)} processes made: {case[0]}")
        for future in first:
            future.result()
    return rounds, multiply_adds


# --- the command ----------------------------------------------------------------------


def _define_flags(given: flags.FlagValues) -> None:
    flags.DEFINE_string("methods", None, "Separated by commas.", given)
    flags.DEFINE_enum("model", None, names.MODEL_NAMES, "Network.", given)
    flags.DEFINE_integer("batch_size", 32, "Of a step.", 1, flag_values=given)


def _run(given: flags.FlagValues) -> None:
    setting = Setting(given.model, given.batch_size) if given.model else None
    try:
        methods = parse_methods(given.methods)
        rows = measure(methods, quick=given.quick, setting=setting, report=subject.say)
    except ValueError as error:  # A method that is none, or not for this model.
        raise subject.RefusedError(error) from error
    subject.finish(given, rows, table(rows))
    fedavg = dict.fromkeys(
        (found["model"], found["batch_size"], found["fedavg_seconds_median"])
        for found in rows
    )
    print(
        "Processor time on one core; arithmetic is the ratio of multiply-adds. "
        "FedAvg itself: "
        + "; ".join(
            f"{1000 * seconds:.1f} ms on {model}, {batch_size}"
            for model, batch_size, seconds in fedavg
        )
    )


SUBJECT = subject.Subject(
    run=_run,
    define_flags=_define_flags,
    help="""\
bin/bench methods [--methods=NAME,...] [--quick] [--json=FILE]
  Time of a local step of every method, or of those named, relative to FedAvg's, beside
  the targets and what the authors' code takes. Ten minutes, or four with --quick.

  --methods=NAME,...    methods, or combinations such as fedprox+man
  --model=NAME          the network that all methods run on, and FedAvg; by default
                        ResNet-20 with batches of 32, and ResNet-18 with batches of 8
                        for FedMLB
  --batch_size=N        examples of a step, with --model [32]""",
)
