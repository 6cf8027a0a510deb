"""Tuning: each method's settings chosen on held-out training examples.

A grid names settings and the values to try. A method tries all combinations of the
settings that it has: its hyperparameters, and those that every run has. The runs are
tested on held-out training examples (`validation_share`), never on the test set. Once
all of them are finished, the best setting of a method is the one with the best mean
over seeds, among those whose runs all ended with finite numbers.

`grid.csv` has one row per method and setting. `sensitivity.png` and `sensitivity.pdf`
show the held-out score over the settings, with one panel per method: a line for one
setting, a heat map for two. With more settings each has its own panel, a line for the
best of the other settings.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg import curves, lazy, scores, tables
from tff_reg.experiment.config import resolution, run_config as config_lib
from tff_reg.experiment.report import differences, protocol, quantities
from tff_reg.experiment.report.table import Tuned
from tff_reg.experiment.series import plan as series
from tff_reg.lazy import np
from tff_reg.methods import catalogue
from tff_reg.settings import COMMON, SETUP, Setting, SettingError, as_text, tagged

GRID = Setting(
    "grid",
    str,
    None,
    "settings to be tuned, such as"
    " 'fedprox_strength=0.001,0.01;man_strength=0.1,0.2': each method tries all"
    " combinations of those that it has, in DIR/tuning, on training examples that are"
    " held out (validation_share, 0.1 by default), never on the test set; then it runs"
    " on all examples with the best",
    placeholder="NAME=X,...;NAME=X,...",
    is_optional=True,
)
# The fraction that is held out by default.
VALIDATION_SHARE = 0.1
FOLDER = "tuning"
# Settings that cannot be tuned: with other data or clients a method is not compared.
_FIXED = tagged(config_lib.RunConfig, COMMON, SETUP)
MEAN, DEVIATION, BEST = "held_out_mean", "held_out_std", "is_best"

_INCHES = (5.6, 4.2)  # Size of a panel.
_COLUMNS = 3
_GREY = "#555555"

Row = dict[str, Any]


def parse(given: Union[str, Mapping[str, Any]]) -> dict[str, tuple]:
    """Reads a grid such as `fedprox_strength=0.001,0.01;man_strength=0.05,0.15`.

    It may also be a dict of the values by name.
    """
    grid: dict[str, tuple] = {}
    for group in series.read_values("grid", given, _FIXED):
        for name, values in group.items():
            grid[name] = tuple(dict.fromkeys((*grid.get(name, ()), *values)))
    return grid


def combinations(process: str, grid: Mapping[str, tuple]) -> list[dict[str, Any]]:
    """Returns the combinations of settings that a process tries."""
    hyperparameters = {each.flag for each in catalogue.hyperparameters()}
    own = {each.flag for each in catalogue.hyperparameters(process)}
    names = [name for name in grid if name in own or name not in hyperparameters]
    return [
        dict(zip(names, values))
        for values in itertools.product(*(grid[name] for name in names))
    ]


@dataclasses.dataclass(frozen=True)
class _Tried:
    """The results of the finished runs of settings that a method tried."""

    settings: dict[str, Any]
    values: list[Any]
    is_complete: bool
    not_finite: int

    @property
    def mean(self) -> Any:
        return quantities.mean(self.values)


class Tuning:
    """The tuning runs of a study, and their results.

    Attributes:
      names: The settings of the grid, in order.
    """

    def __init__(
        self,
        study: series.Study,
        common: config_lib.RunConfig,
        grid: Mapping[str, tuple],
        *,
        processes: Sequence[str],
        seeds: Sequence[int] = (0,),
        tasks: Any = lazy.tasks,
    ):
        """Adds the runs to the study, in a column for each setting."""
        given = common.given()
        for name in grid:
            if name in given:
                reason = "leave it out: the grid has it."
                raise SettingError(name, given[name], reason)
        names = series.process_names(processes)
        if own := [name for name in names if not catalogue.shares_model(name)]:
            why = f"{own[0]} has no held-out score to choose by; leave it out."
            raise SettingError("grid", None, why)
        seeds = tuple(dict.fromkeys(seeds))
        hyperparameters = {each.flag for each in catalogue.hyperparameters()}
        own = {name: values for name, values in grid.items() if name in hyperparameters}
        resolution.check_owned(own, names)
        self.names = list(grid)
        share = common.validation_share or VALIDATION_SHARE
        self._common, self._seeds = protocol.asked(common), seeds
        self._tasks, self._study = tasks, study
        self._tried = {
            process: [Tuned(each) for each in combinations(process, grid) if each]
            for process in names
        }
        for process, tried in self._tried.items():
            for each, seed in itertools.product(tried, seeds):
                self._add(process, each.settings, share, seed)

    def _add(
        self, process: str, settings: Mapping[str, Any], share: float, seed: int
    ) -> None:
        # All settings have the same rounds.
        common = self._with(settings, validation_share=share, stop_at_target=False)
        asked = series.of_process(common, process, seed)
        label = "-".join(f"{name}{as_text(v)}" for name, v in settings.items())
        where = os.path.join(
            self._common.output_dir, FOLDER, f"{process}-{label}-seed{seed}"
        )
        text = Tuned(settings).text
        asked = dataclasses.replace(asked, output_dir=where)
        name = f"{process}, {text}, seed {seed}"
        self._study.add(process, text, asked, self._tasks, name)

    def _with(self, settings: Mapping[str, Any], **more: Any) -> config_lib.RunConfig:
        given = {**self._common.given(), **settings}
        given.pop("validation_share", None)
        return config_lib.RunConfig.of({**given, **more})

    def configs(self) -> dict[str, config_lib.ResolvedConfig]:
        """Returns the final runs' settings, of the first seed, without the grid's."""
        return {name: self._config(name) for name in self._tried}

    def _config(self, process: str) -> config_lib.ResolvedConfig:
        seed, tasks = self._seeds[0], self._tasks
        tasks = tasks[seed] if isinstance(tasks, Mapping) else tasks
        return series.of_process(self._with({}), process, seed).resolved(tasks)

    @property
    def score(self) -> scores.Score:
        """What the runs are judged by."""
        return scores.of(vars(self._config(next(iter(self._tried)))))

    def contents(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Returns the files' contents by name; without numbers to draw, no figure."""
        if not rows:
            return {}
        figure = draw(rows, self.names, self.score)
        drawn = curves.pictures(figure, "sensitivity") if figure else {}
        return {"grid.csv": tables.to_csv(rows), **drawn}

    def best(self) -> dict[str, Tuned]:
        """Returns the best setting of each process of which all runs are finished."""
        found, score = {}, self.score
        for process, tried in self._results().items():
            if not all(each.is_complete for each in tried):
                continue
            known = [
                each for each in tried if each.mean is not None and not each.not_finite
            ]
            means = [each.mean for each in tried]
            if known:
                top = max(score.rank(each.mean) for each in known)
                top -= differences.rounding([each.mean for each in known])
                tied = [each for each in known if score.rank(each.mean) >= top]
                best = tied[0]
                found[process] = Tuned(
                    best.settings,
                    best.mean,
                    quantities.deviation(best.values),
                    None if None in means else score.worst(means),
                    len(tried),
                    len(tied) - 1,
                )
            elif not tried:
                found[process] = Tuned({})
        return found

    def rows(self) -> list[Row]:
        """Returns the rows of `grid.csv`: the result of every combination."""
        best = self.best()
        found = []
        for process, tried in self._results().items():
            for each in tried:
                values = [value for value in each.values if value is not None]
                row = {
                    "process": process,
                    **{name: each.settings.get(name) for name in self.names},
                    "runs": len(each.values),
                    MEAN: quantities.mean(values) if values else None,
                    DEVIATION: quantities.deviation(values),
                    "not_finite": each.not_finite,
                    BEST: process in best and each.settings == best[process].settings,
                }
                found.append(row)
        return found

    def _results(self) -> dict[str, list[_Tried]]:
        found: dict[str, list[_Tried]] = {process: [] for process in self._tried}
        groups, key = self._study.groups(), f"final_{self.score.name}"
        for process, tried in self._tried.items():
            for each in tried:
                runs = groups.get(each.text, {}).get(process, ())
                results = [run.result() or {} for run in runs]
                found[process].append(
                    _Tried(
                        dict(each.settings),
                        [result[key] for result in results],
                        len(results) == len(self._seeds),
                        sum(not result["ends_finite"] for result in results),
                    )
                )
        return found

    def lost(self) -> dict[str, str]:
        """Returns why final runs cannot start, by the runs' names."""
        best = self.best()
        return {
            f"{process}, seed {seed}": "no setting of the grid ended finite"
            if all(each.is_complete for each in tried)
            else "runs of its grid are missing"
            for process, tried in self._results().items()
            for seed in self._seeds
            if process not in best
        }

    def plan_final(self) -> None:
        """Adds the final runs, which train on all examples with the best settings."""
        tuned = self.best().items()
        for seed, (process, best) in itertools.product(self._seeds, tuned):
            asked = series.of_process(self._with(best.settings), process, seed)
            self._study.add(process, "", asked, self._tasks)

    def expected(self) -> list[series.PlannedRun]:
        """Returns final runs of unknown best settings, as if the first were best."""
        return [
            dataclasses.replace(
                run,
                asked=dataclasses.replace(run.asked, validation_share=None),
                is_finished=False,
                name=f"{process}, seed {run.asked.seed}",
            )
            for process, results in self._results().items()
            if not all(each.is_complete for each in results)
            for row, text, run in self._study.trials
            if (row, text) == (process, self._tried[process][0].text)
        ]


