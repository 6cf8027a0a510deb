"""The resolution of a request: a value for every setting.

The first of these sources that has a value gives it: the user, the user's recipe, the
task, the source that `settings_of` names (by default the process's first method), the
field's default. The settings that a method of the process requires override all sources
but the user and a recipe of that method.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from typing import Any, Optional

from tff_reg.data import partitions
from tff_reg.experiment.config import (
    scale as scale_lib,
    strengths as strengths_lib,
    task_settings,
)
from tff_reg.methods import catalogue
from tff_reg.models import names as model_names
from tff_reg.runtime import ray_cluster
from tff_reg.settings import SettingError, near_names, settings_of
from tff_reg.training import aggregator_settings, schedules

# Values of `settings_of` beside methods: the settings that the task has for
# comparisons, and those of each process's first method.
TASK, EACH = "task", "each"


def resolve(given: Mapping[str, Any], kind: Any, tasks: Any) -> dict[str, Any]:
    """Finds a value for every setting of a run.

    Args:
      given: The given settings by name, strengths included.
      kind: `RunConfig`, which checks the settings of a recipe.
      tasks: The module `tasks`, as for `RunConfig.resolved`.

    Returns:
      All settings by name, strengths included.

    Raises:
      SettingError: If a setting is missing or unknown, or two contradict each other.
    """
    return _Resolution(given, kind, tasks).values()


def _recipe(name: Optional[str], kind: Any, tasks: Any) -> dict[str, Any]:
    """Returns the checked settings of a recipe; empty if none is named."""
    if name is None:
        return {}
    if not hasattr(tasks, "recipes"):
        raise SettingError("recipe", name, "there are no recipes here.")
    try:
        return kind.of(tasks.recipes.settings(name)).given()
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError("recipe", name, str(error)) from error


def _check_methods(process: str, known: Collection[str]) -> None:
    """Checks the defaults of a process's methods, and the settings that they name.

    Raises:
      SettingError: If a field has no default, or a named setting does not exist.
    """
    for name in catalogue.parse(process) or ("fedavg",):
        cls = catalogue.find(name)
        for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
            defaults = (field.default, field.default_factory)
            if all(each is dataclasses.MISSING for each in defaults):
                why = (
                    f"{field.name} of {cls.__name__} has no default; give it one by"
                    " tff_reg.settings.setting(DEFAULT, help='...')."
                )
                raise SettingError("process", process, why)
        for where in ("paper_settings", "required_settings"):
            for each in getattr(cls, where):
                if each not in known:
                    why = (
                        f"{where} of {cls.__name__} has {each!r}, which is no setting"
                        f"{near_names(each, list(known))}."
                    )
                    raise SettingError("process", process, why)


class _Resolution:
    """One resolution of a request."""

    def __init__(self, given: Mapping[str, Any], kind: Any, tasks: Any):
        self._given = given
        self._settings = settings_of(kind)
        self._values = {each.name: each.default for each in self._settings}
        recipe_name = given.get("recipe")
        recipe = _recipe(recipe_name, kind, tasks)
        chosen = {**recipe, **self._given, "recipe": None, "settings_of": None}
        if "process" not in chosen:
            raise SettingError(
                "process",
                None,
                "it is missing; give a method or a combination (a+b) of"
                f" {', '.join(catalogue.names())}.",
            )
        process = chosen["process"]
        strengths = {n: given[n] for n in given.keys() - self._values.keys()}
        strengths_lib.check_owned(strengths, [process])
        task = chosen.get("task", self._values["task"])
        (of_task,) = (each for each in self._settings if each.name == "task")
        dataclasses.replace(of_task, choices=tuple(tasks.names())).check(task)
        try:
            self._task = tasks.defaults(task)
        except ValueError as error:  # A third-party task that cannot be loaded.
            raise SettingError("task", task, str(error)) from error
        own = {each.name: each for each in strengths_lib.listed(process)}
        known = {*self._values, *own}
        _check_methods(process, known)
        if recipe:
            self._refuse("settings_of", "leave it out: the recipe has all settings.")
            self._values["settings_from"] = f"the recipe {recipe_name}"
        else:
            self._values.update(
                self._of_whom(given.get("settings_of") or EACH, process)
            )
        self._values.update(self._of_task())
        self._values = catalogue.with_required(process, self._values, chosen)
        if recipe:
            values = tasks.recipes.settings(recipe_name, process)
            self._values.update((n, values[n]) for n in values if n in known)
            self._values = catalogue.with_required(
                catalogue.without(process, recipe["process"]), self._values, chosen
            )
        self._values.update((n, chosen[n]) for n in self._given if n in known)

    def _of_whom(self, whose: str, process: str) -> dict[str, Any]:
        """Returns the settings of a source, with its name as `settings_from`."""
        if whose == TASK:
            values, source = self._task.protocol, f"the task {self._task.name}"
        else:
            whose = process if whose == EACH else whose
            values = catalogue.first(whose).paper_settings
            source = catalogue.settings_from(whose)
            if not hasattr(values, "source"):  # A third-party method may set only some.
                values = {**self._task.protocol, **values}
                source += f" and, where it has none, the task {self._task.name}"
        return {**values, "settings_from": source}

    def _of_task(self) -> dict[str, Any]:
        own = {
            each.name: getattr(self._task, each.name)
            for each in settings_of(task_settings.TaskSettings)
            if hasattr(self._task, each.name)
        }
        return {**own, **self._task.override_values()}

    def values(self) -> dict[str, Any]:
        """Returns all settings by name, resolved."""
        self._settle_norm()
        self._settle_clients()
        self._settle_partition()
        self._refuse_options_of_other_tasks()
        self._settle_training()
        self._settle_schedule()
        self._settle_normalization()
        self._settle_targets()
        self._settle_what_does_not_apply()
        self._settle_scale()
        self._settle_rates()
        self._settle_privacy()
        self._check_ray_address()
        values = self._values
        if not values["output_dir"]:
            self._refuse("output_dir", "give the name of a directory.")
            (output_dir,) = (s for s in self._settings if s.name == "output_dir")
            values["output_dir"] = output_dir.default
        for name in ("process", "task", "seed"):
            values["output_dir"] = values["output_dir"].replace(
                f"{{{name}}}", str(values[name])
            )
        defaults = {s.name: s.default for s in strengths_lib.listed(values["process"])}
        return {**defaults, **values}

    def _refuse(self, name: str, why: str) -> None:
        if name in self._given:
            raise SettingError(name, self._given[name], why)

    def _settle_norm(self) -> None:
        if self._values["model"] is None:  # A Keras model, which is trained as it is.
            self._values["projector"] = "none"
            return
        try:
            norms = model_names.norms_of(self._values["model"])
        except ValueError as error:  # A third-party model that cannot be loaded.
            raise SettingError("model", self._values["model"], str(error)) from error
        if "norm" not in self._given and self._values["norm"] not in norms:
            self._values["norm"] = norms[0]

    def _settle_clients(self) -> None:
        values, given = self._values, self._given
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
            per_round = max(1, round(given["participation"] * num_clients))
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

    def _settle_partition(self) -> None:
        values = self._values
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
        num_domains = self._task.num_domains
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
                f"the task {values['task']} has {num_domains} domains, and the"
                f" partition {scheme.name} needs a multiple of that.",
            )

    def _refuse_options_of_other_tasks(self) -> None:
        for each in self._settings:
            if (
                task_settings.OPTION in each.tags
                and each.name not in self._task.options
            ):
                why = f"the task {self._values['task']} has no such option."
                self._refuse(each.name, why)

    def _settle_training(self) -> None:
        values = self._values
        if not values["max_gradient_norm"]:
            values["max_gradient_norm"] = None
        if not values["client_momentum"]:
            if self._given.get("client_nesterov"):
                self._refuse("client_nesterov", "it needs a client_momentum above 0.")
            values["client_nesterov"] = False

    def _settle_normalization(self) -> None:
        mean, std = self._values["pixel_mean"], self._values["pixel_std"]
        if len(mean) != len(std):
            raise SettingError(
                "pixel_mean",
                mean,
                f"there are {len(std)} deviations (pixel_std); give as many of both.",
            )

    def _settle_targets(self) -> None:
        values = self._values
        if (
            values["target_model"] == "all_clients"
            and not values["averages_all_clients"]
        ):
            why = "there is no such mean without averages_all_clients."
            self._refuse("target_model", why)
            values["target_model"] = "server"

    def _settle_what_does_not_apply(self) -> None:
        """Refuses given settings that do not apply; resets the others."""
        for each in self._settings:
            why_not = each.why_not_beside(self._values)
            if why_not is None:
                continue
            # To switch off a setting that is off anyway is no contradiction.
            if self._given.get(each.name) is not False or each.is_optional:
                self._refuse(each.name, why_not)
            self._values[each.name] = None if each.is_optional else each.default

    def _settle_scale(self) -> None:
        values = self._values
        for name in ("data_dir", "class_list") if values["synthetic_data"] else ():
            self._refuse(name, "synthetic_data takes the place of all data.")
        if values["partition"] == "split_file":
            why = "the partition split_file deals out all of a data set, never a part."
            self._refuse("scale", why)
            self._refuse("validation_share", why)
        if values["scale"] is None:
            return
        values.update(scale_lib.parse(values["scale"]).settings(values, self._given))

    def _settle_schedule(self) -> None:
        """Selects the `listed` schedule if the learning rate is a function."""
        if callable(self._values["client_learning_rate"]):
            for name in ("learning_rate_schedule", "client_learning_rates"):
                why = "leave it out: client_learning_rate is a function of the round."
                self._refuse(name, why)
            self._values["learning_rate_schedule"] = "listed"

    def _settle_rates(self) -> None:
        """Replaces a learning-rate function by the rates of all rounds."""
        values = self._values
        rate: Any = values["client_learning_rate"]
        if callable(rate):
            try:
                rates = schedules.tabulated(rate, values["total_rounds"])
            except ValueError as error:
                what = "client_learning_rate"
                raise SettingError(what, "a function", str(error)) from error
            values.update(client_learning_rate=rates[0], client_learning_rates=rates)
        elif (
            values["learning_rate_schedule"] == "listed"
            and not (values["client_learning_rates"])
        ):
            why = "it is missing; the listed schedule needs it."
            raise SettingError("client_learning_rates", None, why)

    def _settle_privacy(self) -> None:
        values = self._values
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
        least = aggregator_settings.LEAST_NOISE
        if 0 < noise < least:
            raise SettingError(
                "dp_noise_multiplier",
                noise,
                f"give 0 for no noise, or at least {least:g}.",
            )
        if values["dp_clipping"] == "adaptive" and noise >= cohort / 10:
            raise SettingError(
                "dp_noise_multiplier",
                noise,
                f"adaptive clipping can have less than a tenth of the {cohort} clients"
                " of a round; give more clients, or dp_clipping=fixed with a"
                " dp_clip_norm.",
            )

    def _check_ray_address(self) -> None:
        address = self._values["ray_address"]
        try:
            if address is not None:
                ray_cluster.check_address(address)
        except ValueError as error:
            raise SettingError("ray_address", address, str(error)) from error
