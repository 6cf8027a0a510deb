"""Functions on batches of examples: to a data type, and under AutoGraph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Cast:
    """Converts examples to the data type of a Keras model's input, as Keras does."""

    dtype: str

    def __call__(self, examples: Any, key: Any = None) -> Any:
        del key
        return tf.cast(examples, self.dtype)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function under AutoGraph, but one of ours as it is: none needs that.

    Conversion took a tenth of the time to a first round.
    """
    module = getattr(function, "__module__", None) or ""
    return function if module.startswith("tff_reg.") else tf.function(function)
