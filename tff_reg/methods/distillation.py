"""Divergences between two models' predictions, shared by the distilling methods."""

from __future__ import annotations

from tff_reg.lazy import tf


def divergence(
    target_logits: tf.Tensor, logits: tf.Tensor, temperature: float = 1.0
) -> tf.Tensor:
    """Computes KL(softmax(target / T) || softmax(logits / T)), mean over the batch.

    Args:
      target_logits: float [batch, classes]; gradients also flow into it unless stopped.
      logits: float [batch, classes].
      temperature: T; the result is not multiplied by T^2.

    Returns:
      A scalar; 0 for an empty batch.
    """
    each = divergences(target_logits, logits, temperature)
    count = tf.cast(tf.size(each), each.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(each), count)


def divergences(
    target_logits: tf.Tensor, logits: tf.Tensor, temperature: float = 1.0
) -> tf.Tensor:
    """Computes the divergences [batch] whose mean is `divergence`."""
    target = tf.nn.log_softmax(target_logits / temperature)
    difference = target - tf.nn.log_softmax(logits / temperature)
    return tf.reduce_sum(tf.exp(target) * difference, axis=-1)


def without_true_class(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Removes each example's true class.

    Args:
      logits: float [batch, classes].
      labels: int [batch].

    Returns:
      float [batch, classes - 1], the other classes in their order.
    """
    classes = logits.shape[-1]
    others = tf.range(classes - 1, dtype=labels.dtype)[tf.newaxis]
    others += tf.cast(others >= labels[:, tf.newaxis], labels.dtype)
    return tf.gather(logits, others, axis=1, batch_dims=1)
