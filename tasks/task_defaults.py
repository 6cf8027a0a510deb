"""A task's description and defaults, which need no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tff_reg import scores
from tff_reg.models import names


class TaskError(ValueError):
    """Raised for a task that does not exist or cannot be built with its settings."""


class DataError(TaskError):
    """Raised for data that are missing or damaged."""


# The settings that compared runs share unless the user or the task changes them:
# strong label skew between clients, few clients per round, and an optimizer with which
# every method trains.
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
# The same for a task whose clients are its domains.
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
    """A task's own value for a setting of a paper."""

    value: Any
    # One line that says why the paper's value does not suit the task.
    reason: str


@dataclasses.dataclass(frozen=True)
class TaskDefaults:
    """A task's own defaults.

    A setting of a run comes from the first source that has it: the user, the task's
    `overrides`, the method's paper.
    """

    # As given to --task.
    name: str
    # One line for --help.
    summary: str
    # A name of tff_reg.models.names.ALL_NAMES.
    model: str
    # A name of tff_reg.models.names.NORM_NAMES.
    norm: str
    # A name of tff_reg.data.augmentation.NAMES.
    augmentation: str
    # What the examples are, as in tff_reg.models.names.
    kind: str = names.IMAGES
    # [height, width, channels] of the images; None if it depends on the user's data.
    image_shape: tuple[int, int, int] | None = None
    # The number of classes; None if it depends on the user's data.
    num_classes: int | None = None
    # The number of all training examples; None if it depends on the user's data.
    num_train_examples: int | None = None
    # The number of domains; None if it depends on the user's data.
    num_domains: int | None = 0
    # The task's settings besides its split, such as data_dir; their rule is OPTION.
    options: tuple[str, ...] = ()
    # The default of `image_size`; None keeps images as they are.
    image_size: int | None = None
    # The address to download the data from; empty for the user's own data.
    source: str = ""
    # A description of `data_dir`, such as "the folder that holds train".
    layout: str = ""
    # The data set's name in TFDS, which loads it when `data_dir` is not given.
    tfds_name: str | None = None
    # The settings that compared runs share; see --settings_of.
    protocol: Mapping[str, Any] = dataclasses.field(default_factory=lambda: PROTOCOL)
    # The overridden settings, by the name of a field of tff_reg.experiment.RunConfig.
    overrides: Mapping[str, Override] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    # What models are judged by.
    score: str = scores.DEFAULT

    @property
    def is_own(self) -> bool:
        """Whether the data are the user's own, for which no paper has settings."""
        return self.num_train_examples is None and not self.source

    def override_values(self) -> dict[str, Any]:
        """Returns the task's values of the overridden settings, by field name."""
        return {field: override.value for field, override in self.overrides.items()}

    def missing(self, why: str) -> DataError:
        """Returns an error that says what to download and where to put it.

        Args:
          why: The beginning of a sentence that says what is missing.
        """
        download = f"download {self.source}, unpack it, and " if self.source else ""
        return DataError(
            f"{why}: {download}give data_dir=DIR, {self.layout} (task {self.name})."
        )
