"""Finished runs side by side: the table and the figure that a paper would have.

    table.csv    a row a method, shares and means at full precision
    table.md     the same in percent, mean and deviation, the best in bold where all
                 have one protocol
    curves.png   test accuracy by round
    curves.csv   its numbers: a row a method and round
    compute.png  by what a client computed, with the column of MFLOPs

Columns of what `bin/analyze hessian` and `bin/analyze cost` leave in the runs'
directories may be asked for (FedAlign's Tables 1 and 5).

Deviations are sample deviations (n - 1) over seeds; one seed has none.
"""

from __future__ import annotations

import pathlib
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from tff_reg import curves, files, tables
from tff_reg.data import digests
from tff_reg.experiment.config import provenance, run_config as config_lib
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import finished_runs, protocol as protocol_lib
from tff_reg.experiment.report.finished_runs import (
    COST_COLUMNS,
    HESSIAN_COLUMNS,
    HOW,
    STEP,
    ComparisonError,
)
from tff_reg.experiment.rounds import (
    description,
    metrics,
    progress,
    summary as summary_lib,
)
from tff_reg.settings import Setting, SettingError

if TYPE_CHECKING:
    from tff_reg.experiment.series.tuning import Tuned

_WIDTH = 88
FILES = ("table.csv", "table.md", "curves.csv", "curves.png", "compute.png")

# By the name of a column, its head in `table.md` and its key in `table.csv`.
_SHARES = {
    "accuracy": ("accuracy (%)", "accuracy"),
    "best": ("best (%)", "best_accuracy"),
    "ema": ("EMA (%)", "ema_accuracy"),
    "all_clients": ("all clients (%)", "all_clients_accuracy"),
}
_MODELS = {
    "server": "the server's model",
    "all_clients": "the mean of all clients' last models",
    "best": "the server's model of the best round",
}
_TUNED = (
    "Held out: accuracy of the best setting on training examples that were left out for"
    " tuning, from the worst setting's; the final runs train on all."
)
COLUMNS = (*_SHARES, *HESSIAN_COLUMNS, *COST_COLUMNS, "seconds")
COLUMNS_SETTING = Setting(
    "columns", str, (), "columns of table.md", is_tuple=True, choices=COLUMNS
)

Row = dict[str, Union[str, int, float, None]]
Runs = Union[Sequence[files.PathLike], Mapping[str, Sequence[files.PathLike]]]


