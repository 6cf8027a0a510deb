"""Conversion of examples to the data type of a model's input."""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Cast:
    """Converts examples to the data type of a Keras model's input, as Keras does."""

    dtype: str

    def __call__(self, examples: Any, key: Any = None) -> Any:
        del key
        return tf.cast(examples, self.dtype)
