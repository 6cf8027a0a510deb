"""The settings of what trains of a network, and of the weights it begins with.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.models import names, weight_files
from tff_reg.settings import SettingError, setting
from tff_reg.training import process_settings

_of_network = functools.partial(setting, group=process_settings.DATA)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The settings of a network: which weights train, and which it begins with."""

    train: tuple[str, ...] = _of_network(
        (),
        help="patterns of the names of the weights that train, such as"
        " classifier,*/gamma; all others are frozen: constants that are sent once",
        placeholder="PATTERN",
    )
    freeze: tuple[str, ...] = _of_network(
        (),
        help="patterns of the names of the weights that are frozen, such as stage1",
        placeholder="PATTERN",
    )
    initial_weights: Optional[str] = _of_network(
        None,
        help="file of weights to begin with: final_weights.npz, Keras's .keras,"
        " .weights.h5 or .h5, or a PyTorch state_dict as .npz",
        placeholder="FILE",
    )
    mixed_precision: Optional[str] = _of_network(
        None,
        help="data type of convolutions and matrix products; weights and sums stay"
        " float32",
        choices=("bfloat16",),
    )


def check(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuses settings that have no effect on the network, and files that are none."""
    model = values["model"]
    for name in ("train", "freeze") if model is None else ():
        if given.get(name):
            why = "set trainable=False on layers of the Keras model instead."
            raise SettingError(name, given[name], why)
    if model is None or model in (*names.OF_KIND, *names.KERAS_NAMES):
        for name in ("norm", "projector", "mixed_precision"):
            if given.get(name) not in (None, "none"):
                why = "it is for our networks, and the model is of Keras; leave it out."
                raise SettingError(name, given[name], why)
    path = values["initial_weights"]
    if path is None:
        return
    if not path.endswith(weight_files.SUFFIXES):
        why = (
            f"give a file {', '.join(weight_files.SUFFIXES)}; PyTorch's state_dict is"
            " saved as one by numpy.savez(file, **{name: value.cpu().numpy() for name,"
            " value in model.state_dict().items()})."
        )
        raise SettingError(weight_files.SETTING, path, why)
    if not os.path.isfile(path):
        raise SettingError(weight_files.SETTING, path, "there is no such file.")
