"""The table of a comparison, one row per method, as CSV, Markdown and LaTeX.

It is a pivot: its rows are groups of runs, its columns the quantities of a `Layout`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from tff_reg import scores, tables
from tff_reg.data import digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.report import (
    differences,
    finished_runs,
    page,
    protocol as protocol_lib,
    quantities,
)
from tff_reg.experiment.report.finished_runs import ComparisonError, FinishedRun
from tff_reg.experiment.report.quantities import Quantity, mean, span
from tff_reg.experiment.rounds import metrics, progress
from tff_reg.methods import catalogue
from tff_reg.settings import SUMMARY, as_text, check_rules, settings_of, tagged
from tff_reg.training import process_settings

_WIDTH = 88
_MODELS = {
    "server": "the server's model",
    "all_clients": "the mean of all clients' last models",
    "best": "the server's model of the best round",
}
_BOLD = (
    "In bold: the best, and the next ones, down to the first whose 95 % interval of the"
    " paired difference to it excludes 0."
)
_NO_BOLD = (
    "Nothing is in bold: no 95 % interval of a paired difference to the best excludes"
    " 0."
)
_TUNED = (
    "Held out: score of the best setting on training examples that were left out for"
    " tuning; in brackets that of the worst setting, diverged ones included, and how"
    " many were tried. The final"
    " runs train on all examples."
)
# The settings that say what is read from a run.
_OF_SUMMARY = tagged(RunConfig, SUMMARY)
_SCORE, _SECONDS, _EMA_AT, _ROUNDS = "score", "seconds", "ema@", "rounds@"

Groups = Mapping[str, Sequence[FinishedRun]]
Row = dict[str, Union[str, int, float, None]]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a method's tuning.

    Attributes:
      settings: Its best settings by name; empty if the grid has none of its settings.
      mean: Their score on the held-out examples, mean over seeds; None if nothing was
        tuned.
      deviation: Its sample deviation; None for one seed.
      worst: The worst mean of all settings; None if one of them has no finite mean.
      tried: The number of settings that were tried.
      tied: The number of further settings with the same mean.
    """

    settings: Mapping[str, Any]
    mean: Optional[float] = None
    deviation: Optional[float] = None
    worst: Optional[float] = None
    tried: int = 0
    tied: int = 0

    @property
    def text(self) -> str:
        """The settings as `name=value, ...`."""
        texts = [f"{name}={as_text(value)}" for name, value in self.settings.items()]
        return ", ".join(texts) or "-"

    def held_out(self, score: scores.Score) -> str:
        """Returns the best and the worst held-out score of all settings, for people."""
        if self.mean is None:
            return "-"

        def text(value: float) -> str:
            return f"{score.scale * value:{score.form}}"

        worst = "not finite" if self.worst is None else text(self.worst)
        spread = "" if self.deviation is None else f" ± {text(self.deviation)}"
        tried = f"{self.tried} setting{'s' * (self.tried != 1)}"
        if self.tied:
            tried += f", {self.tied + 1} of them tied for the best"
        return f"{text(self.mean)}{spread} ({worst}; {tried})"

    def row(self) -> dict[str, Any]:
        """Returns the result's columns of `table.csv`."""
        return {
            "setting": self.text,
            "held_out_mean": self.mean,
            "held_out_std": self.deviation,
            "held_out_worst": self.worst,
            "settings_tried": self.tried,
            "settings_tied": self.tied,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What a table shows of its runs.

    Attributes:
      score_at_rounds: Rounds that get a column.
      targets: Scores whose first round gets a column; accuracies are 0 to 1.
      target_measure: As in `RunConfig`; None for the value in each run's config.
      target_model: As in `RunConfig`; None for the value in each run's config.
      columns: Columns of `table.md`, of `quantities.COLUMNS`; empty for the usual ones.
      weights: The weights at which the Hessian's eigenvalue and trace are measured.
      tuned: The results of tuning, by row.
      missing: Names of unfinished runs, which the notes list; nothing is in bold then.
      baseline: Name of the row that the others are compared with, seed by seed; None
        for the first.
      names: What rows are called, where it is not their name.
    """

    score_at_rounds: Sequence[int] = ()
    targets: Sequence[float] = ()
    target_measure: Optional[str] = None
    target_model: Optional[str] = None
    columns: Sequence[str] = ()
    weights: str = finished_runs.WEIGHTS.default
    tuned: Mapping[str, Tuned] = dataclasses.field(default_factory=dict)
    missing: Sequence[str] = ()
    baseline: Optional[str] = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        """Checks what runs have to say, and lists each column once."""
        for name in ("score_at_rounds", "targets", "columns"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        RunConfig.of(self.wanted)
        quantities.check(self.columns, self.targets)

    @property
    def wanted(self) -> dict[str, Any]:
        """What is read from each run beside its own: `SUMMARY`'s settings."""
        values = {name: getattr(self, name) for name in _OF_SUMMARY}
        return {n: each for n, each in values.items() if each is not None}

    def called(self, name: str) -> str:
        """Returns what a row is called."""
        return self.names.get(name, name)

    def with_names(self) -> Layout:
        """Returns the layout of a table whose rows have the names that are given."""
        baseline = self.baseline and self.called(self.baseline)
        tuned = {self.called(name): each for name, each in self.tuned.items()}
        return dataclasses.replace(self, baseline=baseline, tuned=tuned, names={})

    @classmethod
    def of(cls, asked: RunConfig, **shown: Any) -> Layout:
        """Returns a layout with the rounds and targets that settings ask for."""
        values = {name: getattr(asked, name) for name in _OF_SUMMARY}
        return cls(**{name: each for name, each in values.items() if each}, **shown)

    def read(self, path: Any) -> FinishedRun:
        """Reads a finished run, with the rounds and targets."""
        return finished_runs.read(path, self.wanted, self.weights)


class Printed:
    """Base class of tables, which have `cells`, lines `below` them, and `rows`."""

    def cells(self) -> Mapping[tables.Head, Sequence[str]]:
        """Returns the cells for people, column by column."""
        raise NotImplementedError

    def below(self, cells: Mapping[tables.Head, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol in lines."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `table.csv`."""
        raise NotImplementedError

    def markdown(self) -> str:
        """Returns the text of `table.md`."""
        cells = self.cells()
        return "\n".join([*tables.to_markdown(cells), "", *self.below(cells), ""])

    def latex(self) -> str:
        """Returns the text of `table.tex`: the same cells, the rest as comments."""
        cells = self.cells()
        below = "\n".join(self.below(cells)).splitlines()
        comments = [f"% {line}".rstrip() for line in below]
        head = "% Needs \\usepackage{booktabs}."
        return "\n".join([head, *tables.to_latex(cells), *comments, ""])

    def html(self) -> str:
        """Returns the table and the text below it for `report.html`."""
        cells = self.cells()
        return page.table(cells, self.below(cells))

    def texts(self) -> dict[str, str]:
        """Returns the contents of `table.csv`, `table.md` and `table.tex`."""
        texts = (tables.to_csv(self.rows()), self.markdown(), self.latex())
        return dict(zip(("table.csv", "table.md", "table.tex"), texts))


@dataclasses.dataclass(frozen=True)
class Table(Printed):
    """The table of groups of finished runs.

    Attributes:
      groups: The runs of each row by its name.
      layout: What it shows of them.
    """

    groups: Groups
    layout: Layout

    @functools.cached_property
    def baseline(self) -> str:
        """Name of the row that the others are compared with."""
        given, groups = self.layout.baseline, [*self.groups]
        if given and self.layout.missing:  # Its runs may be the missing ones.
            return given
        return differences.baseline_of(given or next(iter(self.ranked), given), groups)

    def __post_init__(self):
        """Raises an error if the runs cannot be compared, or lack what is asked for."""
        given = {"targets": self.layout.targets, "score": self.score.name}
        check_rules([s for s in settings_of(RunConfig) if s.name == "targets"], given)
        _ = self.baseline, self._reaching, self._values, self.protocol

    @functools.cached_property
    def score(self) -> scores.Score:
        """The score that all runs are compared by, such as accuracy."""
        found = {run.score.name: run.score for run in self._runs}
        if len(found) > 1:
            raise ComparisonError(
                f"Runs are judged by {' and '.join(sorted(found))}: compare those that"
                " have one score."
            )
        return next(iter(found.values()))

    @functools.cached_property
    def _table(self) -> dict[str, Quantity]:
        return quantities.judged(self.score)

    def _at_places(self, spent: Sequence[Quantity]) -> list[Quantity]:
        """The quantities at the rounds, and some of those to a target at each."""
        rounds, scale = self.layout.score_at_rounds, self.score.scale
        to_targets = [q.at(t, scale) for t in self.layout.targets for q in spent]
        return [*map(self._table[_EMA_AT].at, rounds), *to_targets]

    @functools.cached_property
    def protocol(self) -> protocol_lib.Protocol:
        """The protocol of the runs."""
        return protocol_lib.of(
            configs(self.groups),
            # Methods after different numbers of rounds are not compared.
            chosen={n for each in self.layout.tuned.values() for n in each.settings}
            - {"total_rounds"},
        )

    @functools.cached_property
    def _measured(self) -> list[Quantity]:
        """The quantities of `table.csv`, in its order."""
        kinds, columns = quantities.ANALYSES, self.layout.columns
        asked = [quantities.of(name, self._table) for name in columns]
        has_cost = any(run.examples for run in self._runs)
        has_cost &= any(each.measured_by == quantities.COST for each in asked)

        def has(quantity: Quantity) -> bool:
            """Whether a run has it, or measured it without a result."""
            return any(
                quantity.key in run.summary or quantity.read(run) is not None
                for run in self._runs
            )

        plain = [q for q in self._table.values() if "@" not in q.name]
        plain = [q for q in plain if q.name != _SECONDS and q.measured_by not in kinds]
        analysed = [q for q in asked if "@" not in q.name and q.measured_by in kinds]
        to_target = map(self._table.__getitem__, quantities.TO_TARGET)
        spent = [q for q in to_target if not q.measured_by or has_cost or q in asked]
        return [
            *(q for q in plain if not q.measured_by or q in asked or has(q)),
            *sorted(analysed, key=lambda quantity: kinds.index(quantity.measured_by)),
            *self._at_places(spent),
        ]

    @functools.cached_property
    def _values(self) -> dict[str, dict[str, list[Optional[float]]]]:
        """The runs' values of quantities by row and key."""
        return {
            name: {
                quantity.key: [quantity.read(run) for run in group]
                for quantity in (*self._measured, self._table[_SECONDS])
            }
            for name, group in self.groups.items()
        }

    def rows(self) -> list[Row]:
        """Returns the rows of `table.csv`."""
        return [
            {
                "process": name,
                "runs": len(group),
                **{
                    f"{quantity.key}_{kind}": of(self._values[name][quantity.key])
                    for quantity in self._measured
                    for kind, of in (("mean", mean), ("std", quantities.deviation))
                },
                (key := self._table[_SECONDS].key): mean(self._values[name][key]),
                **finished_runs.counts(group),
                **differences.row(self._differences.get(name, {})),
                **(self.layout.tuned[name].row() if self.layout.tuned else {}),
            }
            for name, group in self.groups.items()
        ]

    def long_rows(self, heading: str) -> list[Row]:
        """Returns a row for each method and quantity, under a setting's heading."""
        shown = [*self._measured, self._table[_SECONDS]]
        return [
            {
                "setting": heading,
                "process": name,
                "quantity": quantity.key,
                "runs": len(group),
                "mean": mean(self._values[name][quantity.key]),
                "std": quantities.deviation(self._values[name][quantity.key]),
                **differences.long_row(found.get(name, {})),
            }
            for quantity in shown
            for found in [self._differences_of(quantity.key)]
            for name, group in self.groups.items()
        ]

    def clients(self) -> list[dict[str, Any]]:
        """Returns the rows of `clients.csv`: those of each run, with its method."""
        return [
            {"process": name, "seed": run.summary["seed"], **row}
            for name, group in self.groups.items()
            for run in group
            for row in run.clients
        ]

    def _by_seed(self, key: str) -> dict[str, dict[int, float]]:
        """Returns rows' values by seed; none if a run has none or is not finite."""
        found = {}
        for name, group in self.groups.items():
            values: Any = {
                run.summary["seed"]: value
                for run, value in zip(group, self._values[name][key])
                if run.summary["ends_finite"]
            }
            is_whole = len(values) == len(group) and None not in values.values()
            found[name] = values if is_whole else {}
        return found

    @functools.cached_property
    def _differences(self) -> dict[str, differences.Difference]:
        return self._differences_of(self.score.name)

    def _differences_of(self, key: str) -> dict[str, differences.Difference]:
        return differences.to_baseline(self.paired(key), self.baseline)

    def paired(self, key: str) -> dict[str, dict[int, float]]:
        """Returns methods' values of a quantity by seed; empty if they are no pairs."""
        known = {*self.ranked, self.baseline} if self._is_paired else ()
        known = () if self._is_repeated else known
        return {n: each for n, each in self._by_seed(key).items() if n in known}

    def quantity(self, name: str) -> Quantity:
        """Returns the quantity of a column, of these runs' score."""
        return quantities.of(name, self._table)

    def by_seed(self, name: str) -> dict[str, dict[int, float]]:
        """Returns methods' values of a column by seed, as `paired`."""
        key = self.quantity(name).key
        is_known = any(each.key == key for each in self._measured)
        return self.paired(key) if is_known else {}

    def column(self, quantity: Quantity) -> list[str]:
        """Returns the cells of a quantity; in bold the best, and the next ones.

        The next ones are those that are not proven worse. None is in bold if that holds
        for all rows, or if the runs do not tell which is best.
        """
        texts = []
        for name, group in self.groups.items():
            otherwise = "-"
            is_of_models = quantity.is_score or quantity.scale == 100
            if is_of_models and finished_runs.counts(group)["not_finite"]:
                otherwise = "not finite"
            if quantity.name == _ROUNDS:
                otherwise = self._too_few(group, quantity.place) or "-"
            texts.append(quantity.text(self._values[name][quantity.key], otherwise))
        if self._why_no_bold or quantity.best is None:
            return texts
        by_seed = self._by_seed(quantity.key).items()
        rows = [each if name in self.ranked else {} for name, each in by_seed]
        is_best = differences.are_best(rows, quantity.best)
        return [
            f"**{text}**" if good and False in is_best else text
            for text, good in zip(texts, is_best)
        ]

    @property
    def ranked(self) -> list[str]:
        """The rows of methods; references have no rank, difference or bold print."""
        known = catalogue.REFERENCES
        groups = self.groups.items()
        return [name for name, g in groups if g[0].config.get("process") not in known]

    @property
    def scored(self) -> list[str]:
        """Those of `ranked` whose server has a whole model, which the score is of."""
        processes = {n: g[0].config.get("process") for n, g in self.groups.items()}
        return [n for n in self.ranked if catalogue.shares_model(processes[n] or "")]

    @property
    def _is_paired(self) -> bool:
        """Whether runs of one seed differ in the methods alone."""
        return self.protocol.differences.keys() <= {"seeds"}

    @functools.cached_property
    def _is_repeated(self) -> bool:
        """Whether each method has one score, but for rounding, in all its seeds."""
        rows = [[*each.values()] for each in self._by_seed(self.score.name).values()]
        several = [row for row in rows if len(row) > 1]
        return bool(several) and all(map(differences.are_equal, several))

    @property
    def _runs(self) -> list[FinishedRun]:
        return [*itertools.chain(*self.groups.values())]

    @functools.cached_property
    def _other_code(self) -> Optional[str]:
        groups = self.groups.items()
        return identity.different_code({n: [r.config for r in g] for n, g in groups})

    @property
    def _rounds(self) -> str:
        return span([run.summary["rounds"] for run in self._runs])

    def _too_few(self, group: Sequence[FinishedRun], target: Any) -> str:
        """Returns how long the shortest run without the target was, such as `25+`."""
        missed = [r for r in group if not r.summary["rounds_to_target"][str(target)]]
        known = [run.summary["rounds"] for run in missed if run.tested]
        return f"{min(known)}+" if known else ""

    @functools.cached_property
    def _columns(self) -> list[str]:
        """The names of the columns that are asked for, or usual."""
        usual = [
            quantity.name
            for quantity in self._measured
            if quantity.is_usual
            and any(
                mean(row[quantity.key]) is not None for row in self._values.values()
            )
        ]
        return [*self.layout.columns] or [_SCORE, "ema", *usual]

    def below(self, cells: Mapping[tables.Head, Sequence[str]]) -> list[str]:
        """Returns the caption, the notes and the protocol in lines."""
        has_bold = any("**" in text for column in cells.values() for text in column)
        texts = [self._caption(has_bold), *([_TUNED] if self.layout.tuned else [])]
        fill = functools.partial(textwrap.fill, width=_WIDTH, break_on_hyphens=False)
        lines = [*map(fill, [*texts, *self.notes()])]
        return [*lines, "", *self.protocol.lines()]

    @property
    def shown(self) -> list[Quantity]:
        """The quantities of `table.md` and `table.tex`."""
        known, asked = self._table, self.layout.columns
        shown = [known[n] for n in self._columns if n in known and n != _SECONDS]
        spent = [n for n in quantities.TO_TARGET if n == _ROUNDS or n[:-1] in asked]
        shown += self._at_places([known[n] for n in spent])
        return [*shown, *[known[_SECONDS]] * (not asked or _SECONDS in asked)]

    @property
    def shown_by_setting(self) -> list[Quantity]:
        """Those of a table of several settings: the score, if no columns are given."""
        return self.shown if self.layout.columns else [self._table[_SCORE]]

    def cells(self) -> dict[tables.Head, Sequence[str]]:
        """Returns the cells of `table.md` and `table.tex`, column by column."""
        cells: dict[tables.Head, Sequence[str]] = {
            "method": [*self.groups],
            "seeds": [str(len(group)) for group in self.groups.values()],
        }
        if self.layout.tuned:
            tuned = [self.layout.tuned[name] for name in self.groups]
            cells["best setting"] = [each.text for each in tuned]
            held_out = [each.held_out(self.score) for each in tuned]
            cells[f"held out{self.score.unit}"] = held_out
        for quantity in self.shown:
            cells[quantity.head] = self.column(quantity)
            if quantity.name == _SCORE:
                cells |= differences.cells(
                    self._differences, [*self.groups], self.baseline, self.score
                )
        return cells

    def notes(self) -> list[str]:
        """Returns sentences on failed clients, idle rounds and different code."""
        notes = []
        if missing := self.layout.missing:
            there = len(self._runs)
            notes.append(
                f"{there} of {there + len(missing)} runs are finished; there are no"
                f" results of {'; '.join(missing)}."
            )
        notes += finished_runs.troubles(self.groups)
        if without := [name for name in self.ranked if name not in self.scored]:
            notes.append(
                f"No {self.score.name}, rank or curve of {' and '.join(without)}: their"
                " server has no whole model. Of the clients' models are the columns"
                " clients_mean and so on (--client_evaluation)."
            )
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
        """Yields notes on targets that scores passed and their averages did not."""
        is_of_all, score = "all clients" in self._reaching, self.score
        values_of = operator.attrgetter("all_clients" if is_of_all else "tested")
        targets = self.layout.targets if "moving average" in self._reaching else ()
        for name, group in self.groups.items():
            for target in targets:
                passed = [
                    run
                    for run in group
                    if run.summary["rounds_to_target"][str(target)] is None
                    if any(score.reaches(v, target) for v in values_of(run).values())
                ]
                if passed:
                    text = f"{score.scale * target:g}{' %' * score.is_share}"
                    yield (
                        f"{name}: the {score.name} of {len(passed)} of"
                        f" {progress.count(len(group), 'seed')} reached"
                        f" {text}, its moving average did not"
                        f" (--target_measure=raw counts the {score.name})."
                    )

    def _equal(self) -> Iterator[str]:
        """Yields notes on methods with the same score in every seed of several."""
        names: dict[Any, list[str]] = {}
        for name, values in self._by_seed(self.score.name).items():
            if len(values) > 1:
                same = sorted((seed, round(each, 9)) for seed, each in values.items())
                names.setdefault(tuple(same), []).append(name)
        for first, *others in names.values():
            if others:
                equal = " and ".join(others)
                yield f"{equal}: the same {self.score.name} as {first} in every seed."

    @functools.cached_property
    def _why_no_bold(self) -> str:
        """Why the runs do not tell which is best, in a sentence; empty if they do."""
        if not self.protocol.is_one:
            return "They have no common protocol. Nothing is in bold."
        why = None
        if self.layout.missing:
            why = "runs are missing"
        elif self._other_code:
            why = "not all runs were made by the same code"
        elif min(map(len, self.groups.values())) < 2:
            why = "one seed does not tell which is best"
        elif self._is_repeated:
            why = "the seeds change the score by rounding alone, as if they were one"
        return f"Nothing is in bold: {why}." if why else ""

    def _caption(self, has_bold: bool) -> str:
        head, reaching = score_of(self.groups), self._reaching
        texts = [
            f"{head} after {progress.count(self._rounds, 'round')}: mean ±"
            " sample standard deviation (n - 1) over seeds; one seed has no deviation."
        ]
        if " to " in self._rounds:
            texts.append("In curves a run that has ended keeps its last score.")
        if "held-out" in head.lower():
            texts.append(
                "Held-out examples are training examples that nobody trains on."
            )
        shown = [*map(quantities.of, self._columns)]
        of_analyses = [
            each for each in shown if each.measured_by in quantities.ANALYSES
        ]
        texts += dict.fromkeys(q.note for q in shown if q not in of_analyses and q.note)
        if len(self.groups) > 1:
            texts.append(self._why_no_bold or (_BOLD if has_bold else _NO_BOLD))
            if _SCORE in self._columns and self._is_paired:
                texts.append(differences.in_words(self._differences, self.baseline))
            if references := [name for name in self.groups if name not in self.ranked]:
                names = ", ".join(references)
                texts.append(f"References, without difference or bold print: {names}.")
        of_analyses.sort(key=lambda quantity: quantity.measured_by == quantities.COST)
        notes = dict.fromkeys(quantity.note for quantity in of_analyses)
        texts += [note.format(_MODELS[self.layout.weights]) for note in notes if note]
        if reaching:
            texts.append(
                f"Rounds to a target: the first in which {reaching} reaches it;"
                " with a + where a seed never did."
            )
        names = {name[:-1] for name in quantities.TO_TARGET}
        if names & {*self._columns} and reaching:
            texts.append(
                "MB and multiply-adds to a target: received, sent and computed by a"
                " client that takes part in every round; s: of training, on the machine"
                " of the runs."
            )
        return " ".join(texts)

    @functools.cached_property
    def _reaching(self) -> str:
        """The measure that has to reach a target, in words; empty without one."""
        found = set()
        for run in self._runs if self.layout.targets else ():
            says = {**run.config, **self.layout.wanted}
            is_of_all = says.get("target_model") == "all_clients"
            if is_of_all and not run.all_clients:
                raise ComparisonError(
                    f"{run.path} was not made with averages_all_clients: there is no"
                    " mean of all clients' models whose score could reach a target."
                )
            found.add((says.get("target_measure") == "raw", is_of_all))
        if len(found) != 1:
            return "what each run's settings name" if found else ""
        ((is_raw, is_of_all),) = found
        measure = f"the {self.score.name}" + ("" if is_raw else "'s moving average")
        return measure + (" of the mean of all clients' models" if is_of_all else "")


def score_of(groups: Groups) -> str:
    """Returns the description of the scores, such as `Test accuracy on digits`."""
    runs = [run for group in groups.values() for run in group]
    tasks = {run.summary["task"] for run in runs}
    (task,) = tasks if len(tasks) == 1 else (None,)
    tested = " or ".join(sorted({metrics.tested(run.config) for run in runs}))
    on = f" on {task}" if task else ""
    return f"{tested.capitalize()} {runs[0].score.name}{on}"


def configs(groups: Groups) -> dict[str, list[dict[str, Any]]]:
    """Returns the settings of each run; `total_rounds` counts the rounds done."""
    return {
        name: [{**run.config, "total_rounds": _rounds(run)} for run in group]
        for name, group in groups.items()
    }


def _rounds(run: FinishedRun) -> Any:
    """The rounds of a run; of how many, if its learning rates depend on that."""
    done, total = run.summary["rounds"], run.config.get("total_rounds")
    if run.ends_itself:
        return total
    is_part = process_settings.depend_on_total(run.config) and done != total
    return f"{done} of {total}" if is_part else done
