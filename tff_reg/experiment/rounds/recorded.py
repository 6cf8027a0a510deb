"""The records of a run's data and model in `config.json`, beside its settings."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import Any, Optional

from tff_reg import lazy
from tff_reg.data import augmentation, digests
from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.experiment.rounds import process_digest
from tff_reg.lazy import np

keras_copies = lazy.module("tff_reg.models.keras_copies")

# A digest of the state of a run's data files.
FILES = "data_files"
# The images that a model takes, and their normalisation.
IMAGES = "images"
# A digest of the user's Keras model.
KERAS_MODEL = "keras_model"


def of(config: ResolvedConfig, task: Any) -> dict[str, Any]:
    """Returns the records of a run's task, JSON values by name."""
    found = {
        "class_names": list(task.class_names),
        IMAGES: _images(task),
        FILES: files_of(config),
    }
    if config.model is not None:
        return {**found, process_digest.NAME: None}
    plan = task.model_fn.plan
    return {
        **found,
        KERAS_MODEL: keras_copies.digest(plan.model),
        digests.INITIAL_WEIGHTS: digests.of_examples(*plan.values),
    }


def mean_examples(task: Any) -> float:
    """Returns the mean number of examples per client, which need not be whole."""
    return float(np.mean(task.client_data.client_sizes))


def _images(task: Any) -> dict[str, Any]:
    """Returns the images' shape, data type and normalisation, which `predict` needs."""
    stored, _ = task.test_arrays()
    described = {"shape": list(stored.shape[1:]), "dtype": stored.dtype.name}
    if isinstance(task.normalize_fn, augmentation.Normalization):
        described.update(dataclasses.asdict(task.normalize_fn))
    return described


def files_of(config: ResolvedConfig) -> Optional[str]:
    """Returns a digest of the state of the files that the user names, not their bytes.

    If it is unchanged, the data are the same, and nothing has to be read: to write to a
    file, or to replace it, changes the digest even if the size and the modification
    time stay the same.

    Returns:
      The digest; None if no file is named.
    """
    named = [path for path in (config.data_dir, config.split_file) if path]
    digest = hashlib.sha256()
    for path in named:
        for name, found in _states_in(path):
            state = found and (found.st_size, found.st_ino, found.st_ctime_ns)
            digest.update(f"{name}\0{state}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if named else None


def _states_in(path: str) -> Iterator[tuple[str, Optional[os.stat_result]]]:
    """Yields names and states of a file, or of a folder and its contents, via links."""
    yield "", _state(path)
    seen = set()
    for where, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            # A folder that was visited before, by another link.
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted([*folders, *names]):
            inner = os.path.join(where, name)
            yield os.path.relpath(inner, path), _state(inner)


def _state(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except OSError:
        # For instance a broken link.
        return None
