"""Functions on batches of examples: to a data type, and under AutoGraph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tff_reg.lazy import np, tf


@dataclasses.dataclass(frozen=True)
class Cast:
    """Converts examples to the data types of a Keras model's input, as Keras does."""

    dtypes: Any  # A name, or a structure of names as that of the examples.

    def __call__(self, examples: Any, key: Any = None) -> Any:
        del key
        return tf.nest.map_structure(tf.cast, examples, self.dtypes)


@dataclasses.dataclass(frozen=True)
class Standardized:
    """The batch function of rows that are stored standardised, in float64.

    Attributes:
      mean: The mean of each raw feature.
      deviation: The deviation of each raw feature.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, examples: Any, key: Any = None) -> Any:
        del key
        return tf.cast(examples, tf.float32)

    def of_raw(self, examples: Any) -> Any:
        """Standardises raw examples, float64 [n, features], to float32."""
        mean, deviation = (
            tf.constant(v, tf.float64) for v in (self.mean, self.deviation)
        )
        return tf.cast((examples - mean) / deviation, tf.float32)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function under AutoGraph, but one of ours as it is: none needs that.

    Conversion took a tenth of the time to a first round.
    """
    module = getattr(function, "__module__", None) or ""
    return function if module.startswith("tff_reg.") else tf.function(function)


def check_finite(x: Any, whose: str, what: str = "examples") -> None:
    """Raises a ValueError for examples or labels [n, ...] with NaN or infinity."""
    x = np.asarray(x)
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    broken = int(np.sum(~np.isfinite(x).reshape(len(x), -1).all(axis=1)))
    raise ValueError(
        f"The {what} of {whose} have values that are no finite {x.dtype} numbers, in"
        f" {broken} of {len(x)} examples; leave these out or repair them."
    )
