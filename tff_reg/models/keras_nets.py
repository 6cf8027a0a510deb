"""Small Keras networks for examples that are no images: rows of numbers, and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from tff_reg.data import keys
from tff_reg.lazy import tf
from tff_reg.models import adjusted, keras_models

_WIDTH = 64
# Of weights with more than one axis; others are constants in Keras.
_INITIALIZERS = {"embeddings": "RandomUniform", "recurrent": "Orthogonal"}


def build_model_fn(
    name: str,
    *,
    shape: Sequence[int],
    num_classes: int,
    vocabulary: Optional[int] = None,
    seed: int = 0,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
) -> keras_models.KerasModelFn:
    """Makes the `model_fn` of a network, whose last layer gives logits.

    Args:
      name: `mlp`: two hidden layers of 64 units. `lstm`: an embedding of 64 numbers and
        an LSTM of 128 units. `transformer`: embeddings of tokens and positions, two
        pre-norm blocks with 4 heads, and the mean over the text. Token 0 pads a text.
      shape: The shape of one example: [numbers], or [tokens].
      num_classes: Number of classes.
      vocabulary: Number of tokens, of texts.
      seed: Seed of the initial weights, which have Keras's distributions.
      train: Patterns of the names of the weights that train; empty for all.
      freeze: Patterns of the names of the weights that do not.
    """
    L = tf.keras.layers
    is_text = vocabulary is not None
    inputs = x = tf.keras.Input(tuple(shape), dtype="int32" if is_text else "float32")
    if name == "mlp":
        for number in (1, 2):
            x = L.Dense(_WIDTH, "relu", name=f"hidden{number}")(x)
    elif name == "lstm":
        x = L.Embedding(vocabulary, _WIDTH, mask_zero=True, name="tokens")(x)
        x = L.LSTM(2 * _WIDTH, name="lstm")(x)
    else:
        x = _transformer(L, x, shape[0], vocabulary)
    model = tf.keras.Model(
        inputs, L.Dense(num_classes, name="classifier")(x), name="network"
    )
    _initialize(model, seed)
    adjusted.freeze_keras(model, train, freeze)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras_models.from_keras(model, loss_fn=loss)


def _transformer(L: Any, tokens: Any, length: int, vocabulary: Optional[int]) -> Any:
    ops = getattr(tf.keras, "ops", tf)  # In Keras 2 TensorFlow's functions.
    places = ops.cumsum(ops.ones_like(tokens), axis=1) - 1
    x = L.Embedding(vocabulary, _WIDTH, name="tokens")(tokens)
    x = L.Add()([x, L.Embedding(length, _WIDTH, name="places")(places)])
    # Keras 2 and 3 carry masks through different layers, so this one goes by itself.
    is_there = ops.cast(ops.not_equal(tokens, 0), "float32")
    for n in (1, 2):
        y = L.LayerNormalization(name=f"norm{n}a")(x)
        attention = L.MultiHeadAttention(4, _WIDTH // 4, name=f"attention{n}")
        y = attention(y, y, attention_mask=ops.expand_dims(is_there, 1))
        x = L.Add()([x, y])
        y = L.LayerNormalization(name=f"norm{n}b")(x)
        y = L.Dense(2 * _WIDTH, "gelu", name=f"wide{n}")(y)
        x = L.Add()([x, L.Dense(_WIDTH, name=f"narrow{n}")(y)])
    rows = ops.expand_dims(is_there, 2)
    x = L.LayerNormalization(name="norm")(x) * rows
    share = ops.maximum(L.GlobalAveragePooling1D()(rows), 1.0 / length)
    return L.GlobalAveragePooling1D()(x) / share


def _initialize(model: Any, seed: int) -> None:
    """Draws the weights anew: Keras's own draws depend on what was made before."""
    for number, variable in enumerate(model.weights):
        if len(variable.shape) < 2:
            continue
        path = getattr(variable, "path", variable.name)
        kind = next((k for n, k in _INITIALIZERS.items() if n in path), "GlorotUniform")
        own = int(keys.driver_generator("weights", seed, number).integers(2**31))
        variable.assign(getattr(tf.keras.initializers, kind)(seed=own)(variable.shape))
