"""Looks into methods and runs: `bin/analyze --help` says at what and how.

The thin end of `tff_reg.analysis`.
"""

import dataclasses
import functools
import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from tff_reg.experiment import interruption

    # First of all, so that Ctrl-C is answered while the rest is imported, too.
    STOP = interruption.Interruption()
    STOP.take_over()

# pylint: disable=wrong-import-position
import tasks
from tff_reg import quiet, runtime
from tff_reg.analysis import cost as cost_lib
from tff_reg.analysis import curvature, plane, spectra
from tff_reg.data import partition_report
from tff_reg.experiment import command_line, directory, files, settings, tables, trained
from tff_reg.lazy import flags, logging
from tff_reg.models import names
from tff_reg.processes import catalog

_COMMAND = "bin/analyze"
_HELP = """\
bin/analyze cost --processes=NAME[+NAME...],... | --run_dir=DIR,... [--csv=FILE]
  What a training step of each method costs a client, counted in the graph that runs:
  10^6 multiply-adds of an example, forward and backward, 10^6 stored weights, and
  10^6 bytes that go down and up in a round.

  --run_dir=DIR,...       of these runs; written to RUN_DIR/analysis/cost.csv too
  --processes=NAME,...    methods, or sums such as feddyn+man
  --model=NAME            the network [resnet56]
  --norm=NAME             its norm, group or batch [batch]
  --num_classes=N         [10]
  --image_shape=H,W,C     [32,32,3]
  --csv=FILE              the table at full precision
  Strengths that change the cost, such as --gradaug_subnetworks, go to the methods that
  have them.

bin/analyze partition --run_dir=DIR | --task=NAME --partition=NAME ...
  Who holds what: a table, and partition.csv and partition.png. Of a run, or of what the
  data flags of bin/run say (--recipe, --task, --data_dir, --partition, --concentration,
  --num_clients, --seed, ...).

  --output_dir=DIR        where the files go [RUN_DIR/analysis, or the folder here]

bin/analyze hessian --run_dir=DIR,... [--output_dir=DIR]
  Largest eigenvalues and trace of the Hessian of the server's model, on training
  examples; H_N, H_D, drift and agreement of the clients' models after one more round of
  training each. Writes hessian.json, hessian.csv, eigenvalues.csv, density.csv and
  clients.csv to RUN_DIR/analysis, and pictures of several eigenvalues and of the
  density; the same command again goes on where it was.

  --examples=N            training examples [512]
  --eigenvalues=N         how many, of largest magnitude [1]
  --trace_tolerance=X     the trace's standard error as a share of it [0.02]
  --trace_samples=N       random vectors at most [200]
  --density_samples=N     random vectors for the spectral density; 0: none [0]
  --clients=N             clients, the first ones; 0: none [16]
  --client_examples=NAME  examples of the clients' Hessians: global (the same for all,
                          as in FedAlign's code) or own [global]
  --diagonal_samples=N    random vectors for a client's diagonal [30]
  --seed=N                of examples and vectors [0]
  --output_dir=DIR        one picture of all runs there [one a run, RUN_DIR/analysis]

bin/analyze landscape --run_dir=DIR,... [--output_dir=DIR]
  The loss on a plane through the weights of the server's model: landscape.csv in
  RUN_DIR/analysis, and landscape.png, of several runs side by side on one scale.
  Resumes.

  --directions=NAME       eigenvectors (of the Hessian's two largest eigenvalues), or
                          random, filter by filter as long as the weights
                          [eigenvectors]
  --extent=X              how far, in lengths of the directions [1]
  --points=N              along each, odd [21]
  --highest=X             losses above are drawn there [the largest]
  --examples=N, --seed=N, --output_dir=DIR   as above

bin/analyze singular_values --run_dir=DIR,... [--output_dir=DIR]
  Of the server's model's classifier: singular_values.csv and .png (UniVarFL's Fig. 1)."""

_MEASURED = {field.name: field for field in dataclasses.fields(curvature.Settings)}


