"""Analyses methods and runs: the command `bin/analyze` of `tff_reg.analysis`."""

import dataclasses
import functools
import pathlib
import sys

from absl import flags, logging

from tff_reg import curves, files, quiet, runtime, tables
from tff_reg.analysis import (
    cost as cost_lib,
    curvature,
    landscape as landscape_lib,
    plane,
    spectra,
)
from tff_reg.commands import command_line
from tff_reg.data import partition_report
from tff_reg.experiment.config import run_config as config, task_settings
from tff_reg.experiment.config.task_settings import TaskSettings
from tff_reg.experiment.report import finished_runs, protocol, trained
from tff_reg.experiment.rounds import description, directory, runs
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError, settings_of

_COMMAND = "bin/analyze"
_USAGE = """\
bin/analyze cost --processes=NAME[+NAME...],... | --run_dir=DIR,... [--csv=FILE]
  The cost of a training step of each method for a client, counted in the graph that
  runs: 10^6 multiply-adds per example, forward and backward; 10^6 stored weights; 10^6
  bytes received and sent per round.

bin/analyze partition --run_dir=DIR | --task=NAME --partition=NAME ...
  The examples of each client of a run, or of the data flags of bin/run: a table, and
  partition.csv and partition.png, skewed images as skews.png.

bin/analyze hessian --run_dir=DIR,... [--output_dir=DIR]
  Eigenvalues of largest magnitude (lambda_max is the first, and may be negative) and
  trace of the Hessian of the server's model, on training examples; H_N, H_D, drift and
  agreement of the clients' models after one more round of training each.

bin/analyze landscape --run_dir=DIR,... [--output_dir=DIR]
  The loss on a plane through the weights of the server's model.

bin/analyze singular_values --run_dir=DIR,... [--output_dir=DIR]
  Singular values of the classifier of the server's model (UniVarFL's Fig. 1).

Tables are written to RUN_DIR/analysis, and pictures too; with --output_dir one picture
of all runs is written there. hessian and landscape resume with the same command.
"""

_OWN = (
    Setting("processes", str, (), "methods or combinations", is_tuple=True),
    Setting("run_dir", str, (), "directories of runs", is_tuple=True),
    Setting("num_classes", int, 10, "number of classes", minimum=1),
    Setting("image_shape", int, (32, 32, 3), "image shape", is_tuple=True, minimum=1),
    Setting("csv", str, None, "file for the table"),
    Setting("highest", float, None, "upper end of the scale"),
    finished_runs.WEIGHTS,
)
_SETTINGS = {
    each.name: each
    for each in (
        *config.listed(),
        *settings_of(curvature.Settings),
        *settings_of(plane.Settings),
        *_OWN,
    )
}


def _names(kind):
    return [each.name for each in settings_of(kind)]


def fail(message, exit_code=2):
    """Prints an error in one line and ends the command."""
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def _needed(given, name):
    return command_line.needed(name, given.get(name))


def _check_left_out(given, allowed):
    """Checks that nothing is given that --run_dir says already."""
    if extra := given.keys() - {"run_dir", allowed}:
        raise SettingError(min(extra), None, "leave it out, --run_dir says it.")


# --- cost -----------------------------------------------------------------------------

_COST = ("processes", "model", "norm", "num_classes", "image_shape", "csv")


def cost(given):
    """Prints the costs of methods or runs, and writes them as CSV files."""
    if given.get("csv"):
        files.check_place(given["csv"], "csv")
    if "run_dir" in given:
        _check_left_out(given, "csv")
        costs = [_cost_of_run(run_dir) for run_dir in given["run_dir"]]
    else:
        costs = _costs_of_processes(given)
    if given.get("csv"):
        _write_costs(given["csv"], costs)
    print(*tables.to_markdown(cost_lib.columns(costs)), sep="\n")


def _write_costs(path, costs):
    files.write_text(path, tables.to_csv([dataclasses.asdict(each) for each in costs]))


def _cost_of_run(run_dir):
    did = _config(run_dir)
    trained.check_is_whole(did, run_dir)
    process = runs.build_process(did, runs.build_task(did))
    found = cost_lib.of_process(process, did.process, did.projector)
    _write_costs(_made_analysis_of(run_dir) / "cost.csv", [found])
    return found


def _costs_of_processes(given):
    processes = _needed(given, "processes")
    image_shape = given.get("image_shape", _SETTINGS["image_shape"].default)
    if len(image_shape) != 3:
        reason = "give height, width and channels, as in 32,32,3."
        raise SettingError("image_shape", image_shape, reason)
    own = {}
    for process in processes:
        fields = catalogue.hyperparameters(process)
        own[process] = {f.flag: given[f.flag] for f in fields if f.flag in given}
    for flag in given.keys() - set(_COST):
        if not any(flag in hyperparameters for hyperparameters in own.values()):
            reason = f"its method is not part of {', '.join(processes)}."
            raise SettingError(flag, None, reason)
    return [
        cost_lib.measure(
            process,
            model=given.get("model", "resnet56"),
            norm=given.get("norm", "batch"),
            num_classes=given.get("num_classes", _SETTINGS["num_classes"].default),
            image_shape=image_shape,
            hyperparameters=hyperparameters,
        )
        for process, hyperparameters in own.items()
    ]