def draw(rows: Sequence[Row], names: Sequence[str], score: scores.Score) -> Any:
    """Draws the panels of a grid's rows, leaving out settings with fewer runs.

    `names` are the settings of the grid.
    """
    # A mean over fewer seeds cannot be compared with the others.
    most = max((row["runs"] for row in rows), default=0)
    drawn = [row for row in rows if row[MEAN] is not None and row["runs"] == most]
    panels = _panels(drawn, names, score)
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    figure = curves.new_figure(_INCHES[0] * columns, _INCHES[1] * height)
    found = [score.scale * row[MEAN] for _, _, own in panels for row in own]
    for number, (title, varied, own) in enumerate(panels, start=1):
        axes = figure.add_subplot(height, columns, number)
        if len(varied) == 2:
            _heat_map(axes, varied, own, (min(found), max(found)), score)
        else:
            _line(axes, varied[0], own, score)
        axes.set_title(title, fontsize=14, loc="left")
    figure.tight_layout(pad=1.2)
    return figure


def _panels(
    rows: Sequence[Row], names: Sequence[str], score: scores.Score
) -> list[tuple[str, list[str], list[Row]]]:
    """Returns the title, varied settings and rows of each panel."""
    panels = []
    for process in dict.fromkeys(row["process"] for row in rows):
        own = [row for row in rows if row["process"] == process]
        name = catalogue.published_name(process)
        varied = [each for each in names if len({row[each] for row in own}) > 1]
        if len(varied) <= 2:
            panels += [(name, varied, own)] if varied else []
            continue
        for setting in varied:
            best = [
                max(
                    (row for row in own if row[setting] == value),
                    key=lambda row: (not row.get("not_finite"), score.rank(row[MEAN])),
                )
                for value in dict.fromkeys(row[setting] for row in own)
            ]
            panels.append((f"{name}, best of the other settings", [setting], best))
    return panels


