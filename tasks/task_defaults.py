"""What a task says about itself before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class TaskError(ValueError):
    """A task that does not exist or cannot be built as asked."""


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
    # [height, width, channels] of the images.
    image_shape: tuple[int, int, int]
    # How many classes there are.
    num_classes: int
    # How many training examples there are to deal out.
    num_train_examples: int
    # By the name of a field of tff_reg.processes.catalog.Settings; often empty.
    overrides: Mapping[str, Override] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    def override_values(self) -> dict[str, Any]:
        """The replaced settings: field name -> the task's value."""
        return {field: override.value for field, override in self.overrides.items()}
