"""Exports a trained model as a Keras file or a SavedModel, with its class names."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from tff_reg import files, models
from tff_reg.lazy import np, tf, todays_keras as keras
from tff_reg.models import as_keras
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.experiment.report.trained import TrainedRun

ExportError = as_keras.ExportError

FORMATS = ("keras", "saved_model")
METADATA = "metadata.json"
# Tolerance of the exported model's outputs, relative to the run's largest output.
_TOLERANCE = 1e-4


def export(run: TrainedRun, format: str, output: files.PathLike) -> pathlib.Path:
    """Writes a run's model and the metadata of its outputs.

    The metadata (`class_names` in the order of the outputs, input, run) are in
    F.metadata.json for a `.keras` file F, in metadata.json in a SavedModel's directory.

    Args:
      run: The run.
      format: `keras`, one file in Keras's format, or `saved_model`, a directory that
        `tf.saved_model.load` reads.
      output: The file, its name ending in `.keras`, or the directory. It must not exist
        yet.

    Returns:
      The path of the metadata.

    Raises:
      SettingError: If the format or the path is not allowed.
      ExportError: If the re-loaded model's predictions differ from the run's model's.
    """
    output = check(format, output)
    images, _ = run.task.test_arrays()
    images = images[:64]
    expected = run.model().predict_on_batch(run.task.normalize_fn(images), False)
    model = as_keras.build_keras_model(
        run.model().network, run.task.normalize_fn, images.dtype.name
    )
    folder = pathlib.Path(tempfile.mkdtemp(dir=output.parent, prefix=".export-"))
    try:
        written = folder / output.name
        found = _written(model, format, written, images)
        kind = _kind_of(np.asarray(found), np.asarray(expected))
        text = json.dumps(_metadata(run, model, images, kind), indent=2) + "\n"
        if format == "saved_model":
            (written / METADATA).write_text(text, "utf-8")
        os.replace(written, output)
        if format == "keras":
            files.write_text(metadata_path(output), text)
    finally:
        shutil.rmtree(folder)
    return metadata_path(output) if format == "keras" else output / METADATA


def _written(model: Any, format: str, path: pathlib.Path, images: np.ndarray) -> Any:
    """Writes a model; returns the predictions of the re-loaded model."""
    library = models.keras_calls.keras_of(model)
    if format == "keras":
        model.save(path)
        own = {type(each).__name__: type(each) for each in model.layers}
        loaded = library.models.load_model(path, custom_objects=own, compile=False)
        return loaded(images)
    if models.keras_calls.is_keras_3(model):
        model.export(path, verbose=False)
    else:
        model.save(path, save_format="tf")
    signature = tf.saved_model.load(path).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    (found,) = signature(**{name: tf.constant(images)}).values()
    return found


def metadata_path(output: pathlib.Path) -> pathlib.Path:
    """Returns the path of the metadata of a `.keras` file."""
    return output.with_name(f"{output.name}.{METADATA}")


def check(format: str, output: files.PathLike) -> pathlib.Path:
    """Checks that a model can be written to a path in a format.

    Raises:
      SettingError: If it cannot.
    """
    output = pathlib.Path(output)
    if format not in FORMATS:
        raise SettingError("format", format, f"choose one of {', '.join(FORMATS)}.")
    reason = None
    if format == "keras" and output.suffix != ".keras":
        reason = "its name must end in .keras."
    elif output.exists():
        reason = "it is there already; delete it first."
    if reason:
        raise SettingError("output", output, reason)
    files.check_place(output, "output")
    return output


def _metadata(
    run: TrainedRun, model: keras.Model, images: np.ndarray, kind: str
) -> dict[str, Any]:
    is_ours = not hasattr(run.model().network, "keras_model")
    return {
        "class_names": list(run.task.class_names),
        "input": {"shape": [None, *images.shape[1:]], "dtype": images.dtype.name},
        "output": f"{kind}, in the order of class_names",
        "preprocessing": "in the model",
        "process": run.config.process,
        "task": run.config.task,
        "model": run.config.model if is_ours else model.layers[-1].name,
        "round_num": run.round_num,
        "weights": run.kind,
        "seed": run.config.seed,
    }


def _kind_of(found: np.ndarray, expected: np.ndarray) -> str:
    """Returns whether the found outputs are the expected logits or their softmax."""
    softmax = np.asarray(tf.nn.softmax(expected))
    errors = []
    for kind, wanted in (
        ("logits, whose tf.nn.softmax are probabilities", expected),
        ("probabilities", softmax),
    ):
        error = np.max(np.abs(found - wanted))
        if error <= _TOLERANCE * max(1.0, np.max(np.abs(wanted))):
            return kind
        errors.append(error)
    raise ExportError(
        f"The exported model's outputs differ from the run's by up to {min(errors):g}."
    )
