"""All uses of inner parts of TensorFlow 2.14 to 2.22, which have no public API."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import (
    cancellation as cancellation,
    context as eager_context,
    execute as execute,
)

__all__ = ["cancellation", "eager_context", "execute", "inference_function"]


def inference_function(function: Any) -> Any:
    """Returns TensorFlow's runtime function of a concrete function."""
    return function._inference_function
