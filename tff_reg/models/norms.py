"""Normalisation layers with PyTorch's rules, as in the papers' code.

Epsilon is 1e-5, and BatchNorm's running variance is updated with the unbiased variance
of the batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tff_reg.models import forward as forward_lib, group_norm, layers

NORM_EPSILON = 1e-5
BATCH_NORM_MOMENTUM = 0.9

ForwardPass = forward_lib.ForwardPass


class BatchNorm(layers.ForwardLayer):
    """Batch normalisation over all axes but the last, with PyTorch's rules.

    In training, the batch is normalised with its own mean and biased variance; the
    running statistics move a tenth of the way towards the batch's mean and *unbiased*
    variance. A pass below full width uses the batch's statistics, even in evaluation,
    and does not update the running statistics.
    """

    def make(self, channels: int):
        shape = (channels,)
        self.gamma = self.add_weight("gamma", shape, initializer=tf.ones)
        self.beta = self.add_weight("beta", shape, initializer=tf.zeros)
        self.moving_mean = self.add_weight(
            "moving_mean", shape, initializer=tf.zeros, trainable=False
        )
        self.moving_variance = self.add_weight(
            "moving_variance", shape, initializer=tf.ones, trainable=False
        )

    def call(self, x, forward: ForwardPass):
        gamma, beta = (layers.first_channels(v, x) for v in (self.gamma, self.beta))
        is_frozen = not isinstance(self.moving_mean, tf.Variable)
        if (is_frozen or not forward.training) and forward.is_full_width:
            scale = gamma * tf.math.rsqrt(self.moving_variance + NORM_EPSILON)
            return x * scale + (beta - self.moving_mean * scale)
        is_static = x.shape[-1] is not None
        if x.dtype == tf.float32 and x.shape.rank == 4 and is_static:
            # The fused kernel returns the unbiased variance. oneDNN's keeps the number
            # of channels in the kernel object: two clients that run it at the same
            # time with different numbers overwrite each other's memory.
            y, mean, unbiased_variance, *_ = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=gamma,
                offset=beta,
                mean=tf.zeros([0]),
                variance=tf.zeros([0]),
                epsilon=NORM_EPSILON,
                is_training=True,
            )
        else:
            axes = list(range(x.shape.rank - 1))
            mean = tf.reduce_mean(x, axes)
            variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axes)
            y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, NORM_EPSILON)
            count = tf.cast(tf.size(x) // forward_lib.number_of_channels(x), x.dtype)
            unbiased_variance = variance * count / tf.maximum(count - 1, 1)
        if forward.updates_statistics and not is_frozen:
            rate = 1.0 - BATCH_NORM_MOMENTUM
            self.moving_mean.assign_sub((self.moving_mean - mean) * rate)
            self.moving_variance.assign_sub(
                (self.moving_variance - unbiased_variance) * rate
            )
        return y


class GroupNorm(layers.ForwardLayer):
    """Group normalisation (Wu and He, 2018) over [batch, height, width, channels].

    Each example's channels are cut into `groups` runs of consecutive channels;
    each run is normalised by its own mean and variance over space and channels.
    """

    def make(self, channels: int, *, groups: int = 2):
        self.groups = groups
        self.gamma = self.add_weight("gamma", (channels,), initializer=tf.ones)
        self.beta = self.add_weight("beta", (channels,), initializer=tf.zeros)

    def call(self, x, forward: ForwardPass):
        gamma, beta = (layers.first_channels(v, x) for v in (self.gamma, self.beta))
        return group_norm.normalize(x, gamma, beta, self.groups, NORM_EPSILON)


def build_norm(kind: str, channels: int, *, groups: int = 2, **options: Any):
    """Builds a layer of the kind 'group' or 'batch'."""
    if kind == "group":
        return GroupNorm(channels, groups=groups, **options)
    return BatchNorm(channels, **options)
