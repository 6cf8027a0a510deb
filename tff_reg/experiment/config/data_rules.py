"""Rules of what data come with: clients, and examples that are no images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tff_reg.models import names
from tff_reg.settings import SettingError

# Settings that apply to images and networks for images only.
_OF_IMAGES = ("augmentation", "norm", "pixel_mean", "pixel_std", "projector")
_OF_IMAGES += ("feature_noise", "rotations", "hues")


def count_clients(values: dict[str, Any], given: Mapping[str, Any], tasks: Any) -> None:
    """Sets `num_clients` of the partition `natural`: all clients, unless it is given.

    Without the data's files it stays: `tasks.check_data` says what is missing.
    """
    if values["partition"] != "natural":
        return
    if values["synthetic_data"]:
        why = "random images have no clients; choose another partition than natural."
        raise SettingError("synthetic_data", True, why)
    there = tasks.count_clients(values["task"], values)
    count = values["num_clients"]
    if there is None:
        return
    if "num_clients" not in given:
        values["num_clients"] = there
    elif count > there:
        why = f"the data have {there} clients; give at most {there}."
        raise SettingError("num_clients", count, why)


def check_kind(values: dict[str, Any], given: Mapping[str, Any], task: Any) -> None:
    """Checks that the model, and settings of images, fit the task's examples."""
    model, kind = values["model"], getattr(task, "kind", names.IMAGES)
    if model is None:  # The user's, which is checked when its inputs are known.
        return
    if names.kind_of(model) != kind:
        fitting = ", ".join(n for n in names.ALL_NAMES if names.kind_of(n) == kind)
        why = f"the task {values['task']} has {kind}; give one of {fitting}."
        raise SettingError("model", model, why)
    if kind == names.IMAGES:
        return
    values["projector"] = "none"
    for name in _OF_IMAGES:
        if given.get(name) not in (None, (), "none"):
            why = f"it is for images, and the task {values['task']} has {kind}."
            raise SettingError(name, given[name], why)
