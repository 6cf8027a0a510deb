"""The values that a combination's hooks need, found by a trial round."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.methods import checks, contract, memories, method as method_lib

_SIZE = 2


@dataclasses.dataclass(frozen=True)
class Needs:
    """The values that a client's round has to provide for the methods' hooks.

    Attributes:
      class_counts: Whether a hook reads a client's number of examples per class.
      gradient_sum: Whether a hook reads the sum of a client's gradients.
      uncorrected_sum: Whether a hook reads their sum before any correction.
      keys: Names of the methods that draw random numbers.
      weight: Names of the methods that read a client's weight in the mean.
      exact: Names of the methods that need exact sums of uploads.
      activations: Names of the methods whose term reads activations or their inputs.
      references: Names of the reference models that terms read, sorted.
      measurements: For each method's name, the names of its measurements; None while a
        trial finds them.
    """

    class_counts: bool = False
    gradient_sum: bool = False
    uncorrected_sum: bool = False
    keys: frozenset[str] = frozenset()
    weight: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    activations: frozenset[str] = frozenset()
    references: tuple[str, ...] = ()
    measurements: Optional[Mapping[str, Sequence[str]]] = dataclasses.field(
        default_factory=dict[str, Sequence[str]]
    )

    def measurement_names(self, methods: Sequence[method_lib.Method]) -> list[str]:
        """Returns the names of the methods' measurements, `<method>/<name>`."""
        return [
            f"{method.name}/{name}"
            for method in methods
            for name in (self.measurements or {}).get(method.name, ())
        ]


class HParams(collections.OrderedDict[str, Any]):
    """The client optimiser's hyperparameters, with an error for missing ones."""

    def __missing__(self, name: str) -> Any:
        raise contract.NeedError(
            f"it needs a client optimiser with a {name} among its hparams, but it has"
            f" only {list(self)}."
        )


def scaled(hparams: Mapping[str, Any], factor: Any) -> HParams:
    """Returns the hyperparameters with the learning rate times a factor."""
    found = HParams(hparams)
    rate = found["learning_rate"]
    found["learning_rate"] = rate * tf.cast(factor, rate.dtype)
    return found


def reference_names(
    methods: Sequence[method_lib.Method], weights: Sequence[Any]
) -> list[str]:
    """Returns the names that `step.outputs_of` takes."""
    names = [method_lib.GLOBAL, method_lib.EVALUATED]
    shapes = [tuple(w.shape) for w in weights]
    at_server = memories.first(methods, "server_memory", weights)
    for first in (
        memories.leaving(methods, at_server, weights),
        memories.first(methods, "client_memory", weights),
    ):
        for name, value in first.items():
            flat = tf.nest.flatten(value)
            if [tuple(v.shape) for v in flat] == shapes and name not in names:
                names.append(name)
    return names


def class_counts(model: Any) -> Optional[tf.Tensor]:
    """Returns 3, 1, 0, 0, ..., int32 [classes]; None if there are no classes."""
    if not checks.has_network(model) or model.network.num_classes is None:
        return None
    return tf.maximum(3 - 2 * tf.range(model.network.num_classes), 0)


def random_batch(input_spec: Any, num_classes: Optional[int]) -> Any:
    """Returns two random examples that fit a model's `input_spec`."""

    def sized(spec: tf.TensorSpec) -> list[int]:
        return [
            (_SIZE if i == 0 else 1) if size is None else size
            for i, size in enumerate(spec.shape)
        ]

    def of_features(spec: tf.TensorSpec) -> Any:
        if not spec.dtype.is_floating:
            return tf.zeros(sized(spec), spec.dtype)
        drawn = tf.random.stateless_normal(sized(spec), [7, 11])
        return tf.cast(drawn, spec.dtype)

    def of_labels(spec: tf.TensorSpec) -> Any:
        shape = sized(spec)
        if num_classes and spec.dtype.is_integer and len(shape) == 1:
            return tf.cast(tf.range(shape[0]) % num_classes, spec.dtype)
        return tf.zeros(shape, spec.dtype)

    batch: dict[str, Any] = collections.OrderedDict(
        x=tf.nest.map_structure(of_features, input_spec["x"]),
        y=tf.nest.map_structure(of_labels, input_spec["y"]),
    )
    return batch