def compare(
    runs: Runs,
    output_dir: files.PathLike,
    *,
    accuracy_at_rounds: Sequence[int] = (),
    target_accuracies: Sequence[float] = (),
    target_measure: Optional[str] = None,
    target_model: Optional[str] = None,
    columns: Sequence[str] = (),
    weights: str = finished_runs.WEIGHTS.default,
    tuned: Mapping[str, Tuned] = {},
    missing: Sequence[str] = (),
) -> list[Row]:
    """Compares finished runs and writes their table and their curves.

    Nothing is written to the runs' directories.

    Args:
      runs: Directories of runs, to be grouped by their process; or directories by the
        name that the table has for them. The runs of a group differ in their seed
        only.
      output_dir: Where the files are written; made if it is not there.
      accuracy_at_rounds: Rounds that get a column.
      target_accuracies: Accuracies (0 to 1) that get a column with the rounds that
        it took to reach them.
      target_measure: What has to reach them, as of `RunConfig`; None for what each
        run's config says.
      target_model: Whose accuracy that is, likewise.
      columns: Names of `COLUMNS`: the columns of `table.md` between the seeds and those
        of rounds and targets, in this order; empty for the accuracies and seconds.
        What runs' analyses have to say for them is in `table.csv` too.
      weights: Of which of the runs' weights the Hessian's eigenvalue and trace are.
      tuned: What came of tuning groups, by the groups' names.
      missing: Names of runs that belong to the comparison and have not finished: they
        are named below the table, and nothing is in bold.

    Returns:
      The rows of `table.csv`, numbers by column, None where a cell is empty.
      `accuracy` is the one after the last round, `ema_accuracy` its exponential moving
      average with momentum 0.9 over the evaluated rounds, `all_clients_accuracy` that
      of the mean of all clients' last models, `seconds_per_round` the mean of the runs'
      medians. `rounds_to_TARGET_mean` is empty where a seed never reached
      the target.

    Raises:
      ComparisonError: If there is no run, one is not finished, a group has different
        settings or numbers of rounds or a seed twice, or a run was not analysed as a
        column needs it, or measured as a target does.
      SettingError: If a round or a target is out of range, there is no such column, or
        nothing can be written to `output_dir`.
      DirectoryError: If a directory is not a run's.
    """
    measures = {"target_measure": target_measure, "target_model": target_model}
    measures = {name: value for name, value in measures.items() if value is not None}
    # The config checks them.
    asked = RunConfig.of(
        {
            "accuracy_at_rounds": tuple(accuracy_at_rounds),
            "target_accuracies": tuple(target_accuracies),
            **measures,
        }
    )
    rounds = tuple(dict.fromkeys(asked.accuracy_at_rounds))
    targets = tuple(dict.fromkeys(asked.target_accuracies))
    wanted = {"accuracy_at_rounds": rounds, "target_accuracies": targets, **measures}
    columns = parse_columns(columns)
    groups = _groups(runs, wanted, columns, weights)
    _check_analysed_alike([run for group in groups.values() for run in group])
    reaching = _reaching(groups, measures) if targets else ""
    rows = [_row(name, group, rounds, targets) for name, group in groups.items()]
    for row in rows if tuned else ():
        row.update(_tuned(tuned[str(row["process"])]))
    protocol = _protocol(groups, tuned)
    directory = files.make_directory(output_dir, "output_dir")
    files.delete_leftovers(directory)
    notes = _notes(groups, rows, missing)
    note = " ".join([protocol.in_short(), *notes])
    _write_curves(directory, groups, note)
    _write_compute(directory / "compute.png", groups, note)
    text = _markdown(
        groups,
        rows,
        rounds,
        targets,
        columns,
        weights,
        reaching,
        protocol,
        notes,
        is_bold=protocol.is_one and not missing,
    )
    files.write_text(directory / "table.md", text)
    files.write_text(directory / "table.csv", tables.to_csv(rows))
    return rows


def _protocol(
    groups: Mapping[str, Sequence[finished_runs.Run]], tuned: Mapping[str, Tuned]
) -> protocol_lib.Protocol:
    return protocol_lib.of(
        {
            name: [
                {**run.config, "total_rounds": run.summary["rounds"]} for run in group
            ]
            for name, group in groups.items()
        },
        chosen={name for each in tuned.values() for name in each.settings},
    )


def parse_columns(names: Sequence[str]) -> list[str]:
    """Checks the names of columns.

    Raises:
      SettingError: If one does not exist or is there twice.
    """
    names = tuple(names)
    COLUMNS_SETTING.check(names)
    for name in names:
        if names.count(name) > 1:
            raise SettingError("columns", names, f"{name} is there twice.")
    return list(names)


def _groups(
    runs: Runs, wanted: Mapping[str, Any], columns: Sequence[str], weights: str
) -> dict[str, list[finished_runs.Run]]:
    groups: dict[str, list[finished_runs.Run]] = {}
    if isinstance(runs, Mapping):
        groups = {
            name: [finished_runs.read(path, wanted, columns, weights) for path in paths]
            for name, paths in runs.items()
        }
    else:
        for path in runs:
            run = finished_runs.read(path, wanted, columns, weights)
            name = run.config.get("process") or run.path.name
            groups.setdefault(name, []).append(run)
    if not all(groups.values()) or not groups:
        raise ComparisonError("There are no runs to compare.")
    for group in groups.values():
        _check_alike(group)
    return groups


