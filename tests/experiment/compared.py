"""Runs to compare, and the table that a comparison leaves."""

from tests.experiment import finished
from tff_reg import experiment

SETTINGS = experiment.RunConfig(process="fedavg").resolved().dump()


def write_run(path, accuracies, *, columns=None, **others):
    """Writes a finished run with a test accuracy a round (None: not evaluated)."""
    recorded = {
        **SETTINGS,
        "clients_per_round": 2,
        "total_rounds": len(accuracies),
        "batch_size": 32,
        **others,
    }
    columns = {"seconds": 2.0, **(columns or {})}
    finished.write(path, recorded, finished.table_of(accuracies, **columns))
    return path


def lines_of(folder):
    """The table for people, with single spaces."""
    text = (folder / "table.md").read_text("utf-8")
    return [" ".join(line.split()) for line in text.splitlines()]


def text_of(folder):
    """The same in a line."""
    return " ".join(lines_of(folder))
