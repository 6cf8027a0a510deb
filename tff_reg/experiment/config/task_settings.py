"""The settings of a task: its data, partition and model.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.data import augmentation as augmentation_lib, keys, partitions
from tff_reg.experiment.config import network_settings, skew_settings
from tff_reg.models import names
from tff_reg.settings import check, setting
from tff_reg.training import process_settings

# Headings of the help.
WHAT = "What to run"
DATA = process_settings.DATA
_of_data = functools.partial(setting, group=DATA)

# Name in `config.json` of the task of arrays that were given from Python.
OWN_DATA = "own_data"

# Tag of settings that not all tasks have.
OPTION = "option of tasks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(network_settings.NetworkSettings, skew_settings.SkewSettings):
    """The settings of a task.

    None for `model`, `norm`, `augmentation` or `image_size`, and an empty `pixel_mean`
    or `pixel_std`, stand for the task's own value.
    """

    task: str = setting("digits", group=WHAT, help="data set and model")
    seed: int = setting(
        0,
        group=WHAT,
        help="seed of everything random: the partition, the initial weights, client"
        " sampling, the order of batches; 0 to 2^53 - 1",
        minimum=0,
        maximum=keys.LARGEST_SEED,
    )
    partition_seed: Optional[int] = _of_data(
        None,
        help="seed of the partition and of the held-out examples alone, which stay the"
        " same while seed varies; by default seed",
        minimum=0,
        maximum=keys.LARGEST_SEED,
    )
    scale: Optional[str] = setting(
        None,
        group=WHAT,
        help="scales a run down: a fraction such as 0.1 of the rounds, clients, local"
        " epochs and examples; or tiny, a smoke test with one round of two clients with"
        " 12 examples each, in batches of 4, unless other flags say otherwise",
        placeholder="X",
    )
    validation_share: Optional[float] = _of_data(
        None,
        help="fraction of the training examples that is held out for tuning; the model"
        " is tested on them in place of the test set",
        above=0,
        below=1,
    )
    client_test_share: Optional[float] = _of_data(
        None,
        help="fraction of each client's examples that it does not train on; its"
        " accuracy is measured on them (client_evaluation)",
        above=0,
        below=1,
    )
    partition: str = _of_data(
        "iid", help="how the data are split among clients", choices=partitions.names()
    )
    concentration: Optional[float] = _of_data(
        None, help="alpha of a Dirichlet partition", above=0
    )
    classes_per_client: Optional[int] = _of_data(
        None,
        help="classes of a client in the partitions shards and shards_dirichlet",
        minimum=1,
    )
    split_file: Optional[str] = _of_data(
        None,
        help="file that the partition split_file reads",
        placeholder="FILE",
        tags=(process_settings.NO_EFFECT_ON_RESULTS,),
    )
    model: Optional[str] = _of_data(None, help="network", choices=names.ALL_NAMES)
    norm: Optional[str] = _of_data(
        None, help="normalisation layers of the network", choices=names.NORM_NAMES
    )
    projector: str = _of_data(
        "none", help="layers before the classifier", choices=names.PROJECTOR_NAMES
    )
    augmentation: Optional[str] = _of_data(
        None,
        help="augmentation of the training images",
        choices=augmentation_lib.RECIPE_NAMES,
    )
    pixel_mean: tuple[float, ...] = _of_data(
        (),
        help="mean of the normalisation, of pixels in 0 to 1: one number, or one for a"
        " channel; by default the task's",
    )
    pixel_std: tuple[float, ...] = _of_data(
        (), help="standard deviations of the normalisation, likewise", above=0
    )
    image_size: Optional[int] = _of_data(
        None,
        help="height and width of the images, for tasks with images of any size",
        minimum=8,
        tags=(OPTION,),
    )
    class_list: Optional[str] = _of_data(
        None,
        help="file that names the classes of imagenet200",
        placeholder="FILE",
        tags=(OPTION,),
    )
    label_column: Optional[str] = _of_data(
        None, help="column of a table's classes; by default label", tags=(OPTION,)
    )
    client_column: Optional[str] = _of_data(
        None, help="column of a table's clients; by default client", tags=(OPTION,)
    )
    vocabulary_size: Optional[int] = _of_data(
        None,
        help="number of the most frequent words that a text task tells apart",
        minimum=1,
        tags=(OPTION,),
    )
    sequence_length: Optional[int] = _of_data(
        None,
        help="number of words or characters that the model of a text task reads",
        minimum=1,
        tags=(OPTION,),
    )
    synthetic_data: bool = _of_data(
        False, help="random images of the task's shape in place of its data"
    )
    data_dir: Optional[str] = _of_data(
        None,
        help="directory of the data set",
        placeholder="DIR",
        tags=(OPTION, process_settings.NO_EFFECT_ON_RESULTS),
    )

    @property
    def seed_of_split(self) -> int:
        """The seed of the split into clients: `partition_seed`, or else `seed`."""
        return seed_of_split(vars(self))

    def __post_init__(self):
        """Checks all settings."""
        check(self)


def seed_of_split(settings: Mapping[str, Any]) -> int:
    """Returns the seed of the split into clients, of settings by name."""
    seed = settings.get("partition_seed")
    return settings["seed"] if seed is None else seed
