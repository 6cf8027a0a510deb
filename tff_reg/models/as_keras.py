"""Export of a trained network as a Keras model, with its preprocessing.

The result is a model of TensorFlow's own Keras, so loading it needs neither this
package nor TFF. For a `from_keras` network it is the user's own model. Our own networks
run once on symbolic Keras tensors: each layer with weights calls a Keras layer with the
same weights, and each function between these layers calls a Keras layer, too.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional
from unittest import mock

from tff_reg import lazy, models
from tff_reg.lazy import np, tf, todays_keras as keras

if TYPE_CHECKING:
    from tff_reg.models.block_model import BlockModel

keras_network = lazy.module("tff_reg.models.keras_network")


class ExportError(ValueError):
    """Raised when a model cannot be exported; says why."""


def build_keras_model(
    network: BlockModel,
    normalize_fn: Optional[Callable] = None,
    input_dtype: str = "float32",
) -> keras.Model:
    """Makes a Keras model that computes a network's evaluation pass.

    Args:
      network: A float32 network. The call replaces its layers, so it is unusable later.
      normalize_fn: Maps examples to the network's input by one scale and one shift per
        channel; None if the examples are the input.
      input_dtype: Data type of the examples, such as uint8.

    Returns:
      For a `from_keras` network, the user's Keras model with the network's weights,
      preceded by the normalisation, if any. For our own networks, a functional model
      from images [batch, height, width, channels] to logits float32 [batch, classes];
      its layers have the names of the network's layers.

    Raises:
      ExportError: If the normalisation is not one scale and one shift per channel.
      ValueError: If a method has replaced the last layer of a `from_keras` model.
    """
    if isinstance(network, keras_network.KerasNetwork):
        return _of_keras(network, normalize_fn, input_dtype)
    images, x = _input(keras, network.input_shape, normalize_fn, input_dtype)
    scales = network.evaluation_branch_scales
    network.evaluation_branch_scales = None
    for block in network.blocks:
        for layer in (block, *block.submodules):
            _replace(layer)
    evaluation = models.ForwardPass(
        branch_scales=None if scales is None else np.asarray(scales, np.float32)
    )
    with _functions_as_layers():
        logits = network.run_from(0, x, evaluation).logits
    logits = keras.layers.Activation("linear", name="logits")(logits)
    return keras.Model(images, logits)


def _of_keras(network: Any, normalize_fn: Optional[Callable], input_dtype: str) -> Any:
    """Returns the user's model, preceded by the normalisation, if any."""
    own = network.keras_model()
    if normalize_fn is None:
        return own
    library = models.keras_calls.keras_of(own)
    images, x = _input(library, network.input_shape, normalize_fn, input_dtype)
    return library.Model(images, own(x))


def of_process(
    process: Any,
    weights: Any,
    normalize_fn: Optional[Callable] = None,
    input_dtype: str = "float32",
) -> Any:
    """Makes a Keras model from a process of `tff_reg.training`.

    Args:
      process: The process.
      weights: The `tff.learning.models.ModelWeights`, as from `get_model_weights`.
      normalize_fn: As in `build_keras_model`.
      input_dtype: As in `build_keras_model`.

    Returns:
      The model; see `build_keras_model`.

    Raises:
      ExportError: If the process has no `model_fn`, or its model is neither a network
        of this package nor a `from_keras` model.
    """
    model_fn = getattr(process, "model_fn", None)
    model = None if model_fn is None else model_fn()
    network = getattr(model, "network", None)
    if network is None:
        raise ExportError(
            "Only a process of tff_reg.training that trains a network of"
            " tff_reg.models, or the model of models.from_keras, gives a Keras model."
        )
    weights.assign_weights_to(model)
    return build_keras_model(network, normalize_fn, input_dtype)


def _input(
    library: Any, shape: Any, normalize_fn: Optional[Callable], dtype: str
) -> tuple[Any, Any]:
    """Returns Keras's symbolic examples, and the symbolic input of the network."""
    images = library.Input(tuple(shape), dtype=dtype, name="images")
    if normalize_fn is None:
        return images, images
    largest = 255
    drawn = np.random.default_rng(0).integers(0, largest + 1, (1, *shape))
    values = [
        np.asarray(normalize_fn(np.broadcast_to(value, (1, *shape)).astype(dtype)))
        for value in (0, 1, largest, drawn)
    ]
    values = [value.astype(np.float64) for value in values]
    scale, shift = (values[2] - values[0]) / largest, values[0]
    is_line = np.allclose(values[1], shift + scale, rtol=0, atol=1e-5)
    # Random pixels show whether channels or pixels are reordered or mixed.
    size = 1e-5 * max(1, np.abs(values[3]).max())
    is_line &= np.allclose(values[3], shift + scale * drawn, rtol=0, atol=size)
    channels = [array.reshape(-1, shape[-1]) for array in (scale, shift)]
    if not is_line or any(np.ptp(array, axis=0).max() for array in channels):
        raise ExportError(
            "The preprocessing is not a scale and a shift of each channel, so that no"
            " Keras model can have it inside."
        )
    scale, shift = [array[0].astype(np.float32).tolist() for array in channels]
    return images, library.layers.Rescaling(scale, shift, name="preprocessing")(images)


