"""A trained model for others: plain Keras, with its preprocessing and its labels.

The model takes the task's images as they are stored (uint8 mostly) and gives logits. It
is made of Keras's own layers and TensorFlow's functions, so that whoever loads it needs
neither this package nor TFF: the network is run once on Keras's symbolic tensors, and
those of our layers that have weights put Keras's with the same weights in their place.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from tff_reg import files, models
from tff_reg.experiment.report import trained
from tff_reg.lazy import keras, np
from tff_reg.settings import SettingError

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

FORMATS = ("keras", "saved_model")
METADATA = "metadata.json"
# How far logits may be from those of the run's own model, relative to the largest.
_TOLERANCE = 1e-4


class ExportError(ValueError):
    """Raised when a model cannot be exported; says why."""


def build_keras_model(
    network: BlockModel, normalize_fn: Callable, input_dtype: str
) -> keras.Model:
    """Makes a Keras model that computes what a network does in evaluation.

    Args:
      network: Of float32. It is of no use afterwards: its layers are replaced.
      normalize_fn: The task's, from images to the network's input: the same scale and
        shift for all pixels of a channel.
      input_dtype: Data type of the images, as uint8.

    Returns:
      A functional model from images [batch, height, width, channels] to
      logits float32 [batch, classes].

    Raises:
      ExportError: If the normalisation is something else than a scale and a shift.
    """
    shape = network.input_shape
    images = keras.Input(shape, dtype=input_dtype, name="images")
    scales = network.evaluation_branch_scales
    network.evaluation_branch_scales = None
    for block in network.blocks:
        for layer in (block, *block.submodules):
            _replace(layer)
    evaluation = models.ForwardPass(
        branch_scales=None if scales is None else np.asarray(scales, np.float32)
    )
    x = _rescaling(normalize_fn, shape)(images)
    sums = mock.patch.object(models.layers, "residual_sum", _residual_sum)
    pads = mock.patch.object(models.pooling, "pad", _pad)
    with sums, pads:
        logits = network.run_from(0, x, evaluation).logits
    logits = keras.layers.Activation("linear", name="logits")(logits)
    return keras.Model(images, logits)


def _rescaling(normalize_fn: Callable, shape: tuple) -> keras.layers.Layer:
    """The Keras layer that a normalisation is."""
    largest = 255
    values = [
        np.asarray(normalize_fn(np.full((1, *shape), value, np.uint8)), np.float64)
        for value in (0, 1, largest)
    ]
    scale, shift = (values[2] - values[0]) / largest, values[0]
    is_line = np.allclose(values[1], shift + scale, rtol=0, atol=1e-5)
    channels = [array.reshape(-1, shape[-1]) for array in (scale, shift)]
    if not is_line or any(np.ptp(array, axis=0).max() for array in channels):
        raise ExportError(
            "The task's preprocessing is not a scale and a shift of each channel."
        )
    scale, shift = [array[0].astype(np.float32).tolist() for array in channels]
    return keras.layers.Rescaling(scale, shift, name="preprocessing")


def _residual_sum(forward, branch_index, shortcut, branch):
    """`layers.residual_sum` of Keras's symbols."""
    added = branch()
    if forward.branch_scales is not None:
        scale = float(forward.branch_scales[branch_index])
        added = keras.layers.Rescaling(scale)(added)
    return keras.layers.Add()([shortcut, added])


def _pad(x, padding, value=0):
    """`pooling.pad` of Keras's symbols.

    Zeros stand for the lowest number, too: what networks take the maximum of comes out
    of a ReLU. `export` compares the predictions.
    """
    del value
    return keras.layers.ZeroPadding2D(padding)(x) if padding else x


def _replace(layer: Any) -> None:
    """Makes one of our layers run a Keras layer with its weights in its place."""
    makers = {
        models.layers.Conv2D: _conv,
        models.layers.DepthwiseConv2D: _depthwise_conv,
        models.layers.GroupedPointwiseConv2D: _grouped_conv,
        models.layers.Dense: _dense,
        models.simplex.SimplexClassifier: _simplex,
        models.norms.BatchNorm: _batch_norm,
        models.norms.GroupNorm: _group_norm,
        models.layers.ChannelShuffle: _channel_shuffle,
    }
    if type(layer) in makers:
        layer.call = lambda x, forward: makers[type(layer)](layer, x)


def _with_weights(x: Any, keras_layer: Any, *weights: Any) -> Any:
    """What the layer makes of `x`, with these weights."""
    y = keras_layer(x)
    keras_layer.set_weights([np.asarray(w) for w in weights if w is not None])
    return y


def _conv(layer, x):
    size, _, _, channels = layer.kernel.shape
    keras_layer = keras.layers.Conv2D(
        channels,
        size,
        layer.stride,
        padding=layer.padding.name.lower(),
        use_bias=layer.bias is not None,
    )
    return _with_weights(layer.padding(x), keras_layer, layer.kernel, layer.bias)


