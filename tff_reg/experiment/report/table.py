"""The table of a comparison, one row per method, as CSV, Markdown and LaTeX.

Deviations are sample deviations (n - 1) over seeds; one seed has none.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.report import (
    differences,
    finished_runs,
    measures,
    printed,
    protocol as protocol_lib,
)
from tff_reg.experiment.report.cells import (
    deviation,
    mean,
    numbers,
    percents,
    rounds_to,
    span,
)
from tff_reg.experiment.report.finished_runs import (
    CLIENTS_COLUMNS,
    COST_COLUMNS,
    HESSIAN_COLUMNS,
    HOW,
    STEP,
    TARGET_COLUMNS,
    Run,
)
from tff_reg.experiment.report.measures import Groups
from tff_reg.experiment.report.tuned import CAPTION, Tuned
from tff_reg.experiment.rounds import (
    metrics,
    progress,
    summary as summary_lib,
)
from tff_reg.methods import catalogue
from tff_reg.settings import Setting, SettingError

_WIDTH = 88
# For each column's name, its heading in `table.md` and its key in `table.csv`.
SHARES = {
    "accuracy": ("accuracy (%)", "accuracy"),
    "best": ("best (%)", "best_accuracy"),
    "ema": ("EMA (%)", "ema_accuracy"),
    "all_clients": ("all clients (%)", "all_clients_accuracy"),
    **{
        name: (f"{name.replace('_', ' ').replace(' ', ': ', 1)} (%)", name)
        for name in metrics.CLIENT_COLUMNS
    },
}
_NOTES = {
    "best": "Best: the highest of all rounds, which the tested examples choose.",
    "ema": (
        "EMA: exponential moving average with momentum"
        f" {summary_lib.EMA_MOMENTUM} over the evaluated rounds."
    ),
    "all_clients": "All clients: that of the mean of all clients' last models.",
}
_NOTES |= dict.fromkeys(
    metrics.CLIENT_COLUMNS,
    "Clients: their accuracies with the global model (of local: with their own);"
    " finetuned: with copies of it that they trained further; weighted: by their"
    " examples; worst tenth: mean of the lowest tenth; deviation: over the clients.",
)
_MODELS = {
    "server": "the server's model",
    "all_clients": "the mean of all clients' last models",
    "best": "the server's model of the best round",
}
COLUMNS = (*SHARES, *HESSIAN_COLUMNS, *COST_COLUMNS, *TARGET_COLUMNS)
COLUMNS_SETTING = Setting(
    "columns",
    str,
    (),
    "columns of table.md, as of FedAlign's Tables 1 and 5; rounds, megabytes, seconds"
    " and multiply_adds are those to target_accuracies; runs are analysed if they are"
    " not yet",
    is_tuple=True,
    choices=COLUMNS,
)
_BOLD = (
    "In bold: the best, and the next ones, down to the first whose 95 % interval of the"
    " paired difference to it excludes 0."
)
_NO_BOLD = (
    "Nothing is in bold: no 95 % interval of a paired difference to the best excludes"
    " 0."
)
_DIGITS = {"mflops": 1, "rest_mflops": 3}

Row = dict[str, Union[str, int, float, None]]


@dataclasses.dataclass(frozen=True)
class Table(printed.Printed):
    """The table of groups of finished runs.

    Attributes:
      groups: The runs of each row by its name.
      rounds: The rounds that get a column.
      targets: The accuracies that get a column.
      columns: Names of `COLUMNS`; empty for the accuracies and seconds.
      weights: The weights at which the Hessian was measured.
      reaching: The measure that has to reach a target, in words.
      protocol: The protocol of the runs.
      tuned: The results of tuning, by group name.
      missing: Names of runs that have not finished.
      baseline: Name of the row that the others are compared with.
    """

    groups: Groups
    rounds: Sequence[int]
    targets: Sequence[float]
    columns: Sequence[str]
    weights: str
    reaching: str
    protocol: protocol_lib.Protocol
    tuned: Mapping[str, Tuned]
    missing: Sequence[str]
    baseline: str

    def rows(self) -> list[Row]:
        """Returns the rows of `table.csv`."""
        return [
            {
                **_row(name, [*map(self._values, group)], group),
                **differences.row(self._differences.get(name, {})),
                **(self.tuned[name].row() if self.tuned else {}),
            }
            for name, group in self.groups.items()
        ]

    def _by_seed(self, key: str) -> dict[str, dict[int, float]]:
        """Returns rows' values by seed; none if a run has none or is not finite."""
        found = {}
        for name, group in self.groups.items():
            values = {
                run.summary["seed"]: self._values(run)[key]
                for run in group
                if run.summary["ends_finite"]
            }
            is_whole = len(values) == len(group) and None not in values.values()
            found[name] = values if is_whole else {}
        return found

    def _values(self, run: Run) -> dict[str, Optional[float]]:
        """Returns what a row has the mean and the deviation of."""
        summary, rounds = run.summary, self.rounds
        at = summary["accuracy_at_rounds"] if rounds else {}
        return {
            "accuracy": summary["final_accuracy"],
            **{key: summary.get(key) for key in self._shares},
            **{name: v for name, v in run.analyses.items() if name not in (HOW, STEP)},
            **{k: v for t in self.targets for k, v in _to_target(run, t).items()},
            **{f"ema_accuracy_at_{r}": at[str(r)]["ema_accuracy"] for r in rounds},
        }

    @functools.cached_property
    def _shares(self) -> list[str]:
        """The keys of accuracies that a run has, and of those that are asked for."""
        of_runs = (run.summary for run in self._runs)
        known = {*self.columns}.union(*of_runs) - {"accuracy"}
        return [key for _, key in SHARES.values() if key in known]

    @functools.cached_property
    def _differences(self) -> dict[str, differences.Difference]:
        if not self._is_paired:
            return {}
        values, known = self._by_seed("accuracy"), {*self.ranked, self.baseline}
        values = {name: each for name, each in values.items() if name in known}
        return differences.to_baseline(values, self.baseline)

    def _best(self, texts: list[str], key: str, choose: Any) -> list[str]:
        """Returns cells with the best in bold, and those that are not proven worse.

        None is if that holds for all rows, or if the runs do not tell which is best.
        """
        if self._why_no_bold:
            return texts
        by_seed = self._by_seed(key).items()
        rows = [each if name in self.ranked else {} for name, each in by_seed]
        is_best = differences.are_best(rows, choose)
        return [
            f"**{text}**" if good and False in is_best else text
            for text, good in zip(texts, is_best)
        ]

    def accuracies(self) -> dict[str, str]:
        """Returns the cells of the final accuracy by row."""
        texts = percents(self.rows(), "accuracy")
        return dict(zip(self.groups, self._best(texts, "accuracy", max)))

    @property
    def ranked(self) -> list[str]:
        """The rows of methods; references have no rank, difference or bold print."""
        known = catalogue.REFERENCES
        groups = self.groups.items()
        return [name for name, g in groups if g[0].config.get("process") not in known]

    @property
    def _is_paired(self) -> bool:
        """Whether runs of one seed differ in the methods alone."""
        return self.protocol.differences.keys() <= {"seeds"}

    @property
    def _runs(self) -> list[Run]:
        return [*itertools.chain(*self.groups.values())]

    @functools.cached_property
    def _other_code(self) -> Optional[str]:
        groups = self.groups.items()
        return identity.different_code({n: [r.config for r in g] for n, g in groups})

    @property
    def _rounds(self) -> str:
        return span([run.summary["rounds"] for run in self._runs])

    def _too_few(self, target: float) -> list[Optional[int]]:
        """Returns each row's fewest rounds of a seed that did not reach a target."""
        return [
            min(
                (
                    run.summary["rounds"]
                    for run in group
                    if run.accuracies
                    and run.summary["rounds_to_target"][str(target)] is None
                ),
                default=None,
            )
            for group in self.groups.values()
        ]

    def below(self, cells: Mapping[str, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol in lines."""
        columns = self.columns or _usual(self.rows())
        has_bold = any("**" in text for column in cells.values() for text in column)
        texts = [self._caption(columns, has_bold), *([CAPTION] if self.tuned else [])]
        fill = functools.partial(textwrap.fill, width=_WIDTH, break_on_hyphens=False)
        lines = [*map(fill, [*texts, *self.notes()])]
        return [*lines, "", *self.protocol.lines()]

    def cells(self) -> dict[str, Sequence[str]]:
        """Returns the cells of `table.md` and `table.tex`, column by column."""
        rows = self.rows()
        columns = self.columns or _usual(rows)
        cells: dict[str, Sequence[str]] = {
            "method": [str(row["process"]) for row in rows],
            "seeds": [str(row["runs"]) for row in rows],
        }
        if self.tuned:
            tuned = [self.tuned[name] for name in self.groups]
            cells["best setting"] = [each.text for each in tuned]
            cells["held out (%)"] = [each.held_out for each in tuned]
        for name in columns:
            if name in SHARES:
                head, key = SHARES[name]
                found = percents(rows, key)
                # The maximum over rounds chose among them by the test examples.
                is_choice = name == "best" or name.endswith("deviation")
                cells[head] = found if is_choice else self._best(found, key, max)
                if name == "accuracy":
                    cells |= differences.cells(
                        self._differences, [*self.groups], self.baseline
                    )
            elif name in HESSIAN_COLUMNS:
                cells[HESSIAN_COLUMNS[name]] = numbers(rows, name)
            elif name in COST_COLUMNS:
                digits = _DIGITS.get(name, 2)
                cells[COST_COLUMNS[name][0]] = [
                    f"{row[f'{name}_mean']:.{digits}f}" for row in rows
                ]
        for number in self.rounds:
            key = f"ema_accuracy_at_{number}"
            cells[f"EMA at {number} (%)"] = self._best(percents(rows, key), key, max)
        for target in self.targets:
            found = rounds_to(rows, target, self._too_few(target))
            key = f"rounds_to_{target}"
            cells[f"rounds to {100 * target:g} %"] = self._best(found, key, min)
            for name in TARGET_COLUMNS:
                if name in self.columns and name != "rounds":
                    found = numbers(rows, f"{name}_to_{target}", ".4g")
                    head = f"{TARGET_COLUMNS[name]} to {100 * target:g} %"
                    cells[head] = found
        if not self.columns or "seconds" in self.columns:
            cells["s a round"] = [f"{row['seconds_per_round']:.2f}" for row in rows]
        return cells

    def notes(self) -> list[str]:
        """Returns sentences on failed clients, idle rounds and different code."""
        notes = []
        if self.missing:
            there = len(self._runs)
            notes.append(
                f"{there} of {there + len(self.missing)} runs are finished; there are"
                f" no results of {'; '.join(self.missing)}."
            )
        notes += finished_runs.troubles(self.groups)
        notes += [*self._passed(), *self._equal()]
        notes += finished_runs.warnings(self._runs)
        configs = [run.config for run in self._runs]
        begun = [
            [run.config.get(digests.KERAS_WEIGHTS) for run in group]
            for group in self.groups.values()
        ]
        if any(len(each) > 1 and each[0] and len({*each}) == 1 for each in begun):
            notes.append(
                "All seeds begin with the same weights, those of the given Keras model:"
                " the deviations do not have that of initial weights."
            )
        if self._other_code:
            notes.append(self._other_code)
        else:  # All by the same code, which may have changed since.
            texts = dict.fromkeys(filter(None, map(identity.other_code, configs)))
            notes += [text.replace("It was", "Runs were") for text in texts]
        return notes

    def _passed(self) -> Iterator[str]:
        """Yields notes on targets that accuracies passed and their averages did not."""
        which = "all_clients" if "all clients" in self.reaching else "accuracies"
        for name, group in self.groups.items():
            for target in self.targets if "moving average" in self.reaching else ():
                passed = [
                    run
                    for run in group
                    if run.summary["rounds_to_target"][str(target)] is None
                    if max(getattr(run, which).values(), default=0) >= target
                ]
                if passed:
                    yield (
                        f"{name}: the accuracy of {len(passed)} of"
                        f" {progress.count(len(group), 'seed')} reached"
                        f" {100 * target:g} %, its moving average did not"
                        " (--target_measure=raw counts the accuracy)."
                    )

    def _equal(self) -> Iterator[str]:
        """Yields notes on methods with the same accuracy in every seed of several."""
        names: dict[Any, list[str]] = {}
        for name, values in self._by_seed("accuracy").items():
            if len(values) > 1:
                same = sorted((seed, round(each, 9)) for seed, each in values.items())
                names.setdefault(tuple(same), []).append(name)
        for first, *others in names.values():
            if others:
                equal = " and ".join(others)
                yield f"{equal}: the same accuracy as {first} in every seed."

    @functools.cached_property
    def _why_no_bold(self) -> str:
        """Why the runs do not tell which is best, in a sentence; empty if they do."""
        if not self.protocol.is_one:
            return "They have no common protocol. Nothing is in bold."
        why = None
        if self.missing:
            why = "runs are missing"
        elif self._other_code:
            why = "not all runs were made by the same code"
        elif min(map(len, self.groups.values())) < 2:
            why = "one seed does not tell which is best"
        return f"Nothing is in bold: {why}." if why else ""

    def _caption(self, columns: Sequence[str], has_bold: bool) -> str:
        accuracy_of = measures.accuracy(self.groups)
        texts = [
            f"{accuracy_of} after {progress.count(self._rounds, 'round')}: mean ±"
            " sample standard deviation (n - 1) over seeds; one seed has no deviation."
        ]
        if " to " in self._rounds:
            texts.append("In curves a run that has ended keeps its last accuracy.")
        if "held-out" in accuracy_of.lower():
            texts.append(
                "Held-out examples are training examples that nobody trains on."
            )
        texts += dict.fromkeys(_NOTES[name] for name in columns if name in _NOTES)
        if len(self.groups) > 1:
            texts.append(self._why_no_bold or (_BOLD if has_bold else _NO_BOLD))
            if "accuracy" in columns and self._is_paired:
                texts.append(differences.in_words(self._differences, self.baseline))
            if references := [name for name in self.groups if name not in self.ranked]:
                names = ", ".join(references)
                texts.append(f"References, without difference or bold print: {names}.")
        if HESSIAN_COLUMNS.keys() & set(columns):
            texts.append(
                "Of the Hessian of the loss on training examples: largest eigenvalue"
                f" and trace at {_MODELS[self.weights]}, and how the clients' differ."
            )
        if COST_COLUMNS.keys() & set(columns):
            texts.append(
                "MFLOPs: multiply-adds of layers in the forward passes of a training"
                " step, an example; other MFLOPs: of what is no layer; params: weights"
                " that a client stores."
            )
        if self.reaching:
            texts.append(
                f"Rounds to a target: the first in which {self.reaching} reaches it;"
                " with a + where a seed never did."
            )
        if set(TARGET_COLUMNS) & set(columns) and self.reaching:
            texts.append(
                "MB and multiply-adds to a target: received, sent and computed by a"
                " client that takes part in every round; s: of training, on the machine"
                " of the runs."
            )
        return " ".join(texts)


def parse_columns(names: Sequence[str], targets: Sequence[float] = ()) -> list[str]:
    """Checks the names of columns, of which some need targets."""
    COLUMNS_SETTING.check(tuple(names))
    lacking = [name for name in names if name in TARGET_COLUMNS and name != "seconds"]
    if lacking and not targets:
        why = f"{lacking[0]} is that to an accuracy: give target_accuracies."
        raise SettingError("columns", tuple(names), why)
    return list(dict.fromkeys(names))


def check_measured(columns: Sequence[str], configs: Sequence[Any]) -> None:
    """Checks that planned runs will measure what columns show of their clients."""
    for kind, needed in metrics.CLIENT_KINDS.items():
        found = [name for name in columns if name.startswith(f"{kind}_")]
        methods = [c for c in configs if c.process not in catalogue.REFERENCES]
        if found and any(getattr(each, needed) is None for each in methods):
            raise SettingError("columns", found[0], f"the runs need {needed} for it.")
    lacking = {"local": HESSIAN_COLUMNS, "central": CLIENTS_COLUMNS}
    for process in lacking.keys() & {each.process for each in configs}:
        if found := [name for name in columns if name in lacking[process]]:
            raise SettingError("columns", found[0], f"runs of {process} have none.")


def _row(name: str, values: Sequence[Mapping[str, Any]], group: Sequence[Run]) -> Row:
    row: Row = {"process": name, "runs": len(group)}
    for key in values[0]:
        found = [each[key] for each in values]
        row[f"{key}_mean"], row[f"{key}_std"] = mean(found), deviation(found)
    summaries = [run.summary for run in group]
    return {
        **row,
        "seconds_per_round": mean([each["median_round_seconds"] for each in summaries]),
        **finished_runs.counts(group),
    }


def _to_target(run: Run, target: float) -> dict[str, Optional[float]]:
    """Returns the cost to a target by column; None if it is not reached or known."""
    reached = run.summary["rounds_to_target"][str(target)]
    costs = {name: each.get(reached) for name, each in run.costs.items()}
    found = {"rounds": reached, "megabytes": None, **costs}
    return {f"{name}_to_{target}": value for name, value in found.items()}


def _usual(rows: Sequence[Row]) -> list[str]:
    """Returns the default columns."""
    others = ("all_clients", "clients_mean", "clients_worst_tenth", "finetuned_mean")
    keys = {name: f"{SHARES[name][1]}_mean" for name in others}
    known = [n for n in others if any(r.get(keys[n]) is not None for r in rows)]
    return ["accuracy", "ema", *known]
