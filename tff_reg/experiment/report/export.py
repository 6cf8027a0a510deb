"""Exports a trained model as a SavedModel, with its weights and class names."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from tff_reg import files, lazy, models
from tff_reg.lazy import np, tf
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.experiment.report.trained import TrainedRun

trained_model = lazy.module("tff_reg.experiment.rounds.trained_model")

METADATA, WEIGHTS = "metadata.json", "weights.npz"


def export(run: TrainedRun, output: files.PathLike) -> pathlib.Path:
    """Writes a run's model as a SavedModel that takes images as they are stored.

    In it are also `weights.npz` (by name) and `metadata.json` (`class_names` in the
    order of the outputs, input, run).
    """
    output = check(output)
    images, _ = run.task.test_arrays()
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    model = run.model()
    folder = pathlib.Path(tempfile.mkdtemp(dir=output.parent, prefix=".export-"))
    try:
        written = folder / output.name
        served = trained_model.TrainedModel(model, run.task.normalize_fn, spec)
        served.save(written)
        weights = [*model.trainable_variables, *model.non_trainable_variables]
        names = models.keras_calls.names_of(weights)
        arrays = dict(zip(names, weights)) | dict(model.network.frozen)
        arrays = files.npz({name: np.asarray(each) for name, each in arrays.items()})
        (written / WEIGHTS).write_bytes(arrays)
        found = _metadata(run, model.network, served.input_spec)
        text = json.dumps(found, indent=2) + "\n"
        (written / METADATA).write_text(text, "utf-8")
        os.replace(written, output)
    finally:
        shutil.rmtree(folder)
    return output / METADATA


def check(output: files.PathLike) -> pathlib.Path:
    """Checks that a model can be written to a path; raises a SettingError if not."""
    output = pathlib.Path(output)
    if output.exists():
        raise SettingError("output", output, "it is there already; delete it first.")
    files.check_place(output, "output")
    return output


def _metadata(run: TrainedRun, network: Any, spec: Any) -> dict[str, Any]:
    outputs = "logits, whose tf.nn.softmax are probabilities"
    if network.gives_probabilities:
        outputs = "probabilities"
    return {
        "class_names": list(run.task.class_names),
        "input": {"shape": spec.shape.as_list(), "dtype": spec.dtype.name},
        "output": f"{outputs}, in the order of class_names",
        "preprocessing": "in the model",
        "vocabulary": list(run.task.vocabulary),
        "process": run.config.process,
        "task": run.config.task,
        "model": run.config.model,
        "round_num": run.round_num,
        "weights": run.kind if run.client is None else None,
        "client": run.client,
        "seed": run.config.seed,
    }
