"""Finds what the hooks of a sum read, by a trial round of two random examples.

The trial runs eagerly, on a model that is thrown away, so that errors of hooks come
before anything is traced and show the author's own line.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.methods import contract, memories, method as method_lib

_OF_WEIGHTS = ("task_loss", "weights", "start", "global_weights", "key")
_OF_OPTIMIZER = ("step_size", "taken", "scaled_gradient_sum")
_SIZE = 2


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a client's round has to have ready for the hooks of a sum.

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
    """What the hooks have read so far.

    Attributes:
      model: The model of the trial.
      found: (method's name, attribute) pairs.
      references: Names of the models beside the local one.
      measured: What each method measured, by name, by the method's name.
    """

    def __init__(self, model: Any):
        """Nothing has been read; the model is given."""
        self.model = model
        self.found: set[tuple[str, str]] = set()
        self.references: set[str] = set()
        self.measured: Mapping[str, Mapping[str, Any]] = {}

    def watch_step(self, method: method_lib.Method, step: Any) -> Any:
        """The step, whose reads are noted and checked."""

        def note(name: str) -> None:
            if name not in _OF_WEIGHTS:
                method_lib.require_network(method, self.model)
                method_lib.require_classifier(method, self.model)
            self.found.add((method.name, name))

        def read_outputs(name: str) -> None:
            self.found.add((method.name, name))

        outputs = step.outputs
        if outputs is not None:
            outputs = _Watched(outputs, read_outputs)
        counts = class_counts(self.model)
        return _Watched(step, note, {"outputs": outputs, "class_counts": counts})

    def watch_local(self, method: method_lib.Method, local: Any) -> Any:
        """The client as a method sees it, whose reads are noted and checked."""

        def note(name: str) -> None:
            if name == "class_counts":
                method_lib.require_network(method, self.model)
                method_lib.require_classifier(method, self.model)
            if name in _OF_OPTIMIZER and "learning_rate" not in local.hparams:
                local.hparams["learning_rate"]  # Says what is missing.
            self.found.add((method.name, name))

        return _Watched(local, note)


class _Watched:
    """Passes reads of attributes on, after a function was told their names."""

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


UNSEEN = (
    "it reads {} in one branch only, which the trial did not see: read it before the"
    " tf.cond or the `if`, in every call."
)
MIXED = (
    "it reads {}, of which every example has two here, as they are mixed: say needs ="
    " (methods.ONE_LABEL,), or take step.compute_loss, which counts both."
)


def guarded(value: Any, missing: Sequence[str], why: str = UNSEEN) -> Any:
    """A step or a client, some of whose attributes are not there and are refused."""

    def refuse(name: str) -> None:
        if name in missing:
            raise contract.NeedError(why.format(name))

    return _Watched(value, refuse)


class HParams(collections.OrderedDict[str, Any]):
    """The client optimiser's hyperparameters; a missing one is said plainly."""

    def __missing__(self, name: str) -> Any:
        raise contract.NeedError(
            f"it needs a client optimiser with a {name} among its hparams, but it has"
            f" only {list(self)}."
        )


class References(Mapping[str, Any]):
    """In the trial, the local model stands for all reference models."""

    def __init__(self, model: Any, names: Sequence[str], reads: Reads):
        """Keeps all three.

        Args:
          model: The model.
          names: Those that there are.
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
    """The models that `step.outputs_of` knows in a sum.

    Args:
      methods: Those of the sum.
      weights: The trainable weights.

    Returns:
      Their names; client memories in the weights' shapes are among them by their names
      among those of all methods.
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
    if not method_lib.has_network(model) or model.network.num_classes is None:
        return None
    return tf.ones([model.network.num_classes], tf.int32)


def random_batch(input_spec: Any, num_classes: Optional[int]) -> Any:
    """Random features and labels as a model's `input_spec` says, two of them."""

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

    return collections.OrderedDict(
        x=tf.nest.map_structure(of_features, input_spec["x"]),
        y=tf.nest.map_structure(of_labels, input_spec["y"]),
    )
