"""Tasks: a data set, its split and augmentation, and a model that suits it.

    names()         the tasks there are
    defaults(name)  what a task says about itself; loads no TensorFlow
    build(name, ..) the task with its data, a `tff.simulation.baselines.BaselineTask`

A new task is one module with `DEFAULTS` and `load`, and one line in `_MODULES`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from tasks.task_defaults import Override
from tasks.task_defaults import TaskDefaults
from tasks.task_defaults import TaskError

if TYPE_CHECKING:
    from tasks.task import Task

__all__ = ["Override", "TaskDefaults", "TaskError", "build", "defaults", "names"]

_MODULES = {"digits": "tasks.digits"}


def names() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(_MODULES)


def defaults(name: str) -> TaskDefaults:
    """A task's own defaults.

    Raises:
      TaskError: If there is no task of that name.
    """
    return _module(name).DEFAULTS


def build(
    name: str,
    *,
    partition: str,
    num_clients: int,
    seed: int,
    concentration: float | None = None,
    model: str | None = None,
    norm: str | None = None,
    projector: str = "none",
    data_dir: str | None = None,
) -> Task:
    """Loads a task's data and deals its training examples out to clients.

    Args:
      name: One of `names()`.
      partition: One of `tff_reg.data.partitions.names()`.
      num_clients: How many clients.
      seed: Of the partition and of the model's initial weights. The split into
        training and test examples is the task's own and does not depend on it.
      concentration: Of the Dirichlet partitions.
      model: One of `tff_reg.models.MODEL_NAMES`; None is the task's default.
      norm: One of `tff_reg.models.NORM_NAMES`; None is the task's default.
      projector: One of `tff_reg.models.PROJECTOR_NAMES`.
      data_dir: Where the data are on disk, for tasks that need that.

    Returns:
      The task.

    Raises:
      TaskError: If there is no task of that name, or it cannot be built so.
      tff_reg.data.partitions.PartitionError: If the examples cannot be dealt so.
      ValueError: If the model, the norm or the projector is unknown.
    """
    module = _module(name)
    from tasks import task

    return task.build(
        module.DEFAULTS,
        module.load(data_dir),
        partition=partition,
        concentration=concentration,
        num_clients=num_clients,
        seed=seed,
        model=model,
        norm=norm,
        projector=projector,
    )


def _module(name: str) -> ModuleType:
    if name not in _MODULES:
        raise TaskError(
            f"There is no task named {name!r}; use one of {', '.join(_MODULES)}."
        )
    return importlib.import_module(_MODULES[name])
