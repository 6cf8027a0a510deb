"""Tasks: a data set, its split and augmentation, and a model that suits it.

    names()         the tasks there are
    defaults(name)  what a task says about itself; loads no TensorFlow
    check_data(..)  whether its data can be there; loads no TensorFlow either
    build(name, ..) the task with its data, a `tff.simulation.baselines.BaselineTask`

`tasks.recipes` has the papers' experiments by name.

A new task is one module with `DEFAULTS` and `load`, and one line in `_MODULES`.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from tasks import recipes
from tasks.task_defaults import DataError
from tasks.task_defaults import Override
from tasks.task_defaults import TaskDefaults
from tasks.task_defaults import TaskError
from tff_reg.experiment import scale as scale_lib

if TYPE_CHECKING:
    from tasks.task import Task

__all__ = [
    "DataError",
    "Override",
    "TaskDefaults",
    "TaskError",
    "build",
    "check_data",
    "defaults",
    "names",
    "recipes",
]

_MODULES = {
    "digits": "tasks.digits",
    "cifar10": "tasks.cifar10",
    "cifar100": "tasks.cifar100",
    "tiny_imagenet": "tasks.tiny_imagenet",
    "imagenet200": "tasks.imagenet200",
    "stl10": "tasks.stl10",
    "pacs": "tasks.pacs",
    "ham10000": "tasks.ham10000",
    "image_folder": "tasks.image_folder",
    "arrays": "tasks.arrays",
}


def names() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(_MODULES)


def defaults(name: str) -> TaskDefaults:
    """A task's own defaults.

    Raises:
      TaskError: If there is no task of that name.
    """
    return _module(name).DEFAULTS


def check_data(name: str, data_dir: str | None) -> None:
    """Finds out in no time that a task's data are not there.

    Args:
      name: One of `names()`.
      data_dir: As for `build`.

    Raises:
      TaskError: If there is no task of that name.
      DataError: If the task needs a `data_dir`, or there is nothing at `data_dir`.
    """
    known = defaults(name)
    if data_dir is not None:
        if not os.path.exists(data_dir):
            raise known.missing(f"There is nothing at --data_dir={data_dir}")
    elif "data_dir" in known.options and known.tfds_name is None:
        raise known.missing("--data_dir is missing")


def build(
    name: str,
    *,
    partition: str,
    num_clients: int,
    seed: int,
    concentration: float | None = None,
    classes_per_client: int | None = None,
    split_file: str | None = None,
    augmentation: str | None = None,
    model: str | None = None,
    norm: str | None = None,
    projector: str = "none",
    data_dir: str | None = None,
    image_size: int | None = None,
    class_list: str | None = None,
    synthetic_data: bool = False,
    scale: str | None = None,
) -> Task:
    """Loads a task's data and deals its training examples out to clients.

    Args:
      name: One of `names()`.
      partition: One of `tff_reg.data.partitions.names()`.
      num_clients: How many clients.
      seed: Of the partition and of the model's initial weights. The split into
        training and test examples is the task's own and does not depend on it.
      concentration: Of the Dirichlet partitions and of `quantity`.
      classes_per_client: Of the partition `shards`.
      split_file: Of the partition of that name.
      augmentation: One of `tff_reg.data.augmentation.RECIPE_NAMES`; None is the
        task's default.
      model: One of `tff_reg.models.MODEL_NAMES`; None is the task's default.
      norm: One of `tff_reg.models.NORM_NAMES`; None is the task's default, or the
        model's where it cannot have that.
      projector: One of `tff_reg.models.PROJECTOR_NAMES`.
      data_dir: Where the data are on the disk, for tasks with that option. None loads
        them through TFDS, which downloads what it has not got, or is an error.
      image_size: Height and width, for tasks with that option; None is the task's
        default.
      class_list: File that names the classes, for tasks with that option.
      synthetic_data: Whether random images take the place of the data, which need
        not be there then.
      scale: How much of the data is used, as `tff_reg.experiment.scale.parse` takes
        it; None for all.

    Returns:
      The task.

    Raises:
      TaskError: If there is no task of that name, or it cannot be built so.
      DataError: If the data are not there, or not what they should be.
      tff_reg.data.partitions.PartitionError: If the examples cannot be dealt so.
      ValueError: If the model, the norm or the projector is unknown.
    """
    module = _module(name)
    given = {"data_dir": data_dir, "image_size": image_size, "class_list": class_list}
    given = {option: value for option, value in given.items() if value is not None}
    for option in given:
        if option not in module.DEFAULTS.options:
            raise TaskError(f"The task {name} has no {option}; leave it out.")
    from tasks import reduced_data, task

    if synthetic_data:
        data = reduced_data.synthetic(
            module.DEFAULTS, scale_lib.parse(scale or "1"), image_size
        )
    else:
        check_data(name, data_dir)
        data = module.load(**given)
        if scale is not None:
            data = reduced_data.subset(data, scale_lib.parse(scale))
    return task.build(
        module.DEFAULTS,
        data,
        partition=partition,
        concentration=concentration,
        classes_per_client=classes_per_client,
        split_file=split_file,
        augmentation=augmentation,
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