# --- runs -----------------------------------------------------------------------------


def _analysis_of(run_dir, given=None):
    """Returns the directory of the analyses of a run's weights."""
    return finished_runs.analysis_folder(run_dir, _weights(given or {}))


def _made_analysis_of(run_dir, given=None):
    """Makes and returns the directory of the analyses of a run's weights."""
    return files.make_directory(_analysis_of(run_dir, given), "run_dir")


def _weights(given):
    return given.get("weights", "server")


def _config(run_dir):
    """Returns the settings of a run."""
    try:
        values = directory.RunDirectory(run_dir).config
    except directory.DirectoryError:
        values = None
    if values is None:
        raise SettingError("run_dir", run_dir, "there is no run.")
    return config.ResolvedConfig.load(values)


def _one_run(given):
    """Returns the directory of the only run; None if none was given."""
    run_dirs = given.get("run_dir") or [None]
    if len(run_dirs) > 1:
        raise SettingError("run_dir", run_dirs, "give one run.")
    return run_dirs[0]


_PARTITION = ("run_dir", "output_dir", "recipe", *_names(TaskSettings))


def partition(given):
    """Prints the examples of each client, and writes them as a table and a figure."""
    run_dir = _one_run(given)
    if run_dir is not None:
        _check_left_out(given, "output_dir")
        asked = _config(run_dir)
        if asked.task == task_settings.OWN_DATA:
            trained.check_is_whole(asked, run_dir)
        output_dir = _analysis_of(run_dir)
    else:
        of_task = {k: v for k, v in given.items() if k != "output_dir"}
        asked = protocol.asked(config.RunConfig(process="fedavg", **of_task)).resolved()
        output_dir = pathlib.Path()
    output_dir = pathlib.Path(given.get("output_dir", output_dir))
    files.check_place(output_dir, "output_dir")
    task = runs.build_task(asked)
    held = partition_report.of_task(task, asked.part(TaskSettings))
    files.make_directory(output_dir, "output_dir")
    made = {"partition.csv": held.write_csv, "partition.png": held.write_figure}
    if any(held.skews):
        made["skews.png"] = functools.partial(
            partition_report.write_skews, task, held.skews
        )
    for name, write in made.items():
        with files.atomic_path(output_dir / name) as temporary:
            write(temporary)
    of = description.partition(asked)
    where = f"{asked.num_clients} clients, seed {asked.seed_of_split}"
    print(f"{asked.task}, {of}, {where}\n")
    print(held.markdown())
    print(*held.summary(), sep="\n")
    print(f"In {output_dir}: {', '.join(made)}")


def _runs(given):
    """Returns the directories of runs, after checking that each has a run."""
    run_dirs = _needed(given, "run_dir")
    for run_dir in run_dirs:
        _config(run_dir)
    if "output_dir" in given:
        files.check_place(given["output_dir"], "output_dir")
    return run_dirs


def _chosen(kind, given):
    return kind(**{name: given[name] for name in _names(kind) if name in given})


def _report(line):
    print(line, file=sys.stderr, flush=True)


def _draw(given, name, found, draw):
    """Draws one figure of all runs, or one per run; prints where it is.

    `found` maps the runs' directories to the values to draw; None for nothing to draw.
    """
    found = {run_dir: value for run_dir, value in found.items() if value is not None}
    if not found:
        return
    pictures = {_analysis_of(d, given): {d: found[d]} for d in found}
    if "output_dir" in given:
        pictures = {pathlib.Path(given["output_dir"]): found}
    for folder, drawn in pictures.items():
        files.make_directory(folder, "output_dir")
        names = _run_names(drawn)
        figure = draw({names[run_dir]: v for run_dir, v in drawn.items()})
        files.write_bytes(folder / name, curves.as_png(figure))
        print(f"In {folder}: {name}")


def _run_names(run_dirs):
    """Returns a name for each run: its directory's, or the path if two share it."""
    names = {run_dir: pathlib.Path(run_dir).resolve().name for run_dir in run_dirs}
    is_clear = len(set(names.values())) == len(names)
    return names if is_clear else {run_dir: str(run_dir) for run_dir in run_dirs}


_HESSIAN = ("run_dir", "output_dir", "weights", *_names(curvature.Settings))


