"""The time of the papers' recipes, for `bin/reproduce --list`.

A run's training has a number of examples, each with a number of multiply-adds that are
counted in the graph of the recipe's local step (`tff_reg.analysis.cost`). A core's
multiply-adds per second are measured on FedAvg's step on the recipe's network, with its
images and batch size: processor time of one thread, as in `methods`. The quotient is
core hours. Methods' other work, evaluation and the server are left out.

Each recipe's row is written to tasks/recipes/work.csv as soon as it is measured.
Recipes in the file are not measured again; delete the file to measure anew.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from absl import flags

from benchmarks.shared import cases, subject
from tff_reg import files, models, runtime, tables, tasks, training
from tff_reg.analysis import cost
from tff_reg.experiment import ResolvedConfig, RunConfig
from tff_reg.lazy import tf
from tff_reg.methods import catalogue
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import artifacts

_FILE = pathlib.Path(recipes.__file__).with_name("work.csv")
# Steps whose random draws are averaged.
_DRAWS = 16
_STEPS = 2
_TURNS = 3
# What a task leaves to its data: nine tenths of HAM10000's 10,015 images.
_EXAMPLES = {"ham10000": 9013}


def examples(config: ResolvedConfig) -> float:
    """The number of examples in all clients' training in all rounds of a run."""
    known = tasks.defaults(config.task)
    count = known.num_train_examples or _EXAMPLES[config.task]
    share = config.clients_per_round / config.num_clients
    return config.total_rounds * config.local_epochs * count * share


def measure(
    path: pathlib.Path = _FILE,
    *,
    names: Optional[list[str]] = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Measures the recipes that the file lacks; sets TensorFlow's threads.

    Args:
      path: The file.
      names: Names of recipes; None for all recipes with runs of their own.
      report: Called with a line now and then.

    Returns:
      The rows of the file.
    """
    if names is None:
        every = [artifacts.canonical(recipe.name) for recipe in recipes.recipes()]
        # Small networks first, FedMLB's, with 31 choices of paths, last.
        names = sorted(dict.fromkeys(every), key=_patience)
    rows = tables.from_csv(path.read_text("utf-8")) if path.exists() else []
    there = {row["recipe"] for row in rows}
    counted: dict[Any, float] = {}
    speeds: dict[Any, float] = {}
    for row in rows:
        config = RunConfig(recipe=row["recipe"]).resolved()
        counted[_step_of(config)] = float(row["step_mflops"])
        speeds[_network_of(config)] = float(row["seconds_per_gflop"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with runtime.running(
        "in_process", devices="CPU:0", clients_in_parallel=1, intra_op_threads=1
    ):
        for name in names:
            if name in there:
                continue
            config = RunConfig(recipe=name).resolved()
            step, network = _step_of(config), _network_of(config)
            if step not in counted:
                counted[step] = _mflops(config, config.process, config.strengths)
            if network not in speeds:
                speeds[network] = _seconds_per_gflop(config)
            total = examples(config) * counted[step] / 1e3
            rows.append(
                {
                    "recipe": name,
                    "examples_m": f"{examples(config) / 1e6:.4g}",
                    "step_mflops": f"{counted[step]:.5g}",
                    "seconds_per_gflop": f"{speeds[network]:.4g}",
                    "core_hours": f"{total * speeds[network] / 3600:.4g}",
                }
            )
            files.write_text(path, tables.to_csv(rows))
            report(f"{name}: {rows[-1]['core_hours']} core hours")
    return rows


def _shape_of(config: ResolvedConfig) -> tuple[tuple[int, int, int], int]:
    known = tasks.defaults(config.task)
    assert known.image_shape is not None and known.num_classes is not None
    return known.image_shape, known.num_classes


def _network_of(config: ResolvedConfig) -> Any:
    return config.model, config.norm, _shape_of(config), config.batch_size


def _step_of(config: ResolvedConfig) -> Any:
    """The settings that determine the multiply-adds of a recipe's step.

    Numbers with fractions only count as present: all recipes have the same widths.
    """
    strengths = {
        name: value > 0 if isinstance(value, float) else value
        for name, value in config.strengths.items()
    }
    return (
        _local(config.process),
        tuple(sorted(strengths.items())),
        config.projector,
        *_network_of(config)[:3],
    )


def _patience(name: str) -> tuple:
    """A key that sorts recipes by the time of tracing."""
    is_slow = "fedmlb" in str(recipes.recipe(name).settings["process"])
    return "/paths-" in name, is_slow, name.startswith("fedmlb/")


def _local(process: str) -> str:
    """The process without server optimisers, whose local step is FedAvg's."""
    methods = catalogue.methods()
    own = [
        part
        for part in catalogue.parts_of(process)
        if "server_optimizer" not in methods[part].required_settings
    ]
    return "+".join(own) or "fedavg"


def _mflops(
    config: ResolvedConfig, process: str, strengths: Mapping[str, Any], **more: Any
) -> float:
    shape, num_classes = _shape_of(config)
    found = cost.measure(
        process,
        model=config.model or "",
        norm=config.norm or "",
        projector=config.projector,
        num_classes=num_classes,
        image_shape=shape,
        strengths=strengths,
        draws=_DRAWS,
        **more,
    )
    return found.forward_mflops + found.forward_rest_mflops + found.backward_mflops


def _seconds_per_gflop(config: ResolvedConfig) -> float:
    """Processor seconds that 10^9 multiply-adds of FedAvg's step take."""
    shape, num_classes = _shape_of(config)
    process = training.build(
        "fedavg",
        models.build_model_fn(
            config.model or "",
            image_shape=shape,
            num_classes=num_classes,
            norm=config.norm,
            projector=config.projector,
        ),
        client_data=training.WholeClientData(batch_size=config.batch_size),
        num_clients=2,
    )
    state = process.initialize()

    def seconds(steps: int, turn: int) -> float:
        count = steps * config.batch_size
        data = [cases.random_client(shape, num_classes, count, turn)]
        before = time.process_time()
        process.next(state, data)
        return time.process_time() - before

    seconds(1, 0)  # Traces.
    once = statistics.median(seconds(0, turn) for turn in range(_TURNS))
    full = statistics.median(seconds(_STEPS, turn) for turn in range(_TURNS))
    gflops = _mflops(config, "fedavg", {}) / 1e3
    return (full - once) / (_STEPS * config.batch_size * gflops)


def _define_flags(given: flags.FlagValues) -> None:
    flags.DEFINE_string("file", str(_FILE), "What is written.", given)


def _run(given: flags.FlagValues) -> None:
    names = None
    if given.quick:
        names = ["man/table1/fedavg"]
    rows = measure(pathlib.Path(given.file), names=names, report=subject.say)
    hours: dict[str, float] = {}
    for row in rows:
        table = row["recipe"].rsplit("/", 1)[0]
        hours[table] = hours.get(table, 0.0) + float(row["core_hours"])
    cells = [
        {"table": name, "core hours": f"{value:.3g}"} for name, value in hours.items()
    ]
    subject.finish(given, rows, subject.to_markdown(cells))


SUBJECT = subject.Subject(
    run=_run,
    define_flags=_define_flags,
    help="""\
bin/bench recipes [--file=FILE] [--quick] [--json=FILE]
  Core hours of the papers' recipes, which bin/reproduce --list sums up: multiply-adds
  counted, and how many a core does measured on each network. Half an hour or more;
  goes on from what the file has.

  --file=FILE           what is written [tasks/recipes/work.csv]""",
)
