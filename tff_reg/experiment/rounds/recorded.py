"""The records of a run's data and model in `config.json`, beside its settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg import lazy
from tff_reg.data import augmentation, digests
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.run_config import ResolvedConfig

keras_copies = lazy.module("tff_reg.models.keras_copies")

# The images that a model takes, and their normalisation.
IMAGES = "images"


def of(config: ResolvedConfig, task: Any) -> dict[str, Any]:
    """Returns the records of a run's task, JSON values by name."""
    found = {
        "class_names": list(task.class_names),
        IMAGES: _images(task),
    }
    if config.model is None:
        plan = task.model_fn.plan
        network, weights = (
            keras_copies.digest(plan.model),
            digests.of_examples(*plan.values),
        )
        found[identity.KERAS_MODEL] = digests.together(
            {"network": network, "weights": weights}
        )
    return found


def _images(task: Any) -> dict[str, Any]:
    """Returns the images' shape, data type and normalisation, which `predict` needs."""
    stored, _ = task.test_arrays()
    described = {"shape": list(stored.shape[1:]), "dtype": stored.dtype.name}
    if isinstance(task.normalize_fn, augmentation.Normalization):
        described.update(dataclasses.asdict(task.normalize_fn))
    return described
