"""The settings of skews between clients, classes and domains, and what they need.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.settings import SettingError, setting
from tff_reg.training import process_settings

_of_data = functools.partial(setting, group=process_settings.DATA)
# Skews of the clients' own examples, which `tff_reg.data.skews` makes.
OF_CLIENTS = ("feature_noise", "rotations", "hues", "label_noise")
# Settings that take examples away before the partition.
_OF_ALL_DATA = ("test_domains", "imbalance_factor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkewSettings(process_settings.PopulationSettings):
    """The settings of skews; a list of numbers by client begins anew after its end."""

    test_domains: tuple[str, ...] = _of_data(
        (),
        help="domains, such as sketch,photo, that nobody trains on: the model is tested"
        " on all their examples in place of the test set",
        placeholder="NAME",
    )
    imbalance_factor: Optional[float] = _of_data(
        None,
        help="long tail (CIFAR-LT): training examples of the first class over those of"
        " the last; class c of C keeps n * factor^(-c / (C - 1))",
        minimum=1,
    )
    feature_noise: Optional[float] = _of_data(
        None,
        help="Gaussian noise on the clients' images: client i of N has the deviation"
        " feature_noise * i / N of the pixels' range (of float32 images, 1)",
        above=0,
    )
    rotations: tuple[int, ...] = _of_data(
        (),
        help="rotation of each client's images in degrees, such as 0,90,180,270: client"
        " i has the i-th, and after the last the first again",
        choices=(0, 90, 180, 270),
    )
    hues: tuple[float, ...] = _of_data(
        (),
        help="rotation of each client's hues (HSV) in degrees, such as 0,120,240,"
        " likewise",
        minimum=0,
        below=360,
        keeps_whole=True,
    )
    label_noise: tuple[float, ...] = _of_data(
        (),
        help="share of each client's training labels that are wrong, drawn uniformly"
        " from the other classes: one for all, or a list such as 0,0.2,0.4 likewise",
        minimum=0,
        below=1,
    )


def num_domains(values: Mapping[str, Any], task: Any) -> Optional[int]:
    """Returns the number of domains for training; None if the data decide it."""
    known, left_out = task.num_domains, {*values["test_domains"]}
    if known and len(left_out) >= known:
        why = "it leaves no domain to train on."
        raise SettingError("test_domains", values["test_domains"], why)
    return known and known - len(left_out)


def check(values: Mapping[str, Any], task: Any) -> None:
    """Refuses skews that have nothing to act on, by resolved settings."""
    wrong = {}
    if values["partition"] == "split_file":
        why = "the partition split_file deals out all of a data set, never a part."
        wrong.update(dict.fromkeys(_OF_ALL_DATA, why))
    if task.num_domains == 0:
        wrong["test_domains"] = f"the task {values['task']} has no domains."
    if values["client_evaluation"] is not None and not values["client_test_share"]:
        wrong["test_domains"] = (
            "clients have no examples of these domains to be measured on; give"
            " client_test_share, such as 0.2, too."
        )
    shape = getattr(task, "image_shape", None)
    if shape is not None and shape[-1] != 3:
        wrong["hues"] = f"the task {values['task']} has no colours."
    for name, why in wrong.items():
        if values[name]:
            raise SettingError(name, values[name], why)


def change_examples(values: Mapping[str, Any]) -> bool:
    """Whether the seed of the split decides the clients' examples themselves."""
    return any(values.get(name) for name in ("imbalance_factor", *OF_CLIENTS))
