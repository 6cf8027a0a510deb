"""Models that begin with given weights, some of which are frozen: constants.

A frozen weight is no variable: it is part of the computation that clients receive, is
sent with it once, and is in no byte count.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.data import digests
from tff_reg.models import (
    keras_calls,
    names as model_names,
    torch_states,
    weight_files,
)
from tff_reg.settings import SettingError


def frozen(
    names: Sequence[str], train: Sequence[str] = (), freeze: Sequence[str] = ()
) -> set[str]:
    """Returns the names that no pattern of `train` matches, or one of `freeze` does.

    A pattern is that of a weight's name, with "*" for any text, or of the beginning of
    it up to a "/". Without `train` all names are matched.

    Raises:
      SettingError: If a pattern matches nothing, or everything is frozen.
    """

    def matched(setting: str, patterns: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for each in patterns:
            own = {*fnmatch.filter(names, each), *fnmatch.filter(names, f"{each}/*")}
            if not own:
                some = ", ".join(names[:: max(1, len(names) // 4)][:5])
                why = f"no weight's name matches {each}; there are {some}, ..."
                raise SettingError(setting, ",".join(patterns), why)
            found |= own
        return found

    trained = matched("train", train) if train else {*names}
    return {*names} - trained | matched("freeze", freeze)


def check_trains(given: Mapping[str, Any], weights: Sequence[Any]) -> None:
    """Raises a SettingError if no weight is left that is trained."""
    if not weights:
        name = "train" if given["train"] else "freeze"
        why = "nothing is trained; leave weights out that are variables."
        raise SettingError(name, ",".join(given[name]), why)


def freeze_keras(model: Any, train: Sequence[str], freeze: Sequence[str]) -> None:
    """Sets `trainable` of a Keras model's layers and weights by patterns of names."""
    if not (train or freeze):
        return
    names = keras_calls.names_of(model.weights)
    name_of = {id(variable): name for variable, name in zip(model.weights, names)}
    constants = frozen(names, train, freeze)
    for layer in model.layers:
        if constants.issuperset(name_of[id(v)] for v in layer.weights):
            layer.trainable = False  # A norm then uses its statistics.
        for variable in layer.trainable_weights:
            if name_of[id(variable)] in constants:
                _freeze(variable, name_of[id(variable)], [*(train or freeze)])
    check_trains({"train": train, "freeze": freeze}, model.trainable_weights)


def _freeze(variable: Any, name: str, patterns: Sequence[str]) -> None:
    try:
        variable.trainable = False
    except AttributeError:
        why = f"Keras 2 freezes whole layers, and not {name} alone."
        raise SettingError("freeze", ",".join(patterns), why) from None


class AdjustedModelFn:
    """The `model_fn` of our networks with given weights and frozen ones.

    Args:
      model_fn: Makes the models; its variables are made in the same order each time.
      train: Patterns of the names of the weights that train; empty for all.
      freeze: Patterns of the names of the weights that do not.
      initial_weights: Path of a file with initial weights; None keeps the model's own.
      mixed_precision: Data type of the layers' products; None for that of the weights.

    Attributes:
      said: What fitted in the file, in lines.
      digests: The digest of the initial weights that are from the file.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        *,
        train: Sequence[str] = (),
        freeze: Sequence[str] = (),
        initial_weights: Optional[str] = None,
        mixed_precision: Optional[str] = None,
    ):
        self._model_fn = model_fn
        is_of_runtime = mixed_precision == model_names.TF32
        self._compute_dtype = None if is_of_runtime else mixed_precision
        self.said: list[str] = []
        self.digests: dict[str, str] = {}
        # Values by the order in which the variables are made; names of frozen ones.
        self._values: dict[int, Any] = {}
        self._frozen: dict[int, str] = {}
        with tf.init_scope():
            model, made = self._make()
        named = torch_states.named(model)
        values: dict[str, Any] = {}
        if initial_weights is not None:
            of_model = torch_states.described(model)
            values, self.said = weight_files.from_file(initial_weights, *of_model)
            self.digests = {
                digests.INITIAL_WEIGHTS: digests.of_value(
                    {name: digests.of_examples(each) for name, each in values.items()}
                )
            }
        constants = frozen([*named], train, freeze) if train or freeze else set()
        trained = [n for n, v in named.items() if v.trainable and n not in constants]
        check_trains({"train": train, "freeze": freeze}, trained)
        # A norm that trains has its statistics, as in Keras.
        layers = {name.rpartition("/")[0] for name in trained}
        constants -= {
            name
            for name, v in named.items()
            if not v.trainable and name.rpartition("/")[0] in layers
        }
        number_of = {id(variable): number for number, variable in enumerate(made)}
        for name, variable in named.items():
            if name in values or name in constants:
                value = values.get(name, variable.numpy())
                number = number_of[id(variable)]
                self._values[number] = value.astype(variable.dtype.as_numpy_dtype)
                if name in constants:
                    self._frozen[number] = name

    def __call__(self) -> Any:
        """Makes a model."""
        return self._make()[0]

    def _make(self) -> tuple[Any, list[Any]]:
        """Makes a model; returns it with its variables and constants, in order."""
        made: list[Any] = []

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            number = len(made)
            if number in self._values:
                value = functools.partial(tf.constant, self._values[number])
                kwargs["initial_value"] = value
            is_frozen = number in self._frozen
            made.append(value() if is_frozen else next_creator(**kwargs))
            return made[-1]

        with tf.variable_creator_scope(create):
            model = self._model_fn()
        model.network.frozen = {name: made[n] for n, name in self._frozen.items()}
        if self._compute_dtype is not None:
            model.network.compute_in(self._compute_dtype)
        return model, made
