"""The resolution of a request: a value for every setting.

The first of these sources that has a value gives it: the user, the user's recipe, the
task, the source that `settings_of` names (by default the process's first method), the
field's default. The settings that a method of the process requires override all sources
but the user and a recipe of that method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tff_reg import settings as settings_lib
from tff_reg.data import partitions
from tff_reg.experiment.config import scale as scale_lib
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names
from tff_reg.settings import Setting, SettingError, near_names
from tff_reg.training import process_settings

# Values of `settings_of` beside methods: the settings that the task has for
# comparisons, and those of each process's first method.
TASK, EACH = "task", "each"
_SPLIT_FILE = partitions.split_file.__name__


def resolve(
    given: Mapping[str, Any],
    recipe: Mapping[str, Any],
    settings: Sequence[Setting],
    tasks: Any,
) -> dict[str, Any]:
    """Finds a value for every setting; `recipe` has the settings of a recipe."""
    if given.get("split_file") and "partition" not in given:
        given = {**given, "partition": _SPLIT_FILE}
    chosen = {**recipe, **given, "recipe": None, "settings_of": None}
    if "process" not in chosen:
        raise SettingError(
            "process",
            None,
            "it is missing; give a method or a combination (a+b) of"
            f" {', '.join(catalogue.names())}.",
        )
    process = chosen["process"]
    values = {each.name: each.default for each in settings}
    hyperparameters = {
        each.flag: each.setting.default for each in catalogue.hyperparameters(process)
    }
    known = {*values, *hyperparameters}
    check_owned({n: given[n] for n in given.keys() - values.keys()}, [process])
    _check_methods(process, known)
    task = _task(chosen.get("task", values["task"]), settings, tasks)
    if recipe:
        if "settings_of" in given:
            why = "leave it out: the recipe has all settings."
            raise SettingError("settings_of", given["settings_of"], why)
        values["settings_from"] = f"the recipe {given['recipe']}"
    else:
        whose = given.get("settings_of") or (TASK if task.is_own else EACH)
        values.update(_of_whom(whose, process, task))
    values.update(
        (each.name, getattr(task, each.name))
        for each in settings
        if hasattr(task, each.name)
    )
    values.update(task.override_values())
    values = catalogue.with_required(process, values, chosen)
    if recipe:
        of_process = tasks.recipes.settings(given["recipe"], process)
        values.update((n, of_process[n]) for n in of_process if n in known)
        others = catalogue.without(process, recipe["process"])
        values = catalogue.with_required(others, values, chosen)
    values = process_settings.of_source(values, given)
    values.update((name, chosen[name]) for name in given if name in known)
    beside = {**values, "of_task": task}
    settings_lib.settle(settings, beside, given)
    values = {name: beside[name] for name in values}
    _count(values, given, tasks)
    if values["scale"] is not None:
        scaled = scale_lib.parse(values["scale"]).settings(values, given)
        # What would be refused whole is refused on trial.
        of_scaled = [each for each in settings if each.name in scaled]
        settings_lib.check_rules(of_scaled, {**beside, **values})
        values.update(scaled)
    process_settings.settle_rates(values, given)
    settings_lib.check_rules(settings, {**beside, **values})
    _place(values, given, settings)
    return {**hyperparameters, **values}


def process_name(text: str) -> str:
    """Returns a process's canonical name: without `fedavg`, which adds nothing."""
    try:
        catalogue.parse(text)
    except ValueError as error:
        raise SettingError("process", text, str(error)) from error
    if text.strip().lower() in catalogue.REFERENCES:
        return text.strip().lower()
    parts = catalogue.parts_of(text)
    return "+".join(part for part in parts if part != "fedavg") or "fedavg"


def owned(hyperparameters: Mapping[str, Any], process: str) -> dict[str, Any]:
    """Returns the hyperparameters that belong to methods of the process."""
    own = {each.flag for each in catalogue.hyperparameters(process)}
    return {name: value for name, value in hyperparameters.items() if name in own}


def check_owned(hyperparameters: Mapping[str, Any], processes: Sequence[str]) -> None:
    """Checks that each hyperparameter is of a method of one of the processes."""
    known = catalogue.named(hyperparameters)
    for name, value in hyperparameters.items():
        if not any(owned({name: value}, process) for process in processes):
            whole = f"process={processes[0]}"
            which = whole if len(processes) == 1 else ", ".join(processes)
            raise SettingError(
                name, value, f"{known[name].method} is not part of {which}."
            )


