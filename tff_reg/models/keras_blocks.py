"""Block models from ordinary Keras layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import tensorflow as tf

from tff_reg import seam
from tff_reg.lazy import keras
from tff_reg.models import block_model, layers as layers_lib

ForwardPass = block_model.ForwardPass

_NON_LINEAR_LAYERS = (
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.PReLU,
    keras.layers.ELU,
    keras.layers.ThresholdedReLU,
)


def _is_non_linear(layer) -> bool:
    if isinstance(layer, _NON_LINEAR_LAYERS):
        return True
    activation = getattr(layer, "activation", None)
    return activation is not None and activation is not keras.activations.linear


def _flatten(layers):
    """Takes Sequential models apart, so that activations inside are seen."""
    for layer in layers:
        seam.refuse_keras_3(layer)
        if isinstance(layer, keras.Sequential):
            yield from _flatten(layer.layers)
        else:
            yield layer


def _run(layers, x, forward: ForwardPass):
    for layer in layers:
        if isinstance(layer, layers_lib.ForwardLayer):
            x = layer(x, forward)
        elif "training" in inspect.signature(layer.call).parameters:
            x = layer(x, training=forward.training)
        else:
            x = layer(x)
        if _is_non_linear(layer):
            forward.record(x)
    return x


class KerasBlock(block_model.Block):
    """Keras layers one after another."""

    def make(self, layers):
        self.layers = list(layers)

    def call(self, x, forward: ForwardPass):
        return _run(self.layers, x, forward)


class KerasClassifier(block_model.Classifier):
    """Keras layers of which the last one gives the logits."""

    def make(self, layers):
        self.layers = list(layers)

    def embed(self, x, forward: ForwardPass):
        return _run(self.layers[:-1], x, forward)

    def classify(self, embedding, forward: ForwardPass):
        return _run(self.layers[-1:], embedding, ForwardPass(training=forward.training))

    @property
    def linear_layer(self):
        return self.layers[-1]

    def replace_linear_layer(self, layer: layers_lib.ForwardLayer) -> None:
        self.layers = [*self.layers[:-1], layer]


def from_keras_blocks(
    blocks: Sequence, *, input_shape: Sequence[int]
) -> block_model.BlockModel:
    """Makes a `BlockModel` from ordinary Keras layers.

    The model offers everything that does not need our own layers: block outputs,
    activations, embedding, running from a block. The outputs of layers with a
    non-linear activation count as activations. It cannot run at a fraction of its
    width or drop residual branches, and says so when asked.

    For example

        from_keras_blocks(
            [
                [keras.layers.Conv2D(32, 3, activation="relu")],
                [keras.layers.Flatten(), keras.layers.Dense(10)],
            ],
            input_shape=(28, 28, 1),
        )

    Args:
      blocks: A list with one entry a block: a Keras layer, or a list of them. The
        last layer of the last block is the classifier's linear layer and gives
        logits (no softmax); what enters it is the embedding.
      input_shape: Shape of one example, without the batch axis.

    Returns:
      The `BlockModel`; its blocks are called block1, block2, ..., classifier.

    Raises:
      ValueError: If there are fewer than two blocks, a block is empty, the last
        layer has an activation, or it does not give one logit a class.
    """
    lists = [list(_flatten(b if isinstance(b, (list, tuple)) else [b])) for b in blocks]
    if len(lists) < 2 or not all(lists):
        raise ValueError(
            "from_keras_blocks needs at least two blocks with at least one layer "
            f"each, but got blocks of {[len(b) for b in lists]} layers."
        )
    if _is_non_linear(lists[-1][-1]):
        raise ValueError(
            "The last layer must give logits, but has a non-linear activation: leave "
            "its softmax out."
        )
    shape = tf.TensorShape([None, *input_shape])
    for number, layers in enumerate(lists, start=1):
        with tf.name_scope(f"block{number}" if number < len(lists) else "classifier"):
            for layer in layers:
                if not layer.built:
                    with tf.name_scope(layer.name):
                        layer.build(shape)
                shape = layer.compute_output_shape(shape)
    if shape.rank != 2 or shape[-1] is None:
        raise ValueError(
            "The last layer must give one logit a class, but its output has the shape "
            f"{shape}: flatten before it, for example."
        )
    dtype = lists[-1][-1].dtype
    return block_model.BlockModel(
        [
            *(
                KerasBlock(layers, name=f"block{number}", dtype=dtype)
                for number, layers in enumerate(lists[:-1], start=1)
            ),
            KerasClassifier(lists[-1], name="classifier", dtype=dtype),
        ],
        input_shape=input_shape,
        num_classes=shape[-1],
        # A user's layers may look at the whole batch.
        has_independent_examples=False,
        num_branches=0,
        supports_width=False,
        dtype=dtype,
    )
