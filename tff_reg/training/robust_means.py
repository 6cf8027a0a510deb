"""Aggregation that a share of malicious clients moves little, as TFF factories.

*   `median`, coordinate by coordinate, and `trimmed_mean` (Yin et al.,
    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
    2018, https://arxiv.org/abs/1803.01498, definitions 1 and 2).
*   `krum`: the update that is nearest to its nearest others; of several, Multi-Krum
    (Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, section 4, https://arxiv.org/abs/1703.02757).

With the share b, at most f = ceil(b n) of the n clients that trained are taken as
malicious. All these take clients alike, whatever their weights, and a client that did
not train (weight 0) does not count. The server holds all updates of a round.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff


class RobustMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """A robust statistic of the values of weight above 0."""

    takes_alike = True
    adds_noise, keeps_sums = False, False

    def __init__(self, kind: str, share: float = 0.2, selected: int = 1):
        """Makes the factory.

        Args:
          kind: One of `KINDS`.
          share: The share b of the clients that may be malicious; not for `median`.
          selected: Of `krum`, the number of updates that are averaged.
        """
        # By which processes are compared, as TFF's factories do not show theirs.
        self.arguments = (kind, share, selected)
        self._combine = functools.partial(KINDS[kind], share=share, selected=selected)

    def create(self, value_type: Any, weight_type: Any):
        """Makes the aggregation.

        Raises:
          TypeError: If a value is not of floats.
        """
        if not tff.types.is_structure_of_floats(value_type):
            raise TypeError(f"robust aggregation is of floats, but got {value_type}.")
        comp, map_all = tff.tensorflow.computation, tf.nest.map_structure

        @comp(value_type, weight_type)
        def as_rows(value: Any, weight: Any):
            counts = tf.reshape(weight > 0, [1])

            def row(x: tf.Tensor) -> tf.Tensor:
                return tf.boolean_mask(x[tf.newaxis], counts)

            return map_all(row, value)

        rows_type = as_rows.type_signature.result

        @comp
        def no_rows():
            def none(kind: Any) -> tf.Tensor:
                return tf.zeros([0, *kind.shape[1:]], kind.dtype)

            return tff.types.structure_from_tensor_type_tree(none, rows_type)

        @comp(rows_type, rows_type)
        def joined(first: Any, second: Any):
            def one(*both: tf.Tensor) -> tf.Tensor:
                return tf.concat(both, axis=0)

            return map_all(one, first, second)

        @comp(rows_type)
        def combined(rows: Any):
            flat = tf.nest.flatten(rows)
            # Of nobody, zeros.
            absent = tf.cast(tf.equal(tf.shape(flat[0])[0], 0), tf.int32)
            padded = [
                tf.concat([x, tf.zeros([absent, *x.shape[1:]], x.dtype)], axis=0)
                for x in flat
            ]
            return tf.nest.pack_sequence_as(rows, self._combine(padded))

        @tff.federated_computation
        def no_state():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            no_state.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state: Any, values: Any, weights: Any):
            rows = tff.federated_map(as_rows, (values, weights))
            result = tff.federated_aggregate(rows, no_rows(), joined, joined, combined)
            return tff.templates.MeasuredProcessOutput(
                state, result, tff.federated_value((), tff.SERVER)
            )

        return tff.templates.AggregationProcess(no_state, next_fn)


def _malicious(share: float, count: tf.Tensor) -> tf.Tensor:
    exact = tf.constant(share, tf.float64) * tf.cast(count, tf.float64)
    return tf.cast(tf.math.ceil(exact - 1e-6), tf.int32)


def _median(rows: list[tf.Tensor], **_: Any) -> list[tf.Tensor]:
    count = tf.shape(rows[0])[0]
    middle = (count - 1) // 2, count // 2
    ordered = (tf.sort(x, axis=0) for x in rows)
    return [(x[middle[0]] + x[middle[1]]) / 2 for x in ordered]


def _trimmed_mean(
    rows: list[tf.Tensor], *, share: float, selected: int
) -> list[tf.Tensor]:
    del selected
    count = tf.shape(rows[0])[0]
    cut = tf.minimum(_malicious(share, count), (count - 1) // 2)
    ordered = (tf.sort(x, axis=0) for x in rows)
    return [tf.reduce_mean(x[cut : count - cut], axis=0) for x in ordered]


def _krum(rows: list[tf.Tensor], *, share: float, selected: int) -> list[tf.Tensor]:
    count = tf.shape(rows[0])[0]
    flat = tf.concat([tf.reshape(x, [count, -1]) for x in rows], axis=1)

    # Row by row, as a product of all pairs cancels where updates are nearly equal.
    def distances(row: tf.Tensor) -> tf.Tensor:
        return tf.sort(tf.reduce_sum((flat - row) ** 2, axis=1))

    nearest = tf.maximum(count - _malicious(share, count) - 2, 1)
    # The first distance is a row's to itself.
    scores = tf.reduce_sum(tf.map_fn(distances, flat)[:, 1 : nearest + 1], axis=1)
    chosen = tf.argsort(scores, stable=True)[:selected]
    return [tf.reduce_mean(tf.gather(x, chosen), axis=0) for x in rows]


KINDS = {"median": _median, "trimmed_mean": _trimmed_mean, "krum": _krum}
