"""Runs and their processes, and what runs that have finished leave."""

import csv
import json

from tff_reg import experiment
from tff_reg.experiment.rounds import checkpoints, metrics, progress, summary


class Notes(progress.Progress):
    """Keeps what a run says."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


class Wrapped:
    """A process with something that is done before and after each of its rounds."""

    def __init__(self, process, before=None, after=None):
        self._process, self._before, self._after = process, before, after
        self.round_num = 0
        self.initialize = process.initialize
        self.get_model_weights = process.get_model_weights

    def next(self, *arguments):
        self.round_num += 1
        if self._before:
            self._before(self.round_num)
        output = self._process.next(*arguments)
        return self._after(output) if self._after else output


def table_of(accuracies, **columns):
    """A table of a row a round.

    Args:
      accuracies: Test accuracies, shares; None where a round was not evaluated.
      **columns: By their names in `metrics`, in small letters: what every round has
        there, or a list of what each has.
    """
    usual = {"training_loss": 1.0, "training/accuracy": 0.5, "seconds": 1.0}
    columns = {**usual, "evaluation/accuracy": list(accuracies), **columns}
    table = metrics.MetricsTable()
    for index in range(len(accuracies)):
        row = {metrics.ROUND: index + 1}
        for name, values in columns.items():
            value = values[index] if isinstance(values, list) else values
            column = getattr(metrics, name.upper(), f"training/{name}")
            row[name if "/" in name else column] = value
        table.append(row)
    return table


def write(directory, values, table):
    """Writes what a run of those settings and that table leaves."""
    run = experiment.RunDirectory(directory)
    run.begin(values)
    run.write_metrics(table)
    run.write_summary(summary.summarize(table, values))
    run.close()


def finish(planned, accuracies, *, all_clients=None, loss=1.0, **more):
    """Writes what a planned run leaves when it is finished.

    Args:
      planned: The run.
      accuracies: Test accuracy, a share, round by round.
      all_clients: That of the mean of all clients' models.
      loss: The training's.
      **more: What else its `config.json` has.
    """
    values = {**planned.config.dump(), "total_rounds": len(accuracies), **more}
    columns = {"evaluation_all_clients/accuracy": all_clients, "training_loss": loss}
    write(planned.directory, values, table_of(accuracies, **columns))


def read_csv(path):
    """The rows of a table."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows(path):
    """The rows of a table that a run wrote, without their times and memory."""
    return [
        {
            n: cell
            for n, cell in row.items()
            if n not in (metrics.SECONDS, metrics.MEMORY)
        }
        for row in read_csv(path)
    ]


def results(directory):
    """What of a run must not depend on interruptions: all but times.

    Returns:
      The table's rows, the summary, and the bytes of weights and of the last state.
    """
    summary_ = json.loads((directory / "summary.json").read_text("utf-8"))
    summary_ = {k: v for k, v in summary_.items() if "seconds" not in k}
    (*_, last) = checkpoints.CheckpointStore(directory / "checkpoints").all()
    files = [*sorted(directory.glob("*_weights.npz")), last.part("server_state.npz")]
    kept = {file.relative_to(directory): file.read_bytes() for file in files}
    return rows(directory / "metrics.csv"), summary_, kept