def _depthwise_conv(layer, x):
    keras_layer = keras.layers.DepthwiseConv2D(
        layer.kernel.shape[0], layer.stride, padding=layer.padding.name.lower()
    )
    return _with_weights(layer.padding(x), keras_layer, layer.kernel, layer.bias)


def _grouped_conv(layer, x):
    groups, inputs, outputs = layer.kernel.shape
    _, height, width, _ = x.shape
    keras_layer = keras.layers.EinsumDense(
        "bhwgi,gio->bhwgo", (height, width, groups, outputs), bias_axes="go"
    )
    x = keras.layers.Reshape((height, width, groups, inputs))(x)
    bias = np.reshape(layer.bias, (groups, outputs))
    x = _with_weights(x, keras_layer, layer.kernel, bias)
    return keras.layers.Reshape((height, width, groups * outputs))(x)


def _channel_shuffle(layer, x):
    _, height, width, channels = x.shape
    split = (height, width, layer.groups, channels // layer.groups)
    x = keras.layers.Reshape(split)(x)
    x = keras.layers.Permute((1, 2, 4, 3))(x)
    return keras.layers.Reshape((height, width, channels))(x)


def _dense(layer, x):
    keras_layer = keras.layers.Dense(layer.kernel.shape[1])
    return _with_weights(x, keras_layer, layer.kernel, layer.bias)


def _simplex(layer, x):
    directions = layer.directions * layer.scaling
    keras_layer = keras.layers.Dense(directions.shape[1], use_bias=False)
    unit = keras.layers.UnitNormalization()(_dense(layer.dense, x))
    return _with_weights(unit, keras_layer, directions)


def _batch_norm(layer, x):
    keras_layer = keras.layers.BatchNormalization(epsilon=models.norms.NORM_EPSILON)
    statistics = (layer.moving_mean, layer.moving_variance)
    return _with_weights(x, keras_layer, layer.gamma, layer.beta, *statistics)


def _group_norm(layer, x):
    keras_layer = keras.layers.GroupNormalization(
        layer.groups, epsilon=models.norms.NORM_EPSILON
    )
    return _with_weights(x, keras_layer, layer.gamma, layer.beta)


def export(
    run: trained.TrainedRun, format: str, output: files.PathLike
) -> pathlib.Path:
    """Writes a run's server model and what its outputs mean.

    Beside a `.keras` file F there is F.metadata.json, in a SavedModel's directory
    metadata.json: `class_names` in the order of the logits, input, run.

    Args:
      run: The run.
      format: `keras`, one file in Keras's format, or `saved_model`, a directory that
        `tf.saved_model.load` and `tf_keras.models.load_model` read.
      output: The file, its name ending in `.keras`, or the directory. Either must not
        be there yet.

    Returns:
      The path of the metadata.

    Raises:
      ExportError: If the format or the path is not fit, or the model that Keras loads
        again predicts something else than the run's.
    """
    output = check(format, output)
    images, _ = run.task.test_arrays()
    images = images[:64]
    expected = run.model().predict_on_batch(run.task.normalize_fn(images), False)
    model = build_keras_model(
        run.model().network, run.task.normalize_fn, images.dtype.name
    )
    text = json.dumps(_metadata(run, model, images), indent=2) + "\n"
    folder = pathlib.Path(tempfile.mkdtemp(dir=output.parent, prefix=".export-"))
    try:
        if format == "keras":
            written, metadata = folder / output.name, metadata_path(output)
            model.save(written, save_format="keras")
        else:
            written, metadata = folder / "saved_model", output / METADATA
            model.save(written, save_format="tf")
            (written / METADATA).write_text(text, "utf-8")
        found = keras.models.load_model(written, compile=False)(images)
        _check_equal(np.asarray(found), np.asarray(expected))
        os.replace(written, output)
        if format == "keras":
            files.write_text(metadata, text)
    finally:
        shutil.rmtree(folder)
    return metadata


def metadata_path(output: pathlib.Path) -> pathlib.Path:
    """Where the metadata of a `.keras` file is."""
    return output.with_name(f"{output.name}.{METADATA}")


def check(format: str, output: files.PathLike) -> pathlib.Path:
    """Checks that a model can be written to a path in a format.

    Raises:
      SettingError: If not.
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
    run: trained.TrainedRun, model: keras.Model, images: np.ndarray
) -> dict[str, Any]:
    return {
        "class_names": list(run.task.class_names),
        "input": {"shape": list(model.input_shape), "dtype": images.dtype.name},
        "output": "logits, in the order of class_names; tf.nn.softmax for shares",
        "preprocessing": "in the model",
        "process": run.config.process,
        "task": run.config.task,
        "model": run.config.model,
        "round_num": run.round_num,
        "weights": run.kind,
        "seed": run.config.seed,
    }


def _check_equal(found: np.ndarray, expected: np.ndarray) -> None:
    error = np.max(np.abs(found - expected))
    if not error <= _TOLERANCE * max(1.0, np.max(np.abs(expected))):
        raise ExportError(
            f"The exported model's logits differ from the run's by up to {error:g}."
        )
