"""The resolution of a request: a value for every setting.

The first of these sources that has a value gives it: the user, the user's recipe, the
task, the source that `settings_of` names (by default the process's first method), the
field's default. The settings that a method of the process requires override all sources
but the user and a recipe of that method.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tff_reg.data import partitions
from tff_reg.experiment.config import (
    data_rules,
    network_settings,
    scale as scale_lib,
    skew_settings,
    task_settings,
    work_settings,
)
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names
from tff_reg.settings import Setting, SettingError, near_names, settings_of
from tff_reg.training import process_settings, schedules

# Values of `settings_of` beside methods: the settings that the task has for
# comparisons, and those of each process's first method.
TASK, EACH = "task", "each"


def resolve(
    given: Mapping[str, Any],
    recipe: Mapping[str, Any],
    settings: Sequence[Setting],
    tasks: Any,
) -> dict[str, Any]:
    """Finds a value for every setting; `recipe` has the settings of a recipe."""
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
        each.flag: each.setting.default for each in catalogue.strengths(process)
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
        values.update(_of_whom(given.get("settings_of") or EACH, process, task))
    values.update(
        (each.name, getattr(task, each.name))
        for each in settings_of(task_settings.TaskSettings)
        if hasattr(task, each.name)
    )
    values.update(task.override_values())
    values = catalogue.with_required(process, values, chosen)
    if recipe:
        of_process = tasks.recipes.settings(given["recipe"], process)
        values.update((n, of_process[n]) for n in of_process if n in known)
        others = catalogue.without(process, recipe["process"])
        values = catalogue.with_required(others, values, chosen)
    values = process_settings.of_schedules(values, given)
    values.update((name, chosen[name]) for name in given if name in known)
    data_rules.count_clients(values, given, tasks)
    data_rules.check_kind(values, given, task)
    return {**hyperparameters, **_Resolution(given, values, settings, task).values}


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
    own = {each.flag for each in catalogue.strengths(process)}
    return {name: value for name, value in hyperparameters.items() if name in own}


def check_owned(hyperparameters: Mapping[str, Any], processes: Sequence[str]) -> None:
    """Checks that each hyperparameter is of a method of one of the processes."""
    methods = {each.flag: each.method for each in catalogue.strengths()}
    for name, value in hyperparameters.items():
        if not any(owned({name: value}, process) for process in processes):
            whole = f"process={processes[0]}"
            which = whole if len(processes) == 1 else ", ".join(processes)
            raise SettingError(name, value, f"{methods[name]} is not part of {which}.")


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


class _Resolution:
    """The rules by which settings depend on each other.

    Attributes:
      values: All settings by name, resolved.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        values: dict[str, Any],
        settings: Sequence[Setting],
        task: Any,
    ):
        """Applies all rules."""
        self.values = values
        self._given, self._settings, self._task = given, settings, task
        self._end()
        self._clients()
        self._partition()
        self._network()
        self._scale()
        self._client_training()
        self._what_does_not_apply()
        self._privacy()
        self._references()
        skew_settings.check(self.values, self._task)
        self._places()

    def _refuse(self, name: str, why: str) -> None:
        """Refuses a setting if it is given."""
        if name in self._given:
            raise SettingError(name, self._given[name], why)

    def _end(self) -> None:
        if self.values["stop_at_target"] and not self.values["target_accuracies"]:
            self._refuse("stop_at_target", "give target_accuracies, such as 0.6,0.7.")

    def _clients(self) -> None:
        values, given = self.values, self._given
        num_clients, num_examples = values["num_clients"], self._task.num_train_examples
        if num_examples is not None and num_clients > num_examples:
            raise SettingError(
                "num_clients",
                num_clients,
                f"the task {values['task']} has only {num_examples} training examples.",
            )
        if "participation" in given:
            share = given["participation"]
            why = f"it contradicts participation={share:g}; give one."
            self._refuse("clients_per_round", why)
            per_round = max(1, round(share * num_clients))
            values.update(clients_per_round=per_round, participation=None)
        elif "clients_per_round" not in given:
            values["clients_per_round"] = min(values["clients_per_round"], num_clients)
        if values["clients_per_round"] > num_clients:
            raise SettingError(
                "clients_per_round",
                values["clients_per_round"],
                f"there are only {num_clients} clients (num_clients); give at most"
                f" {num_clients}.",
            )

    def _partition(self) -> None:
        values = self.values
        is_drawn = values["partition"] not in (None, "split_file")
        is_drawn |= skew_settings.change_examples(values)
        if not (is_drawn or values["client_test_share"]):
            self._refuse("partition_seed", "the split is given and needs no seed.")
            values["partition_seed"] = None
        if values["partition"] is None:  # The clients are the user's.
            values["classes_per_client"] = values["split_file"] = None
            return
        scheme = partitions.PARTITIONS[values["partition"]]
        needs = [each.needs for each in partitions.PARTITIONS.values()]
        for name in dict.fromkeys(itertools.chain(*needs)):
            if name not in values:
                continue
            if name not in scheme.needs:
                what = name.replace("_", " ")
                self._refuse(name, f"the partition {scheme.name} has no {what}.")
                values[name] = None
            elif values[name] is None:
                why = f"it is missing; the partition {scheme.name} needs it."
                raise SettingError(name, None, why)
        num_domains = skew_settings.num_domains(values, self._task)
        self._check_classes()
        if "domains" not in scheme.needs or num_domains is None:
            return
        if not num_domains:
            raise SettingError(
                "partition",
                scheme.name,
                f"the task {values['task']} has no domains; choose another partition.",
            )
        if values["num_clients"] % num_domains:
            raise SettingError(
                "num_clients",
                values["num_clients"],
                f"the task {values['task']} has {num_domains} domains to train on, and"
                f" the partition {scheme.name} needs a multiple of that.",
            )

    def _check_classes(self) -> None:
        """Checks that the clients' classes are those of the task, and all of them."""
        values, there = self.values, getattr(self._task, "num_classes", None)
        each, clients = values["classes_per_client"], values["num_clients"]
        if each is None or there is None or values["scale"] is not None:
            return
        if not each <= there <= each * clients:
            why = (
                f"the task {values['task']} has only {there} classes, and the {clients}"
                f" clients, each with {each} different ones, must hold all."
            )
            raise SettingError("classes_per_client", each, why)

    def _network(self) -> None:
        values = self.values
        if len(values["pixel_mean"]) != len(values["pixel_std"]):
            raise SettingError(
                "pixel_mean",
                values["pixel_mean"],
                f"there are {len(values['pixel_std'])} deviations (pixel_std); give as"
                " many of both.",
            )
        network_settings.check(self._given, values)
        if values["model"] is None:  # A Keras model, which is trained as it is.
            values["projector"] = "none"
            return
        try:
            norms = model_names.norms_of(values["model"])
        except ValueError as error:  # A third-party model that cannot be loaded.
            raise SettingError("model", values["model"], str(error)) from error
        if "norm" not in self._given and values["norm"] not in norms:
            values["norm"] = norms[0]

    def _scale(self) -> None:
        values = self.values
        if values["partition"] == "split_file":
            why = "the partition split_file deals out all of a data set, never a part."
            self._refuse("scale", why)
            self._refuse("validation_share", why)
        if values["scale"] is not None:
            scale = scale_lib.parse(values["scale"])
            values.update(scale.settings(values, self._given))

    def _client_training(self) -> None:
        values = self.values
        if not values["max_gradient_norm"]:
            values["max_gradient_norm"] = None
        if not values["client_momentum"]:
            if self._given.get("client_nesterov"):
                self._refuse("client_nesterov", "it needs a client_momentum above 0.")
            values["client_nesterov"] = False
        rate: Any = values["client_learning_rate"]
        if callable(rate):
            for name in ("learning_rate_schedule", "client_learning_rates"):
                why = "leave it out: client_learning_rate is a function of the round."
                self._refuse(name, why)
            try:
                # Copies train at the rate of the round after the last one.
                count = values["total_rounds"] + bool(values["finetune_epochs"])
                rates = schedules.tabulated(rate, count)
            except ValueError as error:
                what = "client_learning_rate"
                raise SettingError(what, "a function", str(error)) from error
            values.update(
                learning_rate_schedule="listed",
                client_learning_rate=rates[0],
                client_learning_rates=rates,
            )
        elif values["learning_rate_schedule"] == "listed":
            rates = values["client_learning_rates"]
            if not rates:
                why = "it is missing; the listed schedule needs it."
                raise SettingError("client_learning_rates", None, why)
            if rate != rates[0]:
                why = "client_learning_rates has the rate of each round; leave it out."
                self._refuse("client_learning_rate", why)
            values["client_learning_rate"] = rates[0]
        for name, why in process_settings.missing_of_schedules(values):
            raise SettingError(name, None, why)
        work_settings.resolve(values, self._given)

    def _what_does_not_apply(self) -> None:
        """Refuses given settings that do not apply; resets the others."""
        values, task = self.values, self._task
        for name in ("data_dir", "class_list") if values["synthetic_data"] else ():
            self._refuse(name, "synthetic_data takes the place of all data.")
        are_tested = values["client_test_share"] or values["finetune_epochs"]
        if are_tested and values["client_evaluation"] is None:
            values["client_evaluation"] = 0
        if values["target_model"] != "server" and not values["averages_all_clients"]:
            why = "there is no such mean without averages_all_clients."
            self._refuse("target_model", why)
            values["target_model"] = "server"
        for each in self._settings:
            if task_settings.OPTION in each.tags and each.name not in task.options:
                self._refuse(
                    each.name, f"the task {values['task']} has no such option."
                )
            why_not = each.why_not_beside(values)
            if why_not is None:
                continue
            # To switch off a setting that is off anyway is no contradiction.
            if self._given.get(each.name) is not False or each.is_optional:
                self._refuse(each.name, why_not)
            values[each.name] = None if each.is_optional else each.default

    def _privacy(self) -> None:
        values = self.values
        if values["aggregator"] != "dp":
            return
        if values["client_weighting"] != "uniform":
            self._refuse(
                "client_weighting", "aggregator=dp takes the plain mean; leave it out."
            )
            values["client_weighting"] = "uniform"
        if values["client_sampling"] != "fixed":
            why = "aggregator=dp counts on cohorts of one size; leave it out."
            self._refuse("client_sampling", why)
            values["client_sampling"] = "fixed"
        noise, cohort = values["dp_noise_multiplier"], values["clients_per_round"]
        if values["dp_clipping"] == "adaptive" and noise >= cohort / 10:
            raise SettingError(
                "dp_noise_multiplier",
                noise,
                f"adaptive clipping can have less than a tenth of the {cohort} clients"
                " of a round; give more clients, or dp_clipping=fixed with a"
                " dp_clip_norm.",
            )

    def _references(self) -> None:
        """Leaves out what needs several clients with one model."""
        values, process = self.values, self.values["process"]
        if process not in catalogue.REFERENCES:
            return
        if values["aggregator"] != "mean":
            why = f"process={process} averages no models; leave it out."
            raise SettingError("aggregator", values["aggregator"], why)
        left_out = (*catalogue.REFERENCES[process], "target_model")
        for each in self._settings:
            if each.name in left_out:
                values[each.name] = None if each.is_optional else each.default
        if process == "local" and values["client_evaluation"] is None:
            values["client_evaluation"] = 0

    def _places(self) -> None:
        """Resolves the output directory and the address of Ray."""
        values = self.values
        if not values["output_dir"]:
            self._refuse("output_dir", "give the name of a directory.")
            (output_dir,) = (s for s in self._settings if s.name == "output_dir")
            values["output_dir"] = output_dir.default
        for name in ("process", "task", "seed"):
            values["output_dir"] = values["output_dir"].replace(
                f"{{{name}}}", str(values[name])
            )
