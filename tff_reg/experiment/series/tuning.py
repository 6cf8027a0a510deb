"""Tuning: each method's settings chosen on held-out training examples.

A grid names settings and the values to try. A method tries all combinations of the
settings that it has: its strengths, and those that every run has. The runs are tested
on held-out training examples (`validation_share`), never on the test set. Once all of
them are finished, the best setting of a method is the one with the best mean over
seeds, among those whose runs all ended with finite numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg import lazy
from tff_reg.experiment.config import resolution, run_config as config_lib
from tff_reg.experiment.report import differences, protocol, quantities
from tff_reg.experiment.report.table import Tuned
from tff_reg.experiment.series import plan as series, sensitivity
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
    strengths = {each.flag for each in catalogue.strengths()}
    own = {each.flag for each in catalogue.strengths(process)}
    names = [name for name in grid if name in own or name not in strengths]
    return [
        dict(zip(names, values))
        for values in itertools.product(*(grid[name] for name in names))
    ]


@dataclasses.dataclass(frozen=True)
class _Tried:
    """The results of the finished runs of settings that a method tried."""

    settings: dict[str, Any]
    accuracies: list[Any]
    is_complete: bool
    not_finite: int

    @property
    def mean(self) -> Any:
        return quantities.mean(self.accuracies)


class Tuning:
    """The tuning runs and their results.

    Attributes:
      names: The settings of the grid, in order.
    """

    def __init__(
        self,
        common: config_lib.RunConfig,
        grid: Mapping[str, tuple],
        *,
        processes: Sequence[str],
        seeds: Sequence[int] = (0,),
        tasks: Any = lazy.tasks,
    ):
        """Plans; nothing is started or written."""
        given = common.given()
        for name in grid:
            if name in given:
                reason = "leave it out: the grid has it."
                raise SettingError(name, given[name], reason)
        names = series.process_names(processes)
        if {*names} & {*catalogue.WITHOUT_MODEL}:
            why = "local has no held-out accuracy to choose by; leave it out."
            raise SettingError("grid", None, why)
        seeds = tuple(dict.fromkeys(seeds))
        strengths = {each.flag for each in catalogue.strengths()}
        own = {name: values for name, values in grid.items() if name in strengths}
        resolution.check_owned(own, names)
        self.names = list(grid)
        share = common.validation_share or VALIDATION_SHARE
        self._common, self._seeds = protocol.asked(common), seeds
        self._tasks, self._study = tasks, series.Study()
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

    @property
    def planned(self) -> list[series.PlannedRun]:
        """All tuning runs."""
        return self._study.runs

    def best(self, finished: Sequence[series.PlannedRun]) -> dict[str, Tuned]:
        """Returns the best setting of each process of which all runs are finished."""
        found = {}
        for process, tried in self._results(finished).items():
            if not all(each.is_complete for each in tried):
                continue
            known = [
                each for each in tried if each.mean is not None and not each.not_finite
            ]
            means = [each.mean for each in tried]
            if known:
                highest = max(each.mean for each in known) - differences.ROUNDING
                tied = [each for each in known if each.mean >= highest]
                best = tied[0]
                found[process] = Tuned(
                    best.settings,
                    best.mean,
                    quantities.deviation(best.accuracies),
                    None if None in means else min(means),
                    len(tried),
                    len(tied) - 1,
                )
            elif not tried:
                found[process] = Tuned({})
        return found

    def rows(self, finished: Sequence[series.PlannedRun]) -> list[dict[str, Any]]:
        """Returns the rows of `grid.csv`: the result of every combination."""
        best = self.best(finished)
        found = []
        for process, tried in self._results(finished).items():
            for each in tried:
                accuracies = [a for a in each.accuracies if a is not None]
                row = {
                    "process": process,
                    **{name: each.settings.get(name) for name in self.names},
                    "runs": len(each.accuracies),
                    sensitivity.MEAN: quantities.mean(accuracies)
                    if accuracies
                    else None,
                    sensitivity.DEVIATION: quantities.deviation(accuracies),
                    "not_finite": each.not_finite,
                    sensitivity.BEST: process in best
                    and each.settings == best[process].settings,
                }
                found.append(row)
        return found

    def _results(
        self, finished: Sequence[series.PlannedRun]
    ) -> dict[str, list[_Tried]]:
        found: dict[str, list[_Tried]] = {process: [] for process in self._tried}
        for process, tried in self._tried.items():
            for each in tried:
                runs = self._study.groups(finished, each.text).get(process, ())
                results = [run.result() or {} for run in runs]
                found[process].append(
                    _Tried(
                        dict(each.settings),
                        [result["final_accuracy"] for result in results],
                        len(results) == len(self._seeds),
                        sum(not result["ends_finite"] for result in results),
                    )
                )
        return found

    def lost(self, finished: Sequence[series.PlannedRun]) -> dict[str, str]:
        """Returns why final runs cannot start, by the runs' names."""
        best, results = self.best(finished), self._results(finished)
        return {
            f"{process}, seed {seed}": "no setting of the grid ended finite"
            if all(each.is_complete for each in tried)
            else "runs of its grid are missing"
            for process, tried in results.items()
            for seed in self._seeds
            if process not in best
        }

    def plan(self, tuned: Mapping[str, Tuned]) -> series.Study:
        """Plans the final runs, which train on all examples with the best settings."""
        study = series.Study()
        for seed, (process, best) in itertools.product(self._seeds, tuned.items()):
            asked = series.of_process(self._with(best.settings), process, seed)
            study.add(process, "", asked, self._tasks)
        return study

    def expected(
        self, finished: Sequence[series.PlannedRun]
    ) -> list[series.PlannedRun]:
        """Plans the final runs; those of an unknown best setting have the first."""
        unknown = [
            dataclasses.replace(
                run,
                asked=dataclasses.replace(run.asked, validation_share=None),
                is_finished=False,
                name=f"{process}, seed {run.asked.seed}",
            )
            for process, results in self._results(finished).items()
            if not all(each.is_complete for each in results)
            for row, text, run in self._study.trials
            if (row, text) == (process, self._tried[process][0].text)
        ]
        return [*self.plan(self.best(finished)).runs, *unknown]
