"""Tasks: a data set, its split and augmentation, and a model that suits it.

`names` and `defaults` describe the tasks and `check_data` looks for their files, all
without TensorFlow. `read` loads a task's data and partitions them; it loads TensorFlow
only for data of TFDS. `build` makes the whole task, a
`tff.simulation.baselines.BaselineTask`. `tff_reg.tasks.recipes` has the papers'
experiments by name.

>>> from tff_reg import tasks
>>> tasks.defaults("digits").num_classes
10
>>> found = tasks.read("digits", num_clients=5, partition="iid")
>>> len(found.positions), found.data.x_train.shape
(5, (1437, 8, 8, 1))

A new task is one module with `DEFAULTS` and `load`. `DEFAULTS.options` names the
arguments of `load`, which returns `data_sets.Examples`. Our tasks are in `_NAMES`;
other packages offer tasks by entry points in the group `tff_reg.tasks`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from absl import logging

from tff_reg import lazy, plugins
from tff_reg.data import partitions
from tff_reg.experiment.config import scale as scale_lib, task_settings
from tff_reg.models import names as model_names
from tff_reg.settings import settings_of
from tff_reg.tasks import dealt, natural, recipes, reduced_data
from tff_reg.tasks.task_defaults import DataError, Override, TaskDefaults, TaskError

if TYPE_CHECKING:
    from tff_reg.models.learning_model import LearningModel
    from tff_reg.tasks.data_sets import Examples
    from tff_reg.tasks.dealt import Dealt
    from tff_reg.tasks.task import Task

task_lib = lazy.module("tff_reg.tasks.task")
own_data = lazy.module("tff_reg.tasks.own_data")
networks = lazy.module("tff_reg.tasks.networks")

__all__ = [
    "DataError",
    "Override",
    "TaskDefaults",
    "TaskError",
    "build",
    "check_data",
    "count_clients",
    "defaults",
    "names",
    "of_package",
    "read",
    "recipes",
]

_NAMES = (
    *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100"),
    *("tiny_imagenet", "imagenet200", "stl10"),
    *("pacs", "ham10000", "domain_folders", "image_folder", "arrays"),
    *("table", "text_csv", "femnist", "shakespeare", "stackoverflow"),
)


def _must(name: str, value: Any) -> str:
    own = getattr(getattr(value, "DEFAULTS", None), "name", None)
    is_task = own == name and callable(getattr(value, "load", None))
    must = f"a module with load and DEFAULTS, a TaskDefaults named {name!r}"
    return "" if is_task else must


_REGISTRY = plugins.Registry(
    "tff_reg.tasks",
    _NAMES,
    lambda name: importlib.import_module(f"tff_reg.tasks.{name}"),
    _must,
)


def names() -> tuple[str, ...]:
    """Returns the names of all tasks; those of other packages come last."""
    return _REGISTRY.names()


def of_package(name: str) -> ModuleType | None:
    """Returns the module of a task from another package; None for other names.

    Raises:
      TaskError: If the module cannot be loaded, or is not that of a task.
    """
    return None if name in _REGISTRY.own else _find(name)


def defaults(name: str) -> TaskDefaults:
    """Returns a task's own defaults.

    Raises:
      TaskError: If there is no task of that name.
    """
    return _module(name).DEFAULTS


def check_data(name: str, data_dir: str | None) -> None:
    """Checks quickly, without reading, that a task's data are present.

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
            raise known.missing(f"There is nothing at {data_dir}")
    elif "data_dir" in known.options and known.tfds_name is None:
        raise known.missing("There are no data")


def count_clients(name: str, settings: Mapping[str, Any]) -> int | None:
    """Returns the number of clients that a task's data have; None without its files.

    Raises:
      TaskError: If there is no task of that name, or its data have no clients.
    """
    module = _module(name)
    if not hasattr(module, "clients"):
        raise TaskError(f"the task {name} has no clients; choose another partition.")
    path = settings.get("data_dir")
    if path is None or not os.path.exists(path):
        return None
    options = {n: settings[n] for n in module.DEFAULTS.options if settings.get(n)}
    if not (names := module.clients(**options)):
        raise TaskError(f"{path} has no clients; choose another partition.")
    return len(names)


def read(task: str, **settings: Any) -> Dealt:
    """Loads a task's data and partitions its training examples across clients.

    The split into training and test examples is the task's own and does not depend on
    the seed.

    Args:
      task: One of `names()`.
      **settings: The other fields of
        `tff_reg.experiment.config.task_settings.TaskSettings`.

    Returns:
      The examples, and each client's positions in them.

    Raises:
      TaskError: If there is no task of that name, or it has no such option.
      DataError: If the data are missing, damaged or of another form.
      tff_reg.data.partitions.PartitionError: If the partition does not fit the data.
      TypeError: If there is no such setting.
      SettingError: If a setting cannot have its value.
    """
    chosen = task_settings.TaskSettings(task=task, **settings)
    return dealt.deal(_load(chosen), chosen)


def build(
    task: str,
    *,
    examples: Dealt | None = None,
    own_model_fn: Callable[[], LearningModel] | None = None,
    **settings: Any,
) -> Task:
    """Builds a task.

    Args:
      task: One of `names()`.
      examples: The result of `read` for the same arguments, if it is known already.
      own_model_fn: Makes the user's Keras model; None for the settings' network.
      **settings: As in `read`.

    Returns:
      The task.

    Raises:
      ValueError: If the model cannot have the norm.
      TaskError: As in `read`; the other errors of `read` can occur, too.
    """
    chosen = task_settings.TaskSettings(task=task, **settings)
    if model_names.is_file(chosen.model):
        own_model_fn = networks.of_file(chosen.model)
    examples = examples or read(task, **settings)
    return task_lib.build(defaults(task), examples, chosen, own_model_fn)


def _load(chosen: task_settings.TaskSettings) -> Examples:
    """Loads the examples of a task."""
    module = _module(chosen.task)
    given = {
        each.name: getattr(chosen, each.name)
        for each in settings_of(chosen)
        if task_settings.OPTION in each.rules and getattr(chosen, each.name) is not None
    }
    for option in given:
        if option not in module.DEFAULTS.options:
            raise TaskError(f"The task {chosen.task} has no {option}; leave it out.")
    if chosen.synthetic_data:
        return reduced_data.synthetic(
            module.DEFAULTS, scale_lib.parse(chosen.scale or "1"), chosen.image_size
        )
    check_data(chosen.task, chosen.data_dir)
    parameters = inspect.signature(module.load).parameters
    if "is_raw" in parameters:
        given["is_raw"] = chosen.model is None or model_names.is_file(chosen.model)
    is_natural = chosen.partition == natural.NAME
    if is_natural and "clients" in parameters:
        names = module.clients(**given)  # Only the clients that take part are read.
        drawn = partitions.drawn(len(names), chosen.num_clients, chosen.seed_of_split)
        given["clients"] = [names[client] for client in drawn]
    data = module.load(**given)
    expected = module.DEFAULTS.num_train_examples
    if expected not in (None, data.num_train):
        logging.warning(
            "The whole data set %s has %d training examples; this copy has %d.",
            chosen.task,
            expected,
            data.num_train,
        )
    return data


def _find(name: str) -> ModuleType | None:
    try:
        return _REGISTRY.find(name)
    except plugins.PluginError as error:
        raise TaskError(str(error)) from error


def _module(name: str) -> ModuleType:
    if (module := _find(name)) is None:
        raise TaskError(
            f"There is no task named {name!r}; use one of {', '.join(names())}."
        )
    return module