def _check_analysed_alike(runs: Sequence[finished_runs.Run]) -> None:
    first, *others = runs
    for run in others:
        if run.analyses.get(HOW) != first.analyses.get(HOW):
            raise ComparisonError(
                f"The Hessians of {first.path} and {run.path} were measured with"
                " different settings; repeat bin/analyze hessian with the same."
            )


def _check_alike(group: Sequence[finished_runs.Run]) -> None:
    first, *others = group
    paths_by_seed = {first.summary["seed"]: first.path}
    for run in others:
        where = f"{first.path} and {run.path}"
        if run.summary["rounds"] != first.summary["rounds"]:
            raise ComparisonError(
                f"{where} have {first.summary['rounds']} and {run.summary['rounds']}"
                " rounds, so they have no mean."
            )
        of_seed = config_lib.decided_by_seed(first.config)
        for name in config_lib.differences(first.config, run.config, of_seed):
            values = f"{name} ({first.config[name]} and {run.config[name]})"
            raise ComparisonError(
                f"{where} differ in {digests.NAMES.get(name, values)}, so they have no"
                " mean; give them names of their own."
            )
        seed = run.summary["seed"]
        if seed in paths_by_seed:
            raise ComparisonError(
                f"{paths_by_seed[seed]} and {run.path} are the same run with the same"
                f" seed, {seed}."
            )
        paths_by_seed[seed] = run.path


def _row(
    name: str,
    group: Sequence[finished_runs.Run],
    rounds: Sequence[int],
    targets: Sequence[float],
) -> Row:
    def values(key: str) -> list[Optional[float]]:
        return [run.summary[key] for run in group]

    row: Row = {
        "process": name,
        "runs": len(group),
        "accuracy_mean": mean(values("final_accuracy")),
        "accuracy_std": deviation(values("final_accuracy")),
        "best_accuracy_mean": mean(values("best_accuracy")),
        "ema_accuracy_mean": mean(values("ema_accuracy")),
        "ema_accuracy_std": deviation(values("ema_accuracy")),
        "all_clients_accuracy_mean": mean(values("all_clients_accuracy")),
        "all_clients_accuracy_std": deviation(values("all_clients_accuracy")),
        "seconds_per_round": mean(values("median_round_seconds")),
        **{
            name: sum(run.summary[name] for run in group)
            for name in ("rejected_clients", "rounds_without_training")
        },
        "not_finite": sum(not run.summary["ends_finite"] for run in group),
    }
    for column in group[0].analyses:
        if column not in (HOW, STEP):
            found = [run.analyses[column] for run in group]
            row[f"{column}_mean"], row[f"{column}_std"] = mean(found), deviation(found)
    for target in targets:
        row[f"rounds_to_{target}_mean"] = mean(
            [run.summary["rounds_to_target"][str(target)] for run in group]
        )
    for round_num in rounds:
        row[f"ema_accuracy_at_{round_num}_mean"] = mean(
            [
                run.summary["accuracy_at_rounds"][str(round_num)]["ema_accuracy"]
                for run in group
            ]
        )
    return row


def _tuned(tuned: Tuned) -> Row:
    """What a row of `table.csv` says of tuning."""
    return {
        "setting": tuned.text,
        "held_out_accuracy_mean": tuned.mean,
        "held_out_accuracy_std": tuned.deviation,
        "held_out_accuracy_lowest": tuned.lowest,
        "settings_tried": tuned.tried,
    }


def mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """The mean; None if one of the values is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def deviation(values: Sequence[Optional[float]]) -> Optional[float]:
    """The sample deviation (n - 1); None for one value, or if one of them is None."""
    known = [value for value in values if value is not None]
    is_whole = len(known) == len(values) >= 2
    return statistics.stdev(known) if is_whole else None


def _markdown(
    groups: Mapping[str, Sequence[finished_runs.Run]],
    rows: Sequence[Row],
    rounds: Sequence[int],
    targets: Sequence[float],
    columns: Sequence[str],
    weights: str,
    reaching: str,
    protocol: protocol_lib.Protocol,
    notes: Sequence[str],
    is_bold: bool,
) -> str:
    cells = {
        "method": [row["process"] for row in rows],
        "seeds": [str(row["runs"]) for row in rows],
    }
    is_tuned = "setting" in rows[0]
    if is_tuned:
        cells["best setting"] = [str(row["setting"]) for row in rows]
        cells["held out (%)"] = [_spread(row) for row in rows]
    for name in columns or _usual(rows):
        if name in _SHARES:
            head, key = _SHARES[name]
            cells[head] = _percents(rows, key, is_bold)
        elif name in HESSIAN_COLUMNS:
            cells[HESSIAN_COLUMNS[name]] = _numbers(rows, name)
        elif name in COST_COLUMNS:
            digits = 1 if name == "mflops" else 3 if name == "rest_mflops" else 2
            cells[COST_COLUMNS[name][0]] = [
                f"{row[f'{name}_mean']:.{digits}f}" for row in rows
            ]
    last = [group[0].summary["rounds"] for group in groups.values()]
    for number in rounds:
        cells[f"EMA at {number} (%)"] = _percents(
            rows, f"ema_accuracy_at_{number}", is_bold
        )
    for target in targets:
        cells[f"rounds to {100 * target:g} %"] = _rounds_to(rows, target, last, is_bold)
    if not columns or "seconds" in columns:
        cells["s a round"] = [f"{row['seconds_per_round']:.2f}" for row in rows]
    lines = tables.to_markdown(cells)
    caption = _caption(
        groups, last, columns or _usual(rows), weights, reaching, protocol, is_bold
    )
    if is_tuned:
        caption += "\n" + textwrap.fill(_TUNED, _WIDTH)
    filled = [textwrap.fill(note, _WIDTH) for note in notes]
    return "\n".join([*lines, "", caption, *filled, "", *protocol.lines(), ""])


def _notes(
    groups: Mapping[str, Sequence[finished_runs.Run]],
    rows: Sequence[Row],
    missing: Sequence[str],
) -> list[str]:
    """What is not well with runs, and whether other code made them, in sentences."""
    there = sum(map(len, groups.values()))
    found = {str(row["process"]): description.troubles(row) for row in rows}
    notes = [f"{name}: {text}." for name, text in found.items() if text]
    if missing:
        notes.insert(
            0,
            f"{there} of {there + len(missing)} runs are finished; there are no results"
            f" of {'; '.join(missing)}.",
        )
    made: dict[str, dict[str, None]] = {}
    for name, group in groups.items():
        for run in group:
            for maker in provenance.makers(run.config):
                made.setdefault(maker, {})[name] = None
    if len(made) > 1:
        by = "; ".join(f"{maker} ({', '.join(names)})" for maker, names in made.items())
        notes.append(f"They were not all made by the same code: {by}.")
    return notes


def _usual(rows: Sequence[Row]) -> list[str]:
    """The columns of who asks for none."""
    has_mean = any(row["all_clients_accuracy_mean"] is not None for row in rows)
    return ["accuracy", "best", "ema", *(["all_clients"] if has_mean else [])]


def _spread(row: Row) -> str:
    """The best setting's accuracy on held-out examples, and the least of all."""
    best, spread = row["held_out_accuracy_mean"], row["held_out_accuracy_std"]
    if best is None:
        return "-"
    text = _percent(best) + ("" if spread is None else f" ± {_percent(spread)}")
    return (
        f"{text} (from {_percent(row['held_out_accuracy_lowest'])},"
        f" {row['settings_tried']} tried)"
    )


def _numbers(rows: Sequence[Row], name: str) -> list[str]:
    """Means with deviations where there are any."""
    return [
        "-"
        if row[f"{name}_mean"] is None
        else f"{row[f'{name}_mean']:.3g}"
        + ("" if row[f"{name}_std"] is None else f" ± {row[f'{name}_std']:.2g}")
        for row in rows
    ]