def define_flags():
    """The flags, none of them given yet."""
    given = flags.FlagValues()
    command_line.define_flags(given)
    for name in ("processes", "run_dir", "image_shape"):
        flags.DEFINE_list(name, None, "Separated by commas.", given)
    flags.DEFINE_integer("num_classes", None, "Classes.", 1, flag_values=given)
    flags.DEFINE_string("csv", None, "File for the table.", given)
    flags.DEFINE_enum(
        "directions", None, ["eigenvectors", "random"], "Of the plane.", given
    )
    for name in ("extent", "highest"):
        flags.DEFINE_float(name, None, "Of the plane.", flag_values=given)
    flags.DEFINE_integer("points", None, "Of the plane.", flag_values=given)
    kinds = {"int": flags.DEFINE_integer, "float": flags.DEFINE_float}
    for field in _MEASURED.values():
        if field.name != "seed":  # bin/run has that one.
            define = kinds.get(field.type, flags.DEFINE_string)
            define(field.name, None, field.name, flag_values=given)
    return given


def fail(message, exit_code=2):
    command_line.fail(message, exit_code=exit_code, command=_COMMAND)


def _check_folder(flag, path):
    if not pathlib.Path(path).absolute().parent.is_dir():
        fail(f"--{flag}={path}: there is no such directory.")


def _needed(given, name):
    if not given.get(name):
        fail(f"--{name} is missing; --help says what it is.")
    return given[name]


# --- cost -----------------------------------------------------------------------------

_COST = ("processes", "model", "norm", "num_classes", "image_shape", "csv")


def cost(given):
    """Prints what methods cost."""
    if given.get("csv"):
        _check_folder("csv", given["csv"])
    if "run_dir" in given:
        extra = given.keys() - {"run_dir", "csv"}
        if extra:
            fail(f"--{min(extra)}: leave it out, --run_dir says what is counted.")
        costs = [_cost_of_run(run_dir) for run_dir in given["run_dir"]]
    else:
        costs = _costs_of_processes(given)
    if given.get("csv"):
        files.write_text(given["csv"], _cost_csv(costs))
    print(*tables.to_markdown(cost_lib.columns(costs)), sep="\n")


def _cost_csv(costs):
    return tables.to_csv([dataclasses.asdict(each) for each in costs])


def _cost_of_run(run_dir):
    values = _config(run_dir)
    task = tasks.build(values["task"], **settings.task_settings(values))
    found = cost_lib.measure(
        values["process"],
        model=values["model"],
        norm=values["norm"],
        projector=values["projector"],
        num_classes=task.num_classes,
        image_shape=task.image_shape,
        strengths=settings.strengths(values),
        averages_all_clients=values["averages_all_clients"],
    )
    folder = _analysis_of(run_dir)
    folder.mkdir(exist_ok=True)
    files.write_text(folder / "cost.csv", _cost_csv([found]))
    return found


def _costs_of_processes(given):
    processes = _needed(given, "processes")
    text = given.get("image_shape", ["32", "32", "3"])
    try:
        image_shape = [int(size) for size in text]
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError
    except ValueError:
        fail(
            f"--image_shape={','.join(text)}: give height, width and channels, as in"
            " 32,32,3."
        )
    for name, choices in (("model", names.MODEL_NAMES), ("norm", names.NORM_NAMES)):
        if given.get(name, choices[0]) not in choices:
            fail(f"--{name}={given[name]}: use one of {', '.join(choices)}.")
    own = {}
    for process in processes:
        catalog.parse(process)
        fields = catalog.strength_fields(process)
        own[process] = {f.flag: given[f.flag] for f in fields if f.flag in given}
    for flag in given.keys() - set(_COST):
        if not any(flag in strengths for strengths in own.values()):
            fail(
                f"--{flag}: its method is not part of"
                f" --processes={','.join(processes)}."
            )
    return [
        cost_lib.measure(
            process,
            model=given.get("model", "resnet56"),
            norm=given.get("norm", "batch"),
            num_classes=given.get("num_classes", 10),
            image_shape=image_shape,
            strengths=strengths,
        )
        for process, strengths in own.items()
    ]


# --- runs -----------------------------------------------------------------------------


def _analysis_of(run_dir):
    return pathlib.Path(run_dir) / directory.ANALYSIS


def _config(run_dir):
    """The settings of a run."""
    values = directory.RunDirectory(run_dir).config
    if values is None:
        fail(f"--run_dir={run_dir}: there is no run.")
    return values


def _one_run(given):
    """The directory of the only run; None where none was given."""
    run_dirs = given.get("run_dir") or [None]
    if len(run_dirs) > 1:
        fail(f"--run_dir={','.join(run_dirs)}: give one run.")
    return run_dirs[0]


_PARTITION = ("run_dir", "output_dir", *settings.OF_TASKS, "task", "recipe")


