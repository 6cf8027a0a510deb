"""The clients of a round, and their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tff_reg import data
from tff_reg.data import sampling
from tff_reg.experiment.rounds import unequal_work

if TYPE_CHECKING:
    from tff_reg.experiment.rounds.training import Training


def draw(training: Training, client_ids: list[str], round_num: int) -> list[str]:
    """Returns the clients that are drawn for a round."""
    if training.sample_fn is not None:
        return sampling.sample_by(training.sample_fn, client_ids, round_num=round_num)
    drawn = {"seed": training.seed, "round_num": round_num}
    if training.client_sampling == "independent":
        share = training.clients_per_round / len(client_ids)
        return data.sample_clients_bernoulli(client_ids, share, **drawn)
    unequal = training.unequal_work
    count = unequal.num_drawn if unequal else training.clients_per_round
    return data.sample_clients(client_ids, count, **drawn)


def with_data(
    training: Training, cohort: Sequence[str], round_num: int
) -> tuple[Sequence[str], list[Any], Mapping[str, float]]:
    """Returns who of a cohort trains, with the data, and columns of `metrics.csv`.

    If nobody is left, it is the first client without examples: the process counts a
    round in which nobody trains.
    """
    unequal = training.unequal_work
    plan = unequal and unequal.plan(cohort, round_num)
    clients = (plan.clients or cohort[:1]) if plan else cohort
    make = training.client_dataset_fn or training.client_data.whole_client_dataset
    datasets = []
    for name in clients:
        key = data.client_key(training.seed, round_num, name)
        work = [plan.work[name]] if plan and plan.work else []
        datasets.append(make(name, key, *work))
    if plan and not plan.clients:
        datasets = [*map(unequal_work.empty, datasets)]
    return clients, datasets, plan.row if plan else {}
