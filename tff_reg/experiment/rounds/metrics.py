"""The metrics of a run, one row per round, and their file `metrics.csv`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from tff_reg.lazy import np, tree

ROUND = "round_num"
SECONDS = "round_seconds"
# The most memory that the process has had.
MEMORY = "peak_megabytes"
# The most memory that it has had of a GPU, where there is one.
GPU_MEMORY = "gpu_peak_megabytes"
TRAINING_LOSS = "training/loss"
NUM_EXAMPLES = "training/num_examples"
EVALUATION_LOSS = "evaluation/loss"
NOT_FINITE = "/not_finite"
# Whether the hook `weigh` of a method gave all clients the weight 0.
ALL_ZERO = "weights/all_zero"
DRIFT = "drift"
# Loss of the mean of all clients' last models, if the server keeps it.
ALL_CLIENTS_LOSS = "evaluation_all_clients/loss"
# Of the clients' accuracies with the global model, and with copies trained further, by
# the settings that ask for them:
CLIENT_KINDS = {"clients": "client_evaluation", "finetuned": "finetune_epochs"}
_BOTH_WAYS = ("mean", "deviation", "worst_tenth", "best_tenth")
CLIENT_MEASURES = ("worst", *_BOTH_WAYS, *(f"weighted_{name}" for name in _BOTH_WAYS))
# by their names in `summary.json`.
CLIENT_COLUMNS = {
    f"{kind}_{name}": f"{kind}/{name}"
    for kind in CLIENT_KINDS
    for name in CLIENT_MEASURES
}

# Names of the accuracy in third-party models, in order of preference.
_ACCURACY_NAMES = (
    "accuracy",
    "sparse_categorical_accuracy",
    "categorical_accuracy",
    "binary_accuracy",
)

Cell = Union[int, float, str]
# What accuracies are of; or held-out training examples.
TEST = "test"


def tested(settings: Mapping[str, Any]) -> str:
    """Returns `test`, or `held-out` for training examples that nobody trains on."""
    return TEST if settings.get("validation_share") is None else "held-out"


def round_metrics(metrics: Any) -> dict[str, Any]:
    """Returns the scalars of the metrics of `LearningProcess.next` by their columns.

    `client_work/train/NAME` becomes `training/NAME`, `aggregator/drift/NAME` becomes
    `drift/NAME`, anything else keeps its path.
    """
    training, others = {}, {}
    for path, leaf in tree.flatten_with_path(metrics):
        value = np.asarray(leaf)
        if value.ndim or value.dtype.kind not in "biuf":
            continue
        parts = [str(part) for part in path]
        if parts[:2] == ["client_work", "train"]:
            training["training/" + "/".join(parts[2:])] = value[()]
        else:
            start = 1 if parts[:2] == ["aggregator", DRIFT] else 0
            others["/".join(parts[start:])] = value[()]
    names = [f"training/{each}" for each in _ACCURACY_NAMES]
    if found := next(filter(training.__contains__, names), None):
        training[names[0]] = training.pop(found)
    return {**training, **others}


def rejected_clients(row: Mapping[str, Any]) -> int:
    """Counts the clients of a round whose updates were left out."""
    names = ("training/rejected_clients", "client_work/rejected_clients")
    return int(next(filter(None, map(row.get, names)), 0))


def methods_not_finite(row: Mapping[str, Any]) -> list[str]:
    """Returns the methods that made numbers which are not finite in a round."""
    found = [name for name, count in row.items() if count and name.endswith(NOT_FINITE)]
    return sorted({name.split("/")[-2] for name in found})


def is_of_subset(column: str) -> bool:
    """Whether a column of `metrics.csv` has the accuracies of a subset."""
    return "/domain/" in column or column.endswith("_shot/accuracy")


def of_subsets(row: Mapping[str, Optional[float]]) -> dict[str, Optional[float]]:
    """Returns the server model's accuracies in a round, by the subset's name."""
    return {
        name.removeprefix("evaluation/").removesuffix("/accuracy"): value
        for name, value in row.items()
        if name.startswith("evaluation/") and is_of_subset(name)
    }


def _text(value: Any) -> str:
    """Returns the shortest text that reads back as the same number."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))  # NumPy 2 writes its own type's name.
    return str(value)


class MetricsTable:
    """Rows of metrics and their text in `metrics.csv`.

    The text of a cell never changes, so a table that was read from a file and continued
    has the same bytes as one that was kept in memory.
    """

    def __init__(self):
        self._columns: Optional[list[str]] = None
        self._rows: list[dict[str, str]] = []
        self._text = ""

    @classmethod
    def parse(cls, text: str) -> MetricsTable:
        """Returns the table whose `text()` was `text`."""
        table = cls()
        reader = csv.DictReader(io.StringIO(text))
        if reader.fieldnames:
            table._columns = list(reader.fieldnames)
            table._rows = list(reader)
            table._text = text
        return table

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row; the first one fixes the columns."""
        if self._columns is None:
            self._columns = [*row]
            self._text = self._line(self._columns)
        # Runs of earlier versions have no memory and no subsets; another machine may
        # have a GPU.
        unknown = {*row} - {*self._columns, MEMORY, GPU_MEMORY}
        unknown -= {*filter(is_of_subset, unknown)}
        if unknown:
            raise ValueError(
                f"Round {row[ROUND]} has a metric `{min(unknown)}` that round"
                f" {self._rows[0][ROUND]} did not have; every round must return the"
                " same metrics."
            )
        cells = {name: _text(row.get(name)) for name in self._columns}
        self._rows.append(cells)
        self._text += self._line(cells.values())

    def replace_last(self, row: Mapping[str, Any]) -> None:
        """Replaces the last row, whose columns the table must have."""
        self._rows.pop()
        self._write_text()
        self.append(row)

    def keep_evaluations(
        self, period: int, beginnings: Union[str, tuple[str, ...]]
    ) -> None:
        """Clears columns with these beginnings in rounds that a period leaves out."""
        for row in self._rows:
            if not period or int(row[ROUND]) % period:
                row.update((n, "") for n in row if n.startswith(beginnings))
        self._write_text()

    def _write_text(self) -> None:
        lines = [self._columns or [], *(row.values() for row in self._rows)]
        self._text = "".join(map(self._line, lines))

    @staticmethod
    def _line(cells: Iterable[str]) -> str:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(cells)
        return buffer.getvalue()

    def text(self) -> str:
        """Returns the table as CSV, with a header; empty before the first row."""
        return self._text

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[float]:
        """Returns the numbers of a column, NaN where a round has none."""
        if self._columns is None or name not in self._columns:
            return [math.nan] * len(self._rows)
        return [float(row[name]) if row[name] else math.nan for row in self._rows]

    def row(self, index: int) -> dict[str, Optional[float]]:
        """Returns a row as numbers, None for an empty cell; the first is row 0."""
        cells = self._rows[index]
        return {name: float(cell) if cell else None for name, cell in cells.items()}

    def rows(self) -> list[dict[str, Optional[float]]]:
        """Returns all rows as numbers, None for an empty cell."""
        return [self.row(index) for index in range(len(self))]