def partition(given):
    """Tells who holds what."""
    run_dir = _one_run(given)
    if run_dir is not None:
        extra = given.keys() - {"run_dir", "output_dir"}
        if extra:
            fail(f"--{min(extra)}: leave it out, --run_dir says which partition it is.")
        values = _config(run_dir)
        output_dir = _analysis_of(run_dir)
    else:
        asked = {k: v for k, v in given.items() if k != "output_dir"}
        values = settings.resolve(
            {"process": "fedavg", **asked},
            task_names=tasks.names(),
            task_defaults=tasks.defaults,
            recipe_settings=tasks.recipes.settings,
        )
        tasks.check_data(values["task"], values["data_dir"])
        output_dir = pathlib.Path()
    output_dir = pathlib.Path(given.get("output_dir", output_dir))
    _check_folder("output_dir", output_dir)
    task = tasks.build(values["task"], **settings.task_settings(values))
    held = partition_report.of_task(task)
    output_dir.mkdir(exist_ok=True)
    title = f"{values['task']}, {values['partition']}"
    if values["concentration"] is not None:
        title += f"({values['concentration']:g})"
    for name, write in (
        ("partition.csv", held.write_csv),
        ("partition.png", lambda path: held.write_figure(path, title=title)),
    ):
        with files.atomic_path(output_dir / name) as temporary:
            write(temporary)
    print(held.markdown())
    print(*held.summary(), sep="\n")
    print(f"In {output_dir}: partition.csv, partition.png")


def _runs(given):
    """The directories of runs, once it is known that all of them are."""
    run_dirs = _needed(given, "run_dir")
    for run_dir in run_dirs:
        _config(run_dir)
    if "output_dir" in given:
        _check_folder("output_dir", given["output_dir"])
    return run_dirs


def _report(line):
    print(line, file=sys.stderr, flush=True)


def _draw(given, name, found, write):
    """Draws one picture of all runs, or one of each; says where it is.

    `found` has what is drawn by the runs' directories, None where there is nothing.
    """
    found = {run_dir: value for run_dir, value in found.items() if value is not None}
    if not found:
        return
    pictures = {_analysis_of(run_dir): {run_dir: found[run_dir]} for run_dir in found}
    if "output_dir" in given:
        pictures = {pathlib.Path(given["output_dir"]): found}
    for folder, drawn in pictures.items():
        folder.mkdir(exist_ok=True)
        write(folder / name, {_name(run_dir): v for run_dir, v in drawn.items()})
        print(f"In {folder}: {name}")


def _name(run_dir):
    """What a run is called in a picture."""
    return pathlib.Path(run_dir).absolute().name


def _of_task(run_dirs):
    """What a picture's subtitle says about its runs."""
    return ", ".join(sorted({_config(run_dir)["task"] for run_dir in run_dirs}))


_HESSIAN = ("run_dir", "output_dir", *_MEASURED)


def hessian(given):
    """Measures runs' curvature."""
    run_dirs = _runs(given)
    chosen = {name: given[name] for name in _MEASURED if name in given}
    try:
        wanted = curvature.Settings(**chosen)
    except ValueError as error:
        fail(f"--{error}")
    columns, results = {"run": []}, {}
    for run_dir in run_dirs:
        with runtime.running("in_process"):
            found = curvature.measure(
                trained.load(run_dir, tasks=tasks),
                wanted,
                _analysis_of(run_dir),
                report=_report,
                progress=sys.stderr.isatty(),
            )
        results[run_dir] = found["results"]
        columns["run"].append(_name(run_dir))
        for row in curvature.rows(found):
            cell = "-" if row["value"] is None else f"{row['value']:.4g}"
            if row["standard_error"] is not None:
                cell += f" ± {row['standard_error']:.2g}"
            columns.setdefault(row["quantity"], []).append(cell)
    print(*tables.to_markdown(columns), sep="\n")
    subtitle = f"{_of_task(run_dirs)}, {wanted.examples} training examples"
    eigenvalues = {d: found["eigenvalues"]["values"] for d, found in results.items()}
    _draw(
        given,
        "eigenvalues.png",
        {d: values if len(values) > 1 else None for d, values in eigenvalues.items()},
        lambda path, drawn: spectra.write_eigenvalues(
            path, drawn, title="Largest eigenvalues of the Hessian", subtitle=subtitle
        ),
    )
    _draw(
        given,
        "density.png",
        {d: curvature.density(found) for d, found in results.items()},
        lambda path, drawn: spectra.write_densities(
            path, drawn, title="Spectral density of the Hessian", subtitle=subtitle
        ),
    )


