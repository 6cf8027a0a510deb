"""The needs of a combination's hooks, which a trial round of two examples finds.

The trial runs eagerly on a model of its own, so that errors of hooks come before
anything is traced and show the author's line.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.methods import checks, contract, memories, method as method_lib

_OF_WEIGHTS = ("task_loss", "weights", "start", "global_weights", "key")
_OF_OPTIMIZER = ("step_size", "taken", "scaled_gradient_sum")
_SIZE = 2


@dataclasses.dataclass(frozen=True)
class Needs:
    """The values that a client's round has to provide for the methods' hooks.

    Attributes:
      class_counts: Whether a hook reads how many examples of each class a client has.
      gradient_sum: Whether a hook reads the sum of a client's gradients.
      keys: Names of the methods that draw random numbers.
      activations: Names of the methods whose term reads activations.
      references: Names of the models beside the local one that terms read, sorted.
      measurements: Names of what each method measures, by the method's name.
    """

    class_counts: bool = False
    gradient_sum: bool = False
    keys: frozenset[str] = frozenset()
    activations: frozenset[str] = frozenset()
    references: tuple[str, ...] = ()
    measurements: Mapping[str, Sequence[str]] = dataclasses.field(
        default_factory=dict[str, Sequence[str]]
    )


class Reads:
    """The attributes that hooks have read so far.

    Attributes:
      model: The model of the trial.
      found: (method's name, attribute) pairs.
      references: Names of the models beside the local one.
      measured: What each method measured, by name, by the method's name.
    """

    def __init__(self, model: Any):
        """Begins with nothing read."""
        self.model = model
        self.found: set[tuple[str, str]] = set()
        self.references: set[str] = set()
        self.measured: Mapping[str, Mapping[str, Any]] = {}

    def watch_step(self, method: method_lib.Method, step: Any) -> Any:
        """Returns the step in a wrapper that notes and checks reads."""

        def note(name: str) -> None:
            if name not in _OF_WEIGHTS:
                checks.require_network(method, self.model)
                checks.require_classifier(method, self.model)
            self.found.add((method.name, name))

        def read_outputs(name: str) -> None:
            self.found.add((method.name, name))

        outputs = step.outputs
        if outputs is not None:
            outputs = _Watched(outputs, read_outputs)
        counts = class_counts(self.model)
        return _Watched(step, note, {"outputs": outputs, "class_counts": counts})

    def watch_local(self, method: method_lib.Method, local: Any) -> Any:
        """Returns the `Local` in a wrapper that notes and checks reads."""

        def note(name: str) -> None:
            if name == "class_counts":
                checks.require_network(method, self.model)
                checks.require_classifier(method, self.model)
            if name in _OF_OPTIMIZER and "learning_rate" not in local.hparams:
                local.hparams["learning_rate"]  # Says what is missing.
            self.found.add((method.name, name))

        return _Watched(local, note)


class _Watched:
    """Passes reads of attributes on, and tells a function their names."""

    def __init__(
        self,
        value: Any,
        note: Callable[[str], None],
        instead: Optional[Mapping[str, Any]] = None,
    ):
        self._value, self._note, self._instead = value, note, instead or {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        self._note(name)
        return self._instead.get(name, value)


_UNSEEN = (
    "it reads {} in one branch only, which the trial did not see: read it before the"
    " tf.cond or the `if`, in every call."
)


def guarded(value: Any, missing: Sequence[str]) -> Any:
    """Returns the value in a wrapper that refuses reads of missing attributes."""

    def refuse(name: str) -> None:
        if name in missing:
            raise contract.NeedError(_UNSEEN.format(name))

    return _Watched(value, refuse)


class HParams(collections.OrderedDict[str, Any]):
    """The client optimiser's hyperparameters, with an error for missing ones."""

    def __missing__(self, name: str) -> Any:
        raise contract.NeedError(
            f"it needs a client optimiser with a {name} among its hparams, but it has"
            f" only {list(self)}."
        )


class References(Mapping[str, Any]):
    """Reference models in the trial: the local model stands for all."""

    def __init__(self, model: Any, names: Sequence[str], reads: Reads):
        """Keeps all three.

        Args:
          model: The model.
          names: The names of the reference models.
          reads: Where reads are noted.
        """
        self._model, self._names, self._reads = model, names, reads

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise contract.NeedError(
                f"there is no model {name!r}{contract.near(name, self._names)}; a term"
                f" may read {', '.join(self._names)}."
            )
        self._reads.references.add(name)
        return self._model

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def reference_names(
    methods: Sequence[method_lib.Method], weights: Sequence[Any]
) -> list[str]:
    """Returns the names that `step.outputs_of` takes.

    Args:
      methods: The methods of the combination.
      weights: The trainable weights.

    Returns:
      The names, including those of client memories in the weights' shapes (their names
      among all methods').
    """
    names = [method_lib.GLOBAL, method_lib.EVALUATED]
    if any(method.averaged_rounds for method in methods):
        names.append(method_lib.AVERAGED)
    shapes = [tuple(w.shape) for w in weights]
    for method in methods:
        first = memories.initial(method, "client_memory", weights)
        for name, value in first.items():
            flat = tf.nest.flatten(value)
            if [tuple(v.shape) for v in flat] == shapes and name not in names:
                names.append(name)
    return names


def class_counts(model: Any) -> Optional[tf.Tensor]:
    """One example of each class, int32 [classes]; None where there are no classes."""
    if not checks.has_network(model) or model.network.num_classes is None:
        return None
    return tf.ones([model.network.num_classes], tf.int32)


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