def _ticks(name: str, rows: Sequence[Row]) -> list[Any]:
    """Returns the values of a setting, ascending if they are numbers."""
    values = list(dict.fromkeys(row[name] for row in rows))
    return values if any(isinstance(each, str) for each in values) else sorted(values)


def _line(axes: Any, name: str, rows: Sequence[Row], score: scores.Score) -> None:
    ticks = _ticks(name, rows)
    found = sorted(rows, key=lambda row: ticks.index(row[name]))
    places = [ticks.index(row[name]) for row in found]
    means = [score.scale * row[MEAN] for row in found]
    bands = [score.scale * (row[DEVIATION] or 0.0) for row in found]
    color = curves.color_of(0)
    axes.errorbar(places, means, bands, color=color, marker="o", capsize=3, linewidth=2)
    for place, mean, row in zip(places, means, found):
        if row[BEST]:
            options = {"markerfacecolor": "none", "markersize": 13}
            axes.plot(place, mean, "o", color=curves.color_of(1), **options)
    axes.set_xticks(range(len(ticks)), [as_text(each) for each in ticks])
    axes.set_xlim(-0.4, len(ticks) - 0.6)
    curves.style(axes, name, f"Held-out {score.name}{score.unit}")


def _heat_map(
    axes: Any,
    names: Sequence[str],
    rows: Sequence[Row],
    limits: tuple[float, float],
    score: scores.Score,
) -> None:
    across, up = (_ticks(name, rows) for name in names)
    cells, form = np.full((len(up), len(across)), np.nan), score.form
    if score.is_share:
        form = ".1f"
    for row in rows:
        place = up.index(row[names[1]]), across.index(row[names[0]])
        cells[place] = score.scale * row[MEAN]
        color = "white" if cells[place] > (limits[0] + limits[1]) / 2 else "black"
        deviation = row[DEVIATION]
        spread = "" if deviation is None else f"\n± {score.scale * deviation:{form}}"
        axes.text(
            place[1],
            place[0],
            f"{cells[place]:{form}}{spread}",
            ha="center",
            va="center",
            color=color,
            fontsize=10,
            fontweight="bold" if row[BEST] else "normal",
        )
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="Blues", clim=limits)
    axes.set_xticks(range(len(across)), [as_text(each) for each in across])
    axes.set_yticks(range(len(up)), [as_text(each) for each in up])
    axes.set_xlabel(names[0], fontsize=11)
    axes.set_ylabel(names[1], fontsize=11)
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label(f"Held-out {score.name}{score.unit}", fontsize=10, color=_GREY)