def _percents(rows: Sequence[Row], name: str, is_bold: bool) -> list[str]:
    """Means in percent, with deviations where there are any; the highest in bold.

    What ended with numbers that are not finite is never the best.
    """
    shown = [_percent(row[f"{name}_mean"]) for row in rows]
    measured = [
        float(text)
        for row, text in zip(rows, shown)
        if text != "-" and not row["not_finite"]
    ]
    is_comparison = sum(text != "-" for text in shown) > 1
    best = max(measured) if is_bold and measured and is_comparison else None
    texts = []
    for row, text in zip(rows, shown):
        spread = row.get(f"{name}_std")
        cell = text if spread is None else f"{text} ± {_percent(spread)}"
        if row["not_finite"]:
            texts.append("not finite" if text == "-" else cell)
        else:
            is_best = text != "-" and float(text) == best
            texts.append(f"**{cell}**" if is_best else cell)
    return texts


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _rounds_to(
    rows: Sequence[Row], target: float, last: Sequence[int], is_bold: bool
) -> list[str]:
    """Mean numbers of rounds, the lowest in bold; `25+` where 25 were not enough."""
    means = [row[f"rounds_to_{target}_mean"] for row in rows]
    reached = [
        number
        for row, number in zip(rows, means)
        if number is not None and not row["not_finite"]
    ]
    has_best = is_bold and reached and len(means) > 1
    best = f"{min(reached):.1f}" if has_best else None
    shown = [
        f"{limit}+" if number is None else f"{number:.1f}"
        for number, limit in zip(means, last)
    ]
    return [
        f"**{text}**" if text == best and not row["not_finite"] else text
        for row, text in zip(rows, shown)
    ]


def _accuracy(groups: Mapping[str, Sequence[finished_runs.Run]]) -> str:
    """What the accuracies are of: on which examples, and of which task."""
    runs = [run for group in groups.values() for run in group]
    tasks = {run.summary["task"] for run in runs}
    (task,) = tasks if len(tasks) == 1 else (None,)
    tested = " or ".join(sorted({metrics.tested(run.config) for run in runs}))
    on = f" on {task}" if task else ""
    return f"{tested.capitalize()} accuracy{on}"


def _reaching(
    groups: Mapping[str, Sequence[finished_runs.Run]], measures: Mapping[str, str]
) -> str:
    """What has to reach targets, in words."""
    found = set()
    for run in (run for group in groups.values() for run in group):
        says = {**run.config, **measures}
        is_raw = says.get("target_measure") == "raw"
        is_of_all = says.get("target_model") == "all_clients"
        if is_of_all and not run.all_clients:
            raise ComparisonError(
                f"{run.path} was not made with averages_all_clients: there is no mean"
                " of all clients' models whose accuracy could reach a target."
            )
        found.add((is_raw, is_of_all))
    if len(found) > 1:
        return "what each run's settings name"
    ((is_raw, is_of_all),) = found
    measure = "the accuracy" if is_raw else "the accuracy's moving average"
    return measure + (" of the mean of all clients' models" if is_of_all else "")


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _caption(
    groups: Mapping[str, Sequence[finished_runs.Run]],
    last: Sequence[int],
    columns: Sequence[str],
    weights: str,
    reaching: str,
    protocol: protocol_lib.Protocol,
    is_bold: bool,
) -> str:
    text = (
        f"{_accuracy(groups)} after {progress.count(_range(last), 'round')},"
        " mean over seeds ± sample deviation (n - 1), which one seed does not have."
    )
    if "held-out" in _accuracy(groups).lower():
        text += " Held-out examples are training examples that nobody trains on."
    if "ema" in columns:
        text += (
            " EMA: exponential moving average with momentum"
            f" {summary_lib.EMA_MOMENTUM} over the evaluated rounds."
        )
    if "all_clients" in columns:
        text += " All clients: that of the mean of all clients' last models."
    if len(groups) > 1:
        best = "The best"
        if protocol.differences:
            best = "They have no common protocol, so nothing"
        elif protocol.unknown:
            best = "Whether they have one protocol is not known, so nothing"
        elif not is_bold:
            best = "Runs are missing, so nothing"
        text += f" {best} is in bold."
    if HESSIAN_COLUMNS.keys() & set(columns):
        text += (
            " Of the Hessian of the loss on training examples: largest eigenvalue and"
            f" trace at {_MODELS[weights]}, and how the clients' differ."
        )
    if COST_COLUMNS.keys() & set(columns):
        text += (
            " MFLOPs: multiply-adds of layers in the forward passes of a training step,"
            " an example; other MFLOPs: of what is no layer; params: weights that a"
            " client stores."
        )
    if reaching:
        text += (
            f" Rounds to a target: the first in which {reaching} reaches it; with a +"
            " where a seed never did."
        )
    return textwrap.fill(text, _WIDTH)


