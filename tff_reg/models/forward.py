"""The settings and the outputs of a forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Optional, Union

from tff_reg.lazy import tf

# Narrowed layers keep a multiple of this number of channels.
_DIVISOR = 8


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """Settings of one forward pass through a `BlockModel`.

    >>> import numpy as np
    >>> from tff_reg import models
    >>> shape = (8, 8, 1)
    >>> model_fn = models.build_model_fn("resnet8", image_shape=shape, num_classes=3)
    >>> half = models.ForwardPass(training=True, width=0.5)
    >>> model_fn().network(np.zeros([2, 8, 8, 1]), half).embedding.shape
    TensorShape([2, 32])

    Attributes:
      training: Whether layers run in training mode (BatchNorm uses the batch's
        statistics).
      width: Fraction of every layer's output channels that is used, in (0, 1].
        The first channels are taken; counts are rounded to multiples of 8 (see
        `channels_at_width`). With a Python float all shapes are static. With a
        float64 scalar tensor the numbers of channels are known only when the graph
        runs, and the pass never counts as full width, even if the tensor is 1.
      update_statistics: Whether BatchNorm updates its running statistics in this
        pass, as in a step's first pass. Only passes in training mode at full width do.
      branch_scales: `None`, or a float tensor [num_branches], the factor of each
        residual branch before its shortcut is added (stochastic depth: 0 or 1 in
        training, the keeping probability in evaluation).
      record_activations: Whether the outputs of the non-linearities are kept.
      on_activation: Called with each recorded (output, input) pair of a non-linearity;
        the network that runs the pass sets it.
      key: int64 [2], the key of the layers' random draws; None draws differently in
        each pass.
      on_loss: Called with each scalar loss that the network itself adds (Keras's
        regularisers and `add_loss`).
    """

    training: bool = False
    width: Union[float, tf.Tensor] = 1.0
    update_statistics: bool = False
    branch_scales: Optional[tf.Tensor] = None
    record_activations: bool = False
    on_activation: Optional[Callable[[tuple[tf.Tensor, tf.Tensor]], None]] = None
    key: Optional[tf.Tensor] = None
    on_loss: Optional[Callable[[tf.Tensor], None]] = None

    def activate(self, x, function: Optional[Callable] = None):
        """Applies a non-linearity, by default ReLU; a recording pass keeps it."""
        activation = (function or tf.nn.relu)(x)
        if self.on_activation is not None:
            self.on_activation((activation, x))
        return activation

    @property
    def has_static_width(self) -> bool:
        """Whether the width is a Python number, so that channels can be counted."""
        return not tf.is_tensor(self.width)

    @property
    def is_full_width(self) -> bool:
        """Whether the pass is known to use all channels."""
        return self.has_static_width and self.width == 1.0

    @property
    def updates_statistics(self) -> bool:
        """Whether the pass updates BatchNorm's running statistics."""
        return self.training and self.update_statistics and self.is_full_width


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of a forward pass through a `BlockModel`.

    Attributes:
      block_outputs: The output [batch, ...] of each block that was run, in order;
        the last one is `logits`.
      embedding: float [batch, features], the input of the last linear layer.
      logits: float [batch, num_classes].
      activations: The outputs of the non-linearities (before any pooling that
        follows them), if the pass recorded them; the logits are never among
        them.
      preactivations: For each block but the last the input of the non-linearity that
        it ends in (pooling may follow), or its output if it ends in none; empty if the
        pass did not record activations.
      gives_probabilities: As in `BlockModel`.
    """

    block_outputs: Sequence[tf.Tensor]
    embedding: tf.Tensor
    logits: tf.Tensor
    activations: Sequence[tf.Tensor]
    preactivations: Sequence[tf.Tensor] = ()
    gives_probabilities: bool = False

    @property
    def predictions(self) -> tf.Tensor:
        """What the model returns: logits, or probabilities."""
        return tf.nn.softmax(self.logits) if self.gives_probabilities else self.logits


def number_of_channels(x) -> Union[int, tf.Tensor]:
    """Returns the size of the last axis: an int, or an int32 scalar if not static."""
    return tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]


def channels_at_width(
    channels: int, width: Union[float, tf.Tensor]
) -> Union[int, tf.Tensor]:
    """Returns the number of channels that a layer keeps at a fraction of its width.

    Rounds `channels * width` to the nearest multiple of 8, never below 8 and never more
    than 10 % below the exact value (the rule of the slimmable networks that GradAug and
    FedAlign build upon).
    """
    if tf.is_tensor(width):
        return _channels_at_tensor_width(channels, width)
    if width == 1.0:
        return channels
    exact = channels * width
    rounded = max(_DIVISOR, int(exact + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    if rounded < 0.9 * exact:
        rounded += _DIVISOR
    return min(rounded, channels)


def _channels_at_tensor_width(channels: int, width: tf.Tensor):
    exact = channels * width
    rounded = tf.cast(exact + _DIVISOR / 2, tf.int32) // _DIVISOR * _DIVISOR
    rounded = tf.maximum(rounded, _DIVISOR)
    is_too_low = tf.cast(rounded, tf.float64) < 0.9 * exact
    rounded = tf.minimum(tf.where(is_too_low, rounded + _DIVISOR, rounded), channels)
    return tf.where(tf.equal(width, 1.0), channels, rounded)