@contextlib.contextmanager
def _functions_as_layers() -> Iterator[None]:
    """Within the context, TensorFlow functions in our networks make Keras layers."""
    names = ("layers", "pooling", "classifiers", *models.names.MODULES.values())
    modules = [lazy.module(f"tff_reg.models.{name}") for name in {*names, "conv_units"}]
    with contextlib.ExitStack() as stack:
        for module in modules:
            loaded = importlib.import_module(module.__name__)
            stack.enter_context(mock.patch.object(loaded, "tf", _Functions()))
        patch = mock.patch.object(models.layers, "residual_sum", _residual_sum)
        stack.enter_context(patch)
        yield


class _Functions:
    """The module `tf`, with Keras layers for the functions that our networks call."""

    @property
    def nn(self) -> _Functions:
        """This object: it has the functions of `tf.nn`, too."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)

    def relu(self, x):
        return keras.layers.ReLU()(x)

    def relu6(self, x):
        return keras.layers.ReLU(6.0)(x)

    def max_pool2d(self, x, ksize, strides, padding):
        return keras.layers.MaxPooling2D(ksize, strides, padding.lower())(x)

    def avg_pool2d(self, x, ksize, strides, padding):
        size, step = (
            [n, n] if isinstance(n, int) else n[-3:-1] for n in (ksize, strides)
        )
        return keras.layers.AveragePooling2D(size, step, padding.lower())(x)

    def reduce_mean(self, x, axis):
        assert list(axis) == [1, 2]
        return keras.layers.GlobalAveragePooling2D()(x)

    def reshape(self, x, shape):
        return keras.layers.Reshape(shape[1:])(x)

    def concat(self, values, axis):
        return keras.layers.Concatenate(axis)(values)

    def pad(self, x, paddings, constant_values=0):
        """Pads with zeros, even if max-pooling asks for the lowest number.

        Our networks max-pool the outputs of a ReLU, so zeros do not change the maximum.
        `export` compares the predictions.
        """
        del constant_values
        return keras.layers.ZeroPadding2D(paddings[1:3])(x)

    def einsum(self, equation, rows, x, columns):
        """Computes `pooling.adaptive_average_pool` for windows of different sizes."""
        assert equation == "hr,brcf,wc->bhwf"
        _, _, width, channels = x.shape
        for means, axes, shape in (
            (rows, "brcf,rh->bhcf", (rows.shape[0], width, channels)),
            (columns, "bhcf,cw->bhwf", (rows.shape[0], columns.shape[0], channels)),
        ):
            mean = keras.layers.EinsumDense(axes, shape, trainable=False)
            x = _with_weights(x, mean, np.transpose(means))
        return x


def _residual_sum(forward, branch_index, shortcut, branch):
    """Computes `layers.residual_sum` on symbolic Keras tensors."""
    added = branch()
    if forward.branch_scales is not None:
        scale = float(forward.branch_scales[branch_index])
        added = keras.layers.Rescaling(scale)(added)
    return keras.layers.Add()([shortcut, added])


def _replace(layer: Any) -> None:
    """Makes a layer compute with a Keras layer that has the same weights."""
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
    activation = getattr(layer, "_activation", None)
    if activation is not None:  # Stored when the unit was made.
        layer._activation = getattr(_Functions(), activation.__name__)


def _name(variable: Any) -> str:
    """Returns the name for a Keras layer: that of our layer with this variable."""
    return variable.name.rpartition("/")[0].replace("/", "_")


def _with_weights(x: Any, keras_layer: Any, *weights: Any) -> Any:
    """Returns the layer's output for `x`, with these weights."""
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
        name=_name(layer.kernel),
    )
    return _with_weights(layer.padding(x), keras_layer, layer.kernel, layer.bias)


def _depthwise_conv(layer, x):
    keras_layer = keras.layers.DepthwiseConv2D(
        layer.kernel.shape[0],
        layer.stride,
        padding=layer.padding.name.lower(),
        name=_name(layer.kernel),
    )
    return _with_weights(layer.padding(x), keras_layer, layer.kernel, layer.bias)


def _grouped_conv(layer, x):
    groups, inputs, outputs = layer.kernel.shape
    _, height, width, _ = x.shape
    keras_layer = keras.layers.EinsumDense(
        "bhwgi,gio->bhwgo",
        (height, width, groups, outputs),
        bias_axes="go",
        name=_name(layer.kernel),
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
    keras_layer = keras.layers.Dense(layer.kernel.shape[1], name=_name(layer.kernel))
    return _with_weights(x, keras_layer, layer.kernel, layer.bias)


def _simplex(layer, x):
    directions = layer.directions * layer.scaling
    keras_layer = keras.layers.Dense(
        directions.shape[1], use_bias=False, name=_name(layer.scaling)
    )
    unit = keras.layers.UnitNormalization()(_dense(layer.dense, x))
    return _with_weights(unit, keras_layer, directions)


def _batch_norm(layer, x):
    keras_layer = keras.layers.BatchNormalization(
        epsilon=models.norms.NORM_EPSILON, name=_name(layer.gamma)
    )
    statistics = (layer.moving_mean, layer.moving_variance)
    return _with_weights(x, keras_layer, layer.gamma, layer.beta, *statistics)


def _group_norm(layer, x):
    keras_layer = keras.layers.GroupNormalization(
        layer.groups, epsilon=models.norms.NORM_EPSILON, name=_name(layer.gamma)
    )
    return _with_weights(x, keras_layer, layer.gamma, layer.beta)