def _check_methods(process: str, known: Collection[str]) -> None:
    """Checks the defaults of a process's methods, and the settings that they name."""
    for name in catalogue.parse(process) or ("fedavg",):
        cls = catalogue.find(name)
        for where in ("paper_settings", "required_settings"):
            for each in getattr(cls, where):
                if each not in known:
                    why = (
                        f"{where} of {cls.__name__} has {each!r}, which is no setting"
                        f"{near_names(each, list(known))}."
                    )
                    raise SettingError("process", process, why)


def _task(name: str, settings: Sequence[Setting], tasks: Any) -> Any:
    """Returns the defaults of a task."""
    (of_task,) = (each for each in settings if each.name == "task")
    dataclasses.replace(of_task, choices=tuple(tasks.names())).check(name)
    try:
        return tasks.defaults(name)
    except ValueError as error:  # A third-party task that cannot be loaded.
        raise SettingError("task", name, str(error)) from error


def _of_whom(whose: str, process: str, task: Any) -> dict[str, Any]:
    """Returns the settings of a source, with its name as `settings_from`."""
    if whose == TASK:
        values, source = task.protocol, f"the task {task.name}"
    else:
        whose = process if whose == EACH else whose
        values = catalogue.first(whose).paper_settings
        source = catalogue.settings_from(whose)
        if not hasattr(values, "source"):  # A third-party method may set only some.
            values = {**task.protocol, **values}
            source += f" and, where it has none, the task {task.name}"
    return {**values, "settings_from": source}


def _count(values: dict[str, Any], given: Mapping[str, Any], tasks: Any) -> None:
    """Sets the numbers that follow from others, and what is off."""
    _count_clients(values, given, tasks)
    num_clients = values["num_clients"]
    if "participation" in given:
        share = given["participation"]
        if "clients_per_round" in given:
            why = f"it contradicts participation={share:g}; give one."
            raise SettingError("clients_per_round", given["clients_per_round"], why)
        per_round = max(1, round(share * num_clients))
        values.update(clients_per_round=per_round, participation=None)
    elif "clients_per_round" not in given:
        values["clients_per_round"] = min(values["clients_per_round"], num_clients)
    if values["model"] is not None and "norm" not in given:
        try:
            norms = model_names.norms_of(values["model"])
        except ValueError as error:  # A third-party model that cannot be loaded.
            raise SettingError("model", values["model"], str(error)) from error
        if values["norm"] not in norms:
            values["norm"] = norms[0]
    values["max_gradient_norm"] = values["max_gradient_norm"] or None
    are_tested = values["client_test_share"] or values["finetune_epochs"]
    if values["client_evaluation"] is None and (
        are_tested or catalogue.has_own_models(values["process"])
    ):
        values["client_evaluation"] = 0


def _count_clients(
    values: dict[str, Any], given: Mapping[str, Any], tasks: Any
) -> None:
    """Sets `num_clients` of clients that are there: all of them, unless it is given.

    Without the data's files it stays: `tasks.check_data` says what is missing.
    """
    if values["partition"] == _SPLIT_FILE and (path := values["split_file"]):
        try:
            there = partitions.count_in(path)
        except partitions.PartitionError as error:
            raise SettingError("split_file", path, str(error)) from error
        values["num_clients"] = given.get("num_clients", there)
    if values["partition"] != "natural" or values["synthetic_data"]:
        return
    there = tasks.count_clients(values["task"], values)
    count = values["num_clients"]
    if there is None:
        return
    if "num_clients" not in given:
        values["num_clients"] = there
    elif count > there:
        why = f"the data have {there} clients; give at most {there}."
        raise SettingError("num_clients", count, why)


def _place(
    values: dict[str, Any], given: Mapping[str, Any], settings: Sequence[Setting]
) -> None:
    """Sets the output directory."""
    if given.get("output_dir") == "":
        raise SettingError("output_dir", "", "give the name of a directory.")
    if not values["output_dir"]:
        (output_dir,) = (s for s in settings if s.name == "output_dir")
        values["output_dir"] = output_dir.default
    for name in ("process", "task", "seed"):
        shown = str(values[name])
        values["output_dir"] = values["output_dir"].replace(f"{{{name}}}", shown)
