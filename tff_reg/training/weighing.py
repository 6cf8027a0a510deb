"""Clients' weights in the mean that depend on the cohort: the hook `weigh`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract, method as method_lib
from tff_reg.seam import tensorflow_internals
from tff_reg.training import hooks as hooks_lib

# (shares, has_trained), at the clients -> their weights, and metrics at the server.
Weigh = Callable[[Any, Any], tuple[Any, Any]]


@tensorflow_internals.elementwise_equality(also_in_plain_graphs=True)
def weight(
    method: method_lib.Method,
    own: Mapping[str, Any],
    total: Mapping[str, Any],
    hooks: hooks_lib.Hooks = hooks_lib.PLAIN,
) -> Any:
    """Calls the hook."""
    given = hooks.call(method, "weigh", dict(own), dict(total))
    dtype = next(iter(own.values())).dtype
    return contract.check(method, "weigh", "the weight", given, dtype)


def build(
    methods: Sequence[method_lib.Method],
    share_type: tff.types.Type,
    dtype: Any,
) -> Optional[Weigh]:
    """Builds the weighing of a cohort; None if no method has the hook.

    Args:
      methods: The methods.
      share_type: The type of a client's share.
      dtype: The weights' data type.
    """
    own = [m for m in methods if method_lib.overrides(m, "weigh")]
    if not own:
        return None

    @tff.tensorflow.computation(share_type, share_type, tf.int32)
    def first(share: Any, total: Any, has_trained: Any):
        given = weight(own[0], share, total)
        given = tf.cast(given, dtype)
        return tf.where(has_trained > 0, given, tf.zeros_like(given))

    weight_type = first.type_signature.result

    @tff.tensorflow.computation(weight_type, weight_type, tf.int32)
    def or_alike(given: Any, total: Any, has_trained: Any):
        return tf.where(total > 0, given, tf.cast(has_trained, given.dtype))

    @tff.tensorflow.computation(weight_type, tf.int32)
    def metrics(total: Any, count: Any) -> dict[str, Any]:
        is_alike = tf.logical_and(tf.logical_not(total > 0), count > 0)
        return collections.OrderedDict(all_zero=tf.cast(is_alike, tf.int32))

    def weigh(shares: Any, has_trained: Any) -> tuple[Any, Any]:
        sums = tff.federated_broadcast(tff.federated_sum(shares))
        given = tff.federated_map(first, (shares, sums, has_trained))
        total = tff.federated_sum(given)
        weights = tff.federated_map(
            or_alike, (given, tff.federated_broadcast(total), has_trained)
        )
        count = tff.federated_sum(has_trained)
        return weights, tff.federated_map(metrics, (total, count))

    return weigh
