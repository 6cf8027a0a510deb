"""What a task says about itself before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class TaskError(ValueError):
    """A task that does not exist or cannot be built as asked."""


class DataError(TaskError):
    """Data that are not there, or not what they should be."""


# What runs that are compared share, where neither a user nor a task says otherwise:
# classes that differ strongly from client to client, few clients a round, and what
# trains every method.
PROTOCOL: Mapping[str, Any] = MappingProxyType(
    {
        "num_clients": 20,
        "clients_per_round": 5,
        "total_rounds": 60,
        "local_epochs": 5,
        "batch_size": 50,
        "partition": "dirichlet_balanced",
        "concentration": 0.3,
        "client_learning_rate": 0.1,
        "client_weight_decay": 1e-3,
        "max_gradient_norm": 10.0,
    }
)
# The same of a task whose clients are its domains.
PROTOCOL_BY_DOMAIN: Mapping[str, Any] = MappingProxyType(
    {
        **PROTOCOL,
        "num_clients": 4,
        "clients_per_round": 4,
        "partition": "domain",
        "concentration": None,
    }
)


@dataclasses.dataclass(frozen=True)
class Override:
    """A setting of a paper that a task replaces."""

    # What the task uses instead.
    value: Any
    # Why the paper's own value does not suit the task, one line.
    reason: str


@dataclasses.dataclass(frozen=True)
class TaskDefaults:
    """A task's own defaults.

    A run takes, in this order: what the user gives, the task's `overrides`, the
    settings of the method's paper.
    """

    # As given to --task.
    name: str
    # One line for --help.
    summary: str
    # A name of tff_reg.models.names.MODEL_NAMES.
    model: str
    # A name of tff_reg.models.names.NORM_NAMES.
    norm: str
    # A name of tff_reg.data.augmentation.RECIPE_NAMES.
    augmentation: str
    # [height, width, channels] of the images; None where only the data say.
    image_shape: tuple[int, int, int] | None = None
    # How many classes there are; None where only the data say.
    num_classes: int | None = None
    # How many training examples the whole data set has; None where only the data say.
    num_train_examples: int | None = None
    # How many domains there are, 0 for none; None where only the data say.
    num_domains: int | None = 0
    # What the task can be told beside its split: data_dir, image_size, class_list.
    options: tuple[str, ...] = ()
    # The default of `image_size`; None where images are left as they are.
    image_size: int | None = None
    # Where to download the data, an address; empty where they are the user's own.
    source: str = ""
    # What `data_dir` is, such as "the folder that holds train".
    layout: str = ""
    # The data set's name in TFDS, which loads it when `data_dir` is not given.
    tfds_name: str | None = None
    # What runs that are compared share, by setting; see --settings_of.
    protocol: Mapping[str, Any] = dataclasses.field(default_factory=lambda: PROTOCOL)
    # By the name of a field of tff_reg.experiment.RunConfig; often empty.
    overrides: Mapping[str, Override] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    def override_values(self) -> dict[str, Any]:
        """The replaced settings: field name -> the task's value."""
        return {field: override.value for field, override in self.overrides.items()}

    def missing(self, why: str) -> DataError:
        """An error that says what to download and where to put it.

        Args:
          why: What was found instead, the beginning of a sentence.
        """
        download = f"download {self.source}, unpack it, and " if self.source else ""
        return DataError(
            f"{why}: {download}give data_dir=DIR, {self.layout} (task {self.name})."
        )
