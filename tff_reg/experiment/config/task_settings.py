"""The settings of a task: its data, partition and model.

This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg.data import augmentation as augmentation_lib, keys, partitions
from tff_reg.models import names, weight_files
from tff_reg.settings import (
    ASIDE,
    COMMON,
    FILE,
    HEADER,
    KEPT,
    KEY,
    NO_EFFECT,
    SETUP,
    Rule,
    check,
    conflicts,
    off_when,
    only_with,
    setting,
    wrong_when,
)
from tff_reg.training import process_settings

# Headings of the help.
WHAT = "What to run"
DATA = process_settings.DATA
_of_data = functools.partial(setting, group=DATA)

# Name in `config.json` of the task of arrays that were given from Python.
OWN_DATA = "own_data"

# Skews of the clients' own examples, which `tff_reg.data.skews` makes.
OF_CLIENTS = ("feature_noise", "rotations", "hues", "label_noise")

# Rule of settings that not all tasks have.
OPTION = off_when(
    lambda name, of_task: name not in of_task.options,
    "the task {task} has no such option.",
    then=KEPT,
)
# The values of a method or a task stay: the network or the task does without.
_OF_NETWORKS = off_when(
    lambda model: (
        model is None
        or names.is_file(model)
        or model in (*names.OF_KIND, *names.KERAS_NAMES)
    ),
    "it is for our networks, and the model is of Keras; leave it out.",
    then=KEPT,
)
# The user's model is checked when its inputs are known.
_OF_IMAGES = off_when(
    lambda model, of_task: model is not None and of_task.kind != names.IMAGES,
    "it is for images, and the task {task} has {of_task.kind}.",
    then=KEPT,
)
_OF_LAYERS = off_when(
    lambda model: model is None or names.is_file(model),
    "set trainable=False on layers of the Keras model instead.",
)
# For settings that take examples away before the partition.
_OF_ALL_DATA = conflicts(
    "partition", "split_file", why="deals out all of a data set, never a part"
)
_NO_DATA = conflicts("synthetic_data", why="takes the place of all data", then=KEPT)
_AS_MANY = wrong_when(
    lambda pixel_mean, pixel_std: len(pixel_mean) != len(pixel_std),
    "give as many numbers for pixel_mean as for pixel_std.",
)


def _domains_left(partition: str, num_clients: int, test_domains: Any, of_task: Any):
    if partition not in partitions.taking("domains") or of_task.num_domains is None:
        return None
    left = of_task.num_domains - len({*test_domains})
    return left and num_clients % left and left


def _of_partitions(name: str, example: str) -> Rule:
    return only_with("partition", *partitions.taking(name), example=example)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(process_settings.PopulationSettings):
    """The settings of a task.

    None for `model`, `norm`, `augmentation` or `image_size`, and an empty `pixel_mean`
    or `pixel_std`, stand for the task's own value. A list of numbers by client begins
    anew after its end.
    """

    test_domains: tuple[str, ...] = _of_data(
        (),
        help="domains, such as sketch,photo, that nobody trains on: the model is tested"
        " on all their examples in place of the test set",
        placeholder="NAME",
        rules=(
            _OF_ALL_DATA,
            wrong_when(
                lambda of_task: of_task.num_domains == 0,
                "the task {task} has no domains.",
            ),
            wrong_when(
                lambda test_domains, of_task: (
                    len({*test_domains}) >= (of_task.num_domains or math.inf)
                ),
                "it leaves no domain to train on.",
            ),
            wrong_when(
                lambda client_evaluation, client_test_share: (
                    client_evaluation is not None and not client_test_share
                ),
                "clients have no examples of these domains to be measured on; give"
                " client_test_share, such as 0.2, too.",
            ),
        ),
    )
    imbalance_factor: Optional[float] = _of_data(
        None,
        help="long tail (CIFAR-LT): training examples of the first class over those of"
        " the last; class c of C keeps n * factor^(-c / (C - 1))",
        minimum=1,
        rules=(_OF_ALL_DATA,),
    )
    feature_noise: Optional[float] = _of_data(
        None,
        help="Gaussian noise on the clients' images: client i of N has the deviation"
        " feature_noise * i / N of the pixels' range (of float32 images, 1)",
        above=0,
        rules=(_OF_IMAGES,),
    )
    rotations: tuple[int, ...] = _of_data(
        (),
        help="rotation of each client's images in degrees, such as 0,90,180,270: client"
        " i has the i-th, and after the last the first again",
        choices=(0, 90, 180, 270),
        rules=(_OF_IMAGES,),
    )
    hues: tuple[float, ...] = _of_data(
        (),
        help="rotation of each client's hues (HSV) in degrees, such as 0,120,240,"
        " likewise",
        minimum=0,
        below=360,
        keeps_whole=True,
        rules=(
            _OF_IMAGES,
            wrong_when(
                lambda of_task: (of_task.image_shape or [3])[-1] != 3,
                "the task {task} has no colours.",
            ),
        ),
    )
    label_noise: tuple[float, ...] = _of_data(
        (),
        help="share of each client's training labels that are wrong, drawn uniformly"
        " from the other classes: one for all, or a list such as 0,0.2,0.4 likewise",
        minimum=0,
        below=1,
    )
    train: tuple[str, ...] = _of_data(
        (),
        help="patterns of the names of the weights that train, such as"
        " classifier,*/gamma; all others are frozen: constants that are sent once",
        placeholder="PATTERN",
        rules=(_OF_LAYERS,),
    )
    freeze: tuple[str, ...] = _of_data(
        (),
        help="patterns of the names of the weights that are frozen, such as stage1",
        placeholder="PATTERN",
        rules=(_OF_LAYERS,),
    )
    initial_weights: Optional[str] = _of_data(
        None,
        help="file of weights to begin with: final_weights.npz, Keras's .keras,"
        " .weights.h5 or .h5, or a PyTorch state_dict as .npz",
        placeholder="FILE",
        rules=(
            wrong_when(
                lambda initial_weights: (
                    not initial_weights.endswith(weight_files.SUFFIXES)
                ),
                f"give a file {', '.join(weight_files.SUFFIXES)}; PyTorch's state_dict"
                " is saved as one by numpy.savez(file, **{{name: value.cpu().numpy()"
                " for name, value in model.state_dict().items()}}).",
            ),
            wrong_when(
                lambda initial_weights: not os.path.isfile(initial_weights),
                "there is no such file.",
            ),
        ),
        tags=(FILE,),
    )
    mixed_precision: Optional[str] = _of_data(
        None,
        help="data type of convolutions and matrix products; weights and sums stay"
        " float32; tf32 is of NVIDIA's GPUs alone",
        choices=("bfloat16", names.TF32),
        rules=(_OF_NETWORKS,),
    )
    task: str = setting(
        "digits",
        group=WHAT,
        help="data set and model",
        tags=(KEY, SETUP),
    )
    seed: int = setting(
        0,
        group=WHAT,
        help="seed of everything random: the partition, the initial weights, client"
        " sampling, the order of batches; 0 to 2^53 - 1",
        minimum=0,
        maximum=keys.LARGEST_SEED,
        tags=(KEY, HEADER, ASIDE, COMMON),
    )
    partition_seed: Optional[int] = _of_data(
        None,
        help="seed of the partition and of the held-out examples alone, which stay the"
        " same while seed varies; by default seed",
        minimum=0,
        maximum=keys.LARGEST_SEED,
        rules=(
            off_when(
                lambda partition, client_test_share, values: (
                    partition in (None, "split_file")
                    and not client_test_share
                    and not change_examples(values)
                ),
                "the split is given and needs no seed.",
            ),
        ),
        tags=(COMMON,),
    )
    scale: Optional[str] = setting(
        None,
        group=WHAT,
        help="scales a run down: a fraction such as 0.1 of the rounds, clients, local"
        " epochs and examples; or tiny, a smoke test with one round of two clients with"
        " 12 examples each, in batches of 4, unless other flags say otherwise",
        placeholder="X",
        rules=(_OF_ALL_DATA,),
        tags=(KEY, SETUP),
    )
    validation_share: Optional[float] = _of_data(
        None,
        help="fraction of the training examples that is held out for tuning; the model"
        " is tested on them in place of the test set",
        above=0,
        below=1,
        rules=(_OF_ALL_DATA,),
        tags=(COMMON,),
    )
    client_test_share: Optional[float] = _of_data(
        None,
        help="fraction of each client's examples that it does not train on; its"
        " accuracy is measured on them (client_evaluation)",
        above=0,
        below=1,
        tags=(SETUP,),
    )
    partition: str = _of_data(
        "iid",
        help="how the data are split among clients",
        choices=partitions.names(),
        rules=(
            wrong_when(
                lambda partition, of_task: (
                    partition in partitions.taking("domains")
                    and of_task.num_domains == 0
                ),
                "the task {task} has no domains; choose another partition.",
            ),
            wrong_when(
                _domains_left,
                "the task {task} has {found} domains to train on, and num_clients="
                "{num_clients} must be a multiple of that.",
            ),
        ),
        tags=(KEY, SETUP),
    )
    concentration: Optional[float] = _of_data(
        None,
        help="alpha of a Dirichlet partition",
        above=0,
        rules=(_of_partitions("concentration", "0.3"),),
        tags=(KEY, HEADER, SETUP),
    )
    classes_per_client: Optional[int] = _of_data(
        None,
        help="classes of a client in the partitions shards and shards_dirichlet",
        minimum=1,
        rules=(
            _of_partitions("classes_per_client", "2"),
            wrong_when(
                lambda classes_per_client, num_clients, scale, of_task: (
                    scale is None
                    and of_task.num_classes is not None
                    and not 1 <= of_task.num_classes / classes_per_client <= num_clients
                ),
                "the task {task} has only {of_task.num_classes} classes, and the"
                " {num_clients} clients, each with {classes_per_client} different ones,"
                " must hold all.",
            ),
        ),
        tags=(HEADER, SETUP),
    )
    split_file: Optional[str] = _of_data(
        None,
        help="file that says which examples each client has: JSON {client: [positions]}"
        " or {client: {train: [..], test: [..]}}, .npz, or a pickle of such",
        placeholder="FILE",
        tags=(NO_EFFECT, FILE),
        rules=(_of_partitions("split_file", "clients.json"),),
    )
    model: Optional[str] = _of_data(
        None,
        help="network, or FILE.keras: a Keras model, saved after it was compiled",
        choices=names.ALL_NAMES,
        ending=names.FILE,
        rules=(
            wrong_when(
                lambda model: names.is_file(model) and not os.path.isfile(model),
                "there is no such file.",
            ),
            wrong_when(
                lambda model, of_task: (
                    not names.is_file(model)
                    and names.kind_of(model) != of_task.kind
                    and ", ".join(names.of_kind(of_task.kind))
                ),
                "the task {task} has {of_task.kind}; give one of {found}.",
            ),
        ),
        tags=(KEY,),
    )
    norm: Optional[str] = _of_data(
        None,
        help="normalisation layers of the network",
        choices=names.NORM_NAMES,
        rules=(
            _OF_IMAGES,
            _OF_NETWORKS,
        ),
        tags=(HEADER,),
    )
    projector: str = _of_data(
        "none",
        help="layers before the classifier",
        choices=names.PROJECTOR_NAMES,
        rules=(
            off_when(
                lambda model, of_task: model is None or of_task.kind != names.IMAGES,
                "it is for our networks for images.",
                then="none",
            ),
            _OF_NETWORKS,
        ),
    )
    augmentation: Optional[str] = _of_data(
        None,
        help="augmentation of the training images",
        choices=augmentation_lib.NAMES,
        rules=(_OF_IMAGES,),
    )
    pixel_mean: tuple[float, ...] = _of_data(
        (),
        help="mean of the normalisation, of pixels in 0 to 1: one number, or one for a"
        " channel; by default the task's",
        rules=(
            _OF_IMAGES,
            _AS_MANY,
        ),
    )
    pixel_std: tuple[float, ...] = _of_data(
        (),
        help="standard deviations of the normalisation, likewise",
        above=0,
        rules=(
            _OF_IMAGES,
            _AS_MANY,
        ),
    )
    image_size: Optional[int] = _of_data(
        None,
        help="height and width of the images, for tasks with images of any size",
        minimum=8,
        rules=(OPTION,),
    )
    class_list: Optional[str] = _of_data(
        None,
        help="file that names the classes of imagenet200",
        placeholder="FILE",
        rules=(
            _NO_DATA,
            OPTION,
        ),
        tags=(FILE,),
    )
    label_column: Optional[str] = _of_data(
        None,
        help="column of a table's classes; by default label",
        rules=(OPTION,),
    )
    client_column: Optional[str] = _of_data(
        None,
        help="column of a table's clients; by default client",
        rules=(OPTION,),
    )
    vocabulary_size: Optional[int] = _of_data(
        None,
        help="number of the most frequent words that a text task tells apart",
        minimum=1,
        rules=(OPTION,),
    )
    sequence_length: Optional[int] = _of_data(
        None,
        help="number of words or characters that the model of a text task reads",
        minimum=1,
        rules=(OPTION,),
    )
    synthetic_data: bool = _of_data(
        False,
        help="random images of the task's shape in place of its data",
        rules=(
            wrong_when(
                lambda partition: partition == "natural",
                "random images have no clients; choose another partition than natural.",
            ),
        ),
        tags=(SETUP,),
    )
    data_dir: Optional[str] = _of_data(
        None,
        help="directory of the data set",
        placeholder="DIR",
        tags=(NO_EFFECT, KEY, FILE),
        rules=(
            _NO_DATA,
            OPTION,
        ),
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


def change_examples(values: Mapping[str, Any]) -> bool:
    """Whether the seed of the split decides the clients' examples themselves."""
    return any(values.get(name) for name in ("imbalance_factor", *OF_CLIENTS))