def _write_curves(
    directory: pathlib.Path,
    groups: Mapping[str, Sequence[finished_runs.Run]],
    note: str,
) -> None:
    found = _curves(groups, lambda run, round_num: round_num)
    _write_picture(directory / "curves.png", groups, found, curves.ROUNDS, note)
    rows = [
        {
            "process": curve.name,
            "round": int(round_num),
            "accuracy_mean": mean,
            "accuracy_std": band if len(groups[curve.name]) > 1 else None,
        }
        for curve in found
        for round_num, mean, band in zip(curve.rounds, curve.mean, curve.deviation)
    ]
    if rows:
        files.write_text(directory / "curves.csv", tables.to_csv(rows))
    else:
        files.delete(directory / "curves.csv")


def _write_compute(
    path: pathlib.Path,
    groups: Mapping[str, Sequence[finished_runs.Run]],
    note: str,
) -> None:
    """Accuracy by compute, as FedMLB's Figs. 2 to 4 compare methods."""
    runs = [run for group in groups.values() for run in group]
    if not all(STEP in run.analyses and run.examples for run in runs):
        files.delete(path)
        return
    found = _curves(
        groups,
        lambda run, round_num: run.examples[round_num] * run.analyses[STEP] / 1e3,
    )
    _write_picture(
        path,
        groups,
        found,
        "Multiply-adds of a client that takes part in every round (10^9)",
        note,
    )


def _curves(
    groups: Mapping[str, Sequence[finished_runs.Run]],
    place: Callable[[finished_runs.Run, int], float],
) -> list[curves.Curve]:
    """The groups' curves, but of those that were never evaluated."""
    found = []
    for name, group in groups.items():
        rounds = sorted(set.intersection(*(set(run.accuracies) for run in group)))
        values = [[run.accuracies[number] for run in group] for number in rounds]
        places = [
            statistics.fmean([place(run, number) for run in group]) for number in rounds
        ]
        if rounds:
            means = [statistics.fmean(each) for each in values]
            bands = [deviation(each) or 0.0 for each in values]
            found.append(curves.Curve(name, places, means, bands))
    return found


def _write_picture(
    path: pathlib.Path,
    groups: Mapping[str, Sequence[finished_runs.Run]],
    drawn: Sequence[curves.Curve],
    across: str,
    note: str,
) -> None:
    if not drawn:
        # Nothing was evaluated; an old picture would be of other runs.
        files.delete(path)
        return
    numbers = [len(group) for group in groups.values()]
    subtitle = "one seed"
    if max(numbers) > 1:
        subtitle = f"mean of {_range(numbers)} seeds, bands of one sample deviation"
    curves.write_curves(
        path,
        drawn,
        title=_accuracy(groups),
        subtitle=subtitle,
        across=across,
        note=note,
    )
