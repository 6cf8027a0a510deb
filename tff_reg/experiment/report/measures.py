"""The measures of compared runs, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from tff_reg.experiment.report.finished_runs import ComparisonError, Run
from tff_reg.experiment.rounds import metrics

Groups = Mapping[str, Sequence[Run]]


def accuracy(groups: Groups) -> str:
    """Returns the description of the accuracies, such as `Test accuracy on digits`."""
    runs = [run for group in groups.values() for run in group]
    tasks = {run.summary["task"] for run in runs}
    (task,) = tasks if len(tasks) == 1 else (None,)
    tested = " or ".join(sorted({metrics.tested(run.config) for run in runs}))
    on = f" on {task}" if task else ""
    return f"{tested.capitalize()} accuracy{on}"


def reaching(groups: Groups, measures: Mapping[str, Optional[str]]) -> str:
    """Returns the measure that has to reach targets, in words."""
    found = set()
    for run in (run for group in groups.values() for run in group):
        given = {name: each for name, each in measures.items() if each}
        says = {**run.config, **given}
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