def hessian(given):
    """Measures the curvature of the loss at the models of runs."""
    run_dirs = _runs(given)
    if _weights(given) != "server":
        given = {"clients": 0, **given}
    wanted = _chosen(curvature.Settings, given)
    columns, results, names = {"run": []}, {}, _run_names(run_dirs)
    for run_dir in run_dirs:
        with runtime.running("in_process"):
            found = curvature.measure(
                trained.load(run_dir, weights=_weights(given)),
                wanted,
                _made_analysis_of(run_dir, given),
                report=_report,
            )
        results[run_dir] = found["results"]
        columns["run"].append(names[run_dir])
        for row in curvature.rows(found):
            cell = "-" if row["value"] is None else f"{row['value']:.4g}"
            if row["standard_error"] is not None:
                cell += f" ± {row['standard_error']:.2g}"
            columns.setdefault(row["quantity"], []).append(cell)
    print(*tables.to_markdown(columns), sep="\n")
    eigenvalues = {d: found["eigenvalues"]["values"] for d, found in results.items()}
    _draw(
        given,
        "eigenvalues.png",
        {d: values if len(values) > 1 else None for d, values in eigenvalues.items()},
        spectra.draw_eigenvalues,
    )
    _draw(
        given,
        "density.png",
        {d: curvature.density(found) for d, found in results.items()},
        spectra.draw_densities,
    )


_LANDSCAPE = ("run_dir", "output_dir", "weights", "highest", *_names(plane.Settings))


def landscape(given):
    """Draws the loss around the models of runs."""
    run_dirs = _runs(given)
    wanted = _chosen(plane.Settings, given)
    found = {}
    for run_dir in run_dirs:
        run = trained.load(run_dir, weights=_weights(given))
        _report(f"landscape of {run_dir}")
        found[run_dir] = plane.measure(
            run,
            wanted,
            _made_analysis_of(run_dir, given),
        )
    _draw(
        given,
        "landscape.png",
        found,
        functools.partial(landscape_lib.draw, highest=given.get("highest")),
    )


def singular_values(given):
    """Prints and draws the singular values of the classifiers of runs."""
    run_dirs = _runs(given)
    found = {}
    for run_dir in run_dirs:
        run = trained.load(run_dir, weights=_weights(given))
        found[run_dir] = spectra.classifier_singular_values(run.model())
        folder = _made_analysis_of(run_dir, given)
        rows = [
            {"rank": rank, "singular_value": value}
            for rank, value in enumerate(found[run_dir].tolist(), start=1)
        ]
        files.write_text(folder / "singular_values.csv", tables.to_csv(rows))
    names = _run_names(found)
    shown = {names[d]: [f"{v:.4g}" for v in values] for d, values in found.items()}
    most = max(map(len, shown.values()))
    ranks = {"rank": [str(rank) for rank in range(1, most + 1)]}
    filled = {d: v + ["-"] * (most - len(v)) for d, v in shown.items()}
    print(*tables.to_markdown({**ranks, **filled}), sep="\n")
    _draw(
        given,
        "singular_values.png",
        found,
        spectra.draw_singular_values,
    )


_SUBJECTS = {
    "cost": (cost, ("run_dir", *_COST, *(f.flag for f in catalogue.hyperparameters()))),
    "partition": (partition, _PARTITION),
    "hessian": (hessian, _HESSIAN),
    "landscape": (landscape, _LANDSCAPE),
    "singular_values": (singular_values, ("run_dir", "output_dir", "weights")),
}


# The analyses that resume when the same command is started again.
_RESUMES = ("hessian", "landscape")


def _where_it_stands(given):
    where = ", ".join(str(_analysis_of(d, given)) for d in given["run_dir"])
    return f"what is done is in {where}, and the same command goes on from there"


@command_line.command
def main(argv, stop):
    """Runs the analysis that the arguments name."""
    values = flags.FlagValues()
    command_line.define_flags(values, _SETTINGS.values())
    words = command_line.parse(argv, values, _USAGE, takes_words=True)
    if len(words) != 1 or words[0] not in _SUBJECTS:
        found = " ".join(words) or "nothing"
        fail(
            f"say what to look at, one of: {', '.join(_SUBJECTS)} (found {found});"
            " --help says what they are."
        )
    (subject,) = words
    analyse, taken = _SUBJECTS[subject]
    given = {
        flag: values[flag].value for flag in _SETTINGS if values[flag].value is not None
    }
    for flag in given.keys() - set(taken):
        fail(f"--{flag}: {subject} does not take it; --help says what it takes.")
    if subject in _RESUMES and "run_dir" in given:
        stop.say(functools.partial(_where_it_stands, given))
    stop.before_exit(runtime.shutdown)
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        for name, value in given.items():
            _SETTINGS[name].check(value)
        analyse(given)
    except ValueError as error:
        fail(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(error, exit_code=1)