_LANDSCAPE = (
    "run_dir",
    "output_dir",
    "directions",
    "extent",
    "points",
    "highest",
    "examples",
    "seed",
)


def landscape(given):
    """Draws the loss around runs' models."""
    from tff_reg.analysis import landscape as landscape_lib

    run_dirs = _runs(given)
    chosen = {k: given[k] for k in plane.SETTINGS if k in given}
    try:
        wanted = plane.Settings(**chosen)
    except ValueError as error:
        fail(f"--{error}")
    found = {}
    for run_dir in run_dirs:
        _report(f"landscape of {run_dir}")
        found[run_dir] = plane.measure(
            trained.load(run_dir, tasks=tasks),
            wanted,
            _analysis_of(run_dir),
            progress=sys.stderr.isatty(),
        )
    _draw(
        given,
        "landscape.png",
        found,
        lambda path, drawn: landscape_lib.write_landscapes(
            path,
            drawn,
            title="Loss around the model",
            subtitle=(
                f"{_of_task(run_dirs)}, {wanted.examples} training examples,"
                f" {wanted.directions}"
            ),
            highest=given.get("highest"),
        ),
    )


def singular_values(given):
    """Draws the singular values of runs' classifiers."""
    run_dirs = _runs(given)
    found = {}
    for run_dir in run_dirs:
        run = trained.load(run_dir, tasks=tasks)
        found[run_dir] = spectra.classifier_singular_values(run.model())
        folder = _analysis_of(run_dir)
        folder.mkdir(exist_ok=True)
        rows = [
            {"rank": rank, "singular_value": value}
            for rank, value in enumerate(found[run_dir].tolist(), start=1)
        ]
        files.write_text(folder / "singular_values.csv", tables.to_csv(rows))
    shown = {_name(d): [f"{v:.4g}" for v in values] for d, values in found.items()}
    most = max(map(len, shown.values()))
    ranks = {"rank": [str(rank) for rank in range(1, most + 1)]}
    filled = {d: v + ["-"] * (most - len(v)) for d, v in shown.items()}
    print(*tables.to_markdown({**ranks, **filled}), sep="\n")
    _draw(
        given,
        "singular_values.png",
        found,
        lambda path, drawn: spectra.write_singular_values(
            path,
            drawn,
            title="Singular values of the classifier",
            subtitle=_of_task(run_dirs),
        ),
    )


_SUBJECTS = {
    "cost": (cost, ("run_dir", *_COST, *(f.flag for f in catalog.strength_fields()))),
    "partition": (partition, _PARTITION),
    "hessian": (hessian, _HESSIAN),
    "landscape": (landscape, _LANDSCAPE),
    "singular_values": (singular_values, ("run_dir", "output_dir")),
}


# What goes on where it was, if it was stopped.
_RESUMES = ("hessian", "landscape")


def _where_it_stands(run_dirs):
    where = ", ".join(str(_analysis_of(run_dir)) for run_dir in run_dirs)
    return f"what is done is in {where}, and the same command goes on from there"


@command_line.command(_HELP)
def main(argv, stop):
    """Analyses the subject that is named."""
    values = define_flags()
    words = command_line.parse_own(argv, values, command=_COMMAND, takes_words=True)
    if len(words) != 1 or words[0] not in _SUBJECTS:
        found = " ".join(words) or "nothing"
        fail(
            f"say what to look at, one of: {', '.join(_SUBJECTS)} (found {found});"
            " --help says what they are."
        )
    (subject,) = words
    analyse, taken = _SUBJECTS[subject]
    given = {
        flag: values[flag].value
        for flag in values
        if values[flag].value is not None and flag != "verbosity"
    }
    for flag in given.keys() - set(taken):
        fail(f"--{flag}: {subject} does not take it; --help lists what it does.")
    if subject in _RESUMES and "run_dir" in given:
        stop.say(functools.partial(_where_it_stands, given["run_dir"]))
    stop.before_exit(runtime.shutdown)
    quiet.silence()
    logging.set_verbosity(logging.ERROR)
    try:
        analyse(given)
    except ValueError as error:
        fail(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(error, exit_code=1)


if __name__ == "__main__":
    command_line.execute(main, STOP)
