"""Subsets of the test examples, whose accuracies are measured, too.

They are the domains and, in a long tail, the classes of which the clients train on many
examples (more than 100), medium (20 to 100) or few (less than 20): Z. Liu et al.,
"Large-Scale Long-Tailed Recognition in an Open World", CVPR 2019, Section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.lazy import np

# The beginning and the end of their columns in `metrics.csv`.
_BEGINNING, _END = "evaluation/", "/accuracy"


def of_task(task: Any, has_tail: bool) -> dict[str, Any]:
    """Returns the subsets of a task's test examples, each a mask, bool [n].

    Args:
      task: The task.
      has_tail: Whether classes are told apart by the clients' training examples.
    """
    found = {}
    if getattr(task, "test_domains", None) is not None:
        for number, name in enumerate(task.domain_names):
            found[f"domain/{name}"] = task.test_domains == number
    if has_tail:
        labels, clients = task.test_arrays()[1], task.client_data
        own = np.concatenate([*map(clients.client_positions, clients.client_ids)])
        trained = task.train_labels[np.unique(own)]
        sizes = np.bincount(trained, minlength=1 + labels.max())[labels]
        found["many_shot"] = sizes > 100
        found["medium_shot"] = (sizes >= 20) & (sizes <= 100)
        found["few_shot"] = sizes < 20
    return {name: mask for name, mask in found.items() if mask.any()}


def has(column: str) -> bool:
    """Whether a column of `metrics.csv` has the accuracies of a subset."""
    return "/domain/" in column or column.endswith(f"_shot{_END}")


def accuracies(row: Mapping[str, Optional[float]]) -> dict[str, Optional[float]]:
    """Returns the server model's accuracies in a round, by the subset's name."""
    return {
        name.removeprefix(_BEGINNING).removesuffix(_END): value
        for name, value in row.items()
        if name.startswith(_BEGINNING) and has(name)
    }
