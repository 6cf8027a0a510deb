"""Computations that drift corrections share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import method


def alpha_of(strength: float, local: method.Local) -> tf.Tensor:
    """Returns alpha_i = alpha / wt_i, a scalar; 0 for a client without examples."""
    size = local.relative_size
    # tf.cast would first round a Python number to float32.
    return tf.math.divide_no_nan(tf.constant(strength, size.dtype), size)


def grown(
    memory: Sequence[Any], total: Sequence[Any], server: method.Server
) -> method.Tensors:
    """Returns memory + total / N: the cohort's total over the number of all clients."""
    return [old + t / server.num_clients for old, t in zip(memory, total)]


def epoch_decay() -> Any:
    """Returns the setting of `epoch_factor`'s decay."""
    return settings.setting(
        1.0,
        help="factor of the learning rate per local epoch: in the authors' code that of"
        " a round.",
        above=0,
        maximum=1,
    )


def epoch_factor(decay: float, local: method.Local) -> Any:
    """Returns the decay of the learning rate over a round's epochs, a scalar."""
    if decay == 1:
        return 1.0
    dtype = local.start[0].dtype
    return tf.constant(decay, dtype) ** tf.cast(local.epoch, dtype)


def plus(gradient: Sequence[Any], added: Sequence[Any]) -> method.Tensors:
    """Adds two lists, tensor by tensor."""
    return [g + a for g, a in zip(gradient, added)]
