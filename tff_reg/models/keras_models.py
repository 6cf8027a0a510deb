"""Conversion of a Keras 3 or Keras 2 model to a `model_fn` that all methods train."""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
import functools
import itertools
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tff_reg import scores
from tff_reg.data import digests, dtypes
from tff_reg.models import (
    block_model,
    keras_calls,
    keras_copies,
    keras_losses,
    keras_network,
    keras_parts,
    keras_trial,
    learning_model as learning_model_lib,
    weight_files,
)
from tff_reg.seam import keras_internals, tensorflow_internals


class KerasModelFn:
    """The `model_fn` of a Keras model, as `from_keras` returns it.

    Args:
      plan: The structure of the model; kept as the attribute `plan`.
      loss: The loss of the model.
      label_spec: `tf.TensorSpec`s of the labels, the batch axis first.

    Attributes:
      assumed: How the outputs are taken, in words, if nobody said the loss; else None.
    """

    def __init__(
        self, plan: keras_network.Plan, loss: keras_losses.ModelLoss, label_spec: Any
    ):
        self.plan = plan
        self.assumed: Optional[str] = None
        self.said: list[str] = []
        if loss.is_assumed:
            kind = "probabilities" if loss.takes_probabilities else "logits"
            self.assumed = f"its outputs are taken as {kind}"
        self._loss_fn = loss.loss_fn
        self._probabilities = keras_losses.probabilities_of(loss)
        self._label_spec = label_spec

    def beginning_with(self, path: str) -> KerasModelFn:
        """Returns a `model_fn` with the initial weights that fit in a file, if given.

        Args:
          path: As the setting `initial_weights`.

        Returns:
          The new `KerasModelFn`; what fitted is its attribute `said`.

        Raises:
          SettingError: If the file cannot be read, or nothing in it fits.
        """
        old, plan = self.plan.values, self.plan
        found, said = weight_files.from_file(
            path,
            *keras_copies.described(
                plan.model, dict(zip(map(id, plan.variables), plan.names))
            ),
            load=functools.partial(keras_copies.loaded, plan, path),
        )
        values = [found.get(n, v).astype(v.dtype) for n, v in zip(plan.names, old)]
        made = copy.copy(self)
        vars(made).pop("digests", None)
        made.plan, made.said = dataclasses.replace(plan, values=values), said
        return made

    @property
    def is_classifier(self) -> bool:
        """Whether the loss takes class numbers, and there is an output for each."""
        return self.plan.num_classes is not None

    @property
    def cast(self) -> dtypes.Cast:
        """Converts batches of examples to the data types that the model takes."""
        names = tf.nest.map_structure(lambda s: s.dtype.name, self.plan.input_spec)
        return dtypes.Cast(names)

    @property
    def score(self) -> str:
        """What the model is judged by if nobody says it."""
        return scores.DEFAULT if self.is_classifier else scores.OF_OTHERS

    @property
    def probabilities(self) -> Optional[Callable[[Any], Any]]:
        """The function from outputs to probabilities; None if they are such."""
        return self._probabilities

    def adapted(self, x: Any, y: Any, whose: str) -> tuple[Any, Any]:
        """Returns examples and labels in the structure that the model and loss take.

        Args:
          x: An array, or a dict, list or tuple of arrays: of a functional model a dict
            may have its inputs' names.
          y: Likewise; [n] stands for [n, 1], and [n, 1] for [n].
          whose: Their name in errors.

        Returns:
          The examples in dicts and tuples, their data types as they are; and the labels
          in the data types of the loss.

        Raises:
          ValueError: If they do not fit the model.
        """
        name = f"The model {self.plan.model.name!r}"
        names = getattr(self.plan.model, "input_names", None)
        x = _structured(x, self.plan.input_spec, f"{name} takes", whose, names)
        y = _structured(y, self._label_spec, f"{name} takes labels", whose)
        for spec, given in zip(
            tf.nest.flatten(self.plan.input_spec), tf.nest.flatten(x)
        ):
            _check_shape(spec, given, f"{name} takes examples", f"{whose} has examples")
        flat = zip(tf.nest.flatten(self._label_spec), tf.nest.flatten(y))
        labels = [_label(spec, given, name, whose) for spec, given in flat]
        if self.is_classifier and labels[0].max() >= (self.plan.num_classes or 0):
            raise ValueError(
                f"{name} has {self.plan.num_classes} outputs, and {whose} has labels up"
                f" to {labels[0].max()}; number the classes from 0, and give the model"
                " one output for each."
            )
        return x, tf.nest.pack_sequence_as(self._label_spec, labels)

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digests of the Keras model, its weights, its loss and its blocks."""
        blocks = [p.model and digests.of_config(p.model) for p in self.plan.parts]
        return {
            "keras_loss": digests.of_value(self._loss_fn),
            "keras_blocks": digests.of_value(blocks),
            digests.KERAS_MODEL: keras_copies.digest(self.plan.model),
            digests.KERAS_WEIGHTS: digests.of_examples(*self.plan.values),
        }

    def __call__(self, *, in_place: bool = False) -> learning_model_lib.LearningModel:
        """Makes a model; with `in_place` it shares the Keras model's variables."""
        return learning_model_lib.LearningModel(
            keras_network.KerasNetwork(self.plan, in_place),
            loss_fn=self._loss_fn,
            label_spec=self._label_spec,
        )

    def keras_model(self, weights: Any) -> Any:
        """Returns the Keras model with trained weights.

        Args:
          weights: A `tff.learning.models.ModelWeights`, such as
            `process.get_model_weights(state)`; or the path of a file that a run wrote:
            `final_weights.npz`, `best_weights.npz` or a checkpoint's
            `server_state.npz`.

        Returns:
          The model that `from_keras` was given, with these weights.

        Raises:
          ValueError: If these are weights of another model.
        """
        if isinstance(weights, (str, os.PathLike)):
            trainable, others = self._stored(weights)
        else:
            trainable, others = list(weights.trainable), list(weights.non_trainable)
        network = keras_network.KerasNetwork(self.plan)
        if len(trainable) < self.plan.num_trainable and self.plan.head is not None:
            network.freeze_classifier()  # As the method Freeze does.
        own = [*network.trainable_variables, *network.non_trainable_variables]
        values = [np.asarray(v) for v in (*trainable, *others)]
        if [v.shape for v in values] != [tuple(v.shape) for v in own]:
            raise ValueError(
                f"These {len(values)} weights are not of the model"
                f" {self.plan.model.name!r}, which has {len(own)}: their numbers or"
                " shapes differ. A method that replaces the last layer (fedetf) leaves"
                " no weights for it."
            )
        for variable, value in zip(own, values):
            variable.assign(value)
        return network.keras_model()

    def _stored(self, path: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the trainable and the non-trainable weights in a run's file."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        count, constants = self.plan.num_trainable, self.plan.constants
        held = [x for n, x in enumerate(self.plan.names) if n not in constants]
        if set(held) <= arrays.keys():
            values = [arrays[name] for name in held]
            return values[:count], values[count:]
        # Numbered names; in a checkpoint, which stores more, they have a prefix.
        first = "global_model_weights/"
        prefix = first if any(name.startswith(first) for name in arrays) else ""
        found: list[list[np.ndarray]] = []
        for kind in ("trainable", "non_trainable"):
            numbered = (f"{prefix}{kind}/{n}" for n in itertools.count())
            names = itertools.takewhile(arrays.__contains__, numbered)
            found.append([arrays[name] for name in names])
        return found[0], found[1]


@tensorflow_internals.elementwise_equality()
def from_keras(
    model: Any,
    *,
    blocks: Optional[Sequence[str]] = None,
    loss_fn: Optional[Callable] = None,
    input_spec: Any = None,
    label_spec: Any = None,
) -> KerasModelFn:
    """Makes a `model_fn` from a Keras 3 or Keras 2 model.

    The model is called as Keras calls it. The model's current weights are the initial
    weights; training does not change the model itself. The evaluation loss depends on
    labels and outputs only; Keras's `model.evaluate` adds the model's own losses
    (regularisers and `add_loss`).

    For example

        model_fn = tff_reg.models.from_keras(keras.applications.MobileNetV2(...))
        process = tff_reg.training.build_regularized(model_fn, ...)

    Args:
      model: A `keras.Model`: Sequential, functional or sub-classed.
      blocks: Names of the layers of a Sequential or functional model that end a block;
        the layers after them are the classifier. By default a model is split into at
        most six blocks, at tensors that every path from input to output passes.
      loss_fn: Function of (labels, outputs) giving a batch's mean loss, or a loss of
        Keras. By default the loss that the model was compiled with. Without either it
        is the cross-entropy of integer labels, and the outputs are taken as
        probabilities if their rows are in [0, 1] and sum to 1 on a trial batch, else
        as logits.
      input_spec: `tf.TensorSpec` of the input, batch axis first, or a structure of
        specs; only for a model whose input is unknown: sub-classed, or not built.
      label_spec: `tf.TensorSpec`s of the labels; by default int32 without the output's
        last axis for cross-entropy of integer labels, else the output's specs.

    Returns:
      A `KerasModelFn`: a function without arguments that makes a `LearningModel`. Its
      `keras_model(weights)` returns the Keras model with the given weights.

    Raises:
      TypeError: If the model is not a Keras model.
      ValueError: If the model cannot be trained as in Keras, or this is called inside a
        `model_fn`; the message says why.
    """
    keras = _check_is_keras(model)
    if not tf.executing_eagerly():
        raise ValueError(
            "from_keras makes a model_fn, and cannot be called inside of one: write"
            " model_fn = from_keras(model) before, and pass model_fn."
        )
    _check_layers(model)
    input_spec = _spec_of(model, input_spec)
    _check_weights(model)
    trial = keras_trial.run(model, input_spec)
    outputs = keras_parts.example_call(model, input_spec)[-1].output
    last = trial.call.output
    has_logits = tf.is_tensor(last) and keras_network.logits_of(last) is not None
    loss = keras_losses.loss_of(model, loss_fn, outputs, has_logits, keras)
    plan = _plan_of(model, trial, input_spec, loss, blocks, keras)
    if label_spec is None:
        label_spec = keras_losses.label_spec_of(loss, trial.call.output)
    label_spec = keras_parts.in_order(label_spec)
    keras_losses.check_fits(model, loss.loss_fn, label_spec, trial.call.output)
    model_fn = KerasModelFn(plan, loss, label_spec)
    if model_fn.assumed:
        logging.info("The model %r has no loss: %s.", model.name, model_fn.assumed)
    return model_fn


def _plan_of(
    model: Any,
    trial: keras_trial.Trial,
    input_spec: Any,
    loss: keras_losses.ModelLoss,
    blocks: Optional[Sequence[str]],
    keras: Any,
) -> keras_network.Plan:
    """Returns the plan of a model: its blocks, its head and its current weights."""
    head = last = None
    if loss.is_classifier:
        head = _head_of(trial, loss.takes_probabilities, keras)
        last = head or keras_calls.layer_that_gave(trial.call.output, trial.call)
    parts, ends = keras_parts.parts_of(
        model, trial, head, last, blocks, input_spec, keras
    )
    values = [np.asarray(v) for v in trial.variables]
    others = enumerate(trial.variables[trial.num_trainable :], trial.num_trainable)
    return keras_network.Plan(
        model=model,
        input_spec=input_spec,
        variables=trial.variables,
        names=keras_calls.names_of(trial.variables),
        values=values,
        num_trainable=trial.num_trainable,
        fixed=[(v, np.asarray(v)) for v in trial.fixed],
        constants=frozenset(n for n, v in others if id(v) not in trial.changed),
        head=head,
        parts=parts,
        ends=ends,
        num_classes=trial.call.output.shape[-1] if loss.is_classifier else None,
        gives_probabilities=loss.takes_probabilities,
        is_random=keras_calls.is_random(model),
        sets_trained_weights=any(
            id(v) in trial.changed for v in trial.variables[: trial.num_trainable]
        ),
        seed=zlib.crc32(b"".join(v.tobytes() for v in values)) >> 1,
    )


def from_keras_blocks(
    blocks: Sequence, *, input_shape: Sequence[int]
) -> block_model.BlockModel:
    """Makes a `BlockModel` from lists of consecutive Keras layers.

    The short form of `from_keras` for a Sequential model whose blocks are listed.

    For example

        from_keras_blocks(
            [
                [keras.layers.Conv2D(32, 3, activation="relu")],
                [keras.layers.Flatten(), keras.layers.Dense(10)],
            ],
            input_shape=(28, 28, 1),
        )

    Args:
      blocks: A list with one entry per block: a Keras layer, or a list of layers. The
        last layer of the last block gives the logits; its input is the embedding.
      input_shape: Shape of one example, without the batch axis.

    Returns:
      The `BlockModel`; its blocks are called block1, block2, ..., classifier.

    Raises:
      ValueError: If there are fewer than two blocks, a block is empty, or the last
        layer does not give one logit per class.
    """
    lists = [list(b) if isinstance(b, (list, tuple)) else [b] for b in blocks]
    if len(lists) < 2 or not all(lists):
        raise ValueError(
            "from_keras_blocks needs at least two blocks with at least one layer "
            f"each, but got blocks of {[len(b) for b in lists]} layers."
        )

    is_eager = tf.executing_eagerly()
    if is_eager:
        return keras_network.KerasNetwork(_plan_of_blocks(lists, input_shape, True))
    # A new thread is outside the graph that is being built.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(_plan_of_blocks, lists, input_shape, False).result()
    return keras_network.KerasNetwork(made)


def _plan_of_blocks(
    lists: Sequence[Sequence[Any]], input_shape: Sequence[int], is_eager: bool
) -> keras_network.Plan:
    """Returns the plan of a Sequential model with one block per list of layers."""
    flat = [layer for each in lists for layer in each]
    keras = _check_is_keras(flat[0])
    if not is_eager:
        # In a graph, Keras 2 makes layers of TensorFlow 1.
        flat = [type(each).from_config(each.get_config()) for each in flat]
    inputs = keras.Input(tuple(input_shape), dtype=flat[-1].compute_dtype)
    model = keras.Sequential([inputs, *flat])
    found = from_keras(model, blocks=[each[-1].name for each in lists]).plan
    names = [f"block{n}" for n in range(1, len(lists))]
    parts = [
        dataclasses.replace(part, name=name)
        for part, name in zip(found.parts, [*names, "classifier"])
    ]
    return dataclasses.replace(found, parts=parts)


def _check_is_keras(model: Any) -> Any:
    """Returns the Keras module of a model or layer; raises for other objects."""
    is_3 = keras_calls.is_keras_3(model)
    if not is_3 and not keras_calls.is_keras_2(model):
        raise TypeError(
            f"from_keras takes a Keras model, not a {type(model).__name__}."
        )
    keras = keras_calls.keras_of(model)
    if is_3 and keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Keras computes with {keras.config.backend()} here, and TensorFlow"
            " Federated trains TensorFlow alone: set KERAS_BACKEND=tensorflow."
        )
    return keras


def _spec_of(model: Any, given: Any) -> Any:
    """Returns the specs of a model's input; given specs also build the model."""
    spec = given
    if spec is None and getattr(model, "inputs", None):
        spec = tf.nest.map_structure(
            keras_calls.batched_spec, keras_parts.input_of(model)
        )
    if spec is None:
        raise ValueError(
            f"The model {model.name!r} does not know what it takes: give input_spec,"
            " for example tf.TensorSpec([None, 28, 28, 1])."
        )
    if any(s.dtype == tf.string for s in tf.nest.flatten(spec)):
        raise ValueError(
            f"The model {model.name!r} takes strings, which no client's data set in"
            " arrays can hold: vectorise the text before, and give the model the ids."
        )
    if given is not None:
        with keras_parts.unchanged(model):
            model(keras_parts.example(spec, np.zeros), training=False)
    return keras_parts.in_order(spec)


def _structured(
    given: Any, spec: Any, takes: str, whose: str, names: Optional[Sequence[str]] = None
) -> Any:
    """Returns arrays in the structure of specs."""
    is_named = isinstance(given, Mapping) and isinstance(spec, tuple)
    if is_named and {*(names or ())} == {*given}:
        given = [given[name] for name in names or ()]
    if isinstance(given, Mapping):
        given = collections.OrderedDict((n, given[n]) for n in sorted(given))
    elif isinstance(given, list):
        given = tuple(given)
    try:
        tf.nest.assert_same_structure(spec, given, check_types=False)
        is_same = isinstance(spec, Mapping) == isinstance(given, Mapping)
        # It compares the lengths of dicts alone.
        is_same &= not isinstance(spec, Mapping) or {*spec} == {*given}
    except (TypeError, ValueError):
        is_same = False
    if is_same:
        return tf.nest.pack_sequence_as(spec, tf.nest.flatten(given))

    def words(value: Any) -> str:
        if isinstance(value, Mapping):
            return f"a dict of {', '.join(map(str, value))}"
        return f"{len(value)} arrays" if isinstance(value, tuple) else "one array"

    raise ValueError(f"{takes} {words(spec)}, and {whose} has {words(given)}.")


def _check_shape(spec: Any, given: Any, takes: str, has: str) -> None:
    """Checks the shape of a row."""
    if not spec.shape[1:].is_compatible_with(given.shape[1:]):
        raise ValueError(
            f"{takes} of shape {tuple(spec.shape[1:])}, and {has} of shape"
            f" {tuple(given.shape[1:])}."
        )


def _label(spec: Any, given: np.ndarray, name: str, whose: str) -> np.ndarray:
    """Returns labels of one output as its loss takes them."""
    if given.ndim == spec.shape.rank - 1 and spec.shape[-1] == 1:
        given = given[..., np.newaxis]  # As Keras does.
    if given.ndim == spec.shape.rank + 1 and given.shape[-1] == 1:
        given = given[..., 0]
    has_numbers = given.dtype.kind in "iub" or np.array_equal(given, np.floor(given))
    if spec.dtype.is_integer and not has_numbers:
        raise ValueError(
            f"{name} takes class numbers, and {whose} has labels {given.dtype} with"
            " fractions: compile it with a loss of such labels, such as mse."
        )
    if spec.dtype.is_integer and given.ndim == spec.shape.rank + 1:
        raise ValueError(
            f"{name} takes one class number for each example, and {whose} has labels"
            f" {given.dtype} {given.shape}: give y.argmax(axis=-1) of one-hot labels,"
            " or compile it with a loss of such labels."
        )
    _check_shape(spec, given, f"{name} takes labels", f"{whose} has labels")
    return given.astype(spec.dtype.as_numpy_dtype)


def _check_layers(model: Any) -> None:
    for layer in keras_internals.layers_of(model):
        if getattr(layer, "stateful", False) is True and hasattr(layer, "cell"):
            raise ValueError(
                f"The layer {layer.name!r} keeps its state from batch to batch, of one"
                " number of examples alone: make it with stateful=False."
            )
        # Where TensorFlow refuses it, Keras 3 keeps the name for all later models.
        first = "[A-Za-z0-9.]" if layer is model else ""
        if not re.fullmatch(first + r"[\w.\\/>-]*", layer.name, re.ASCII):
            raise ValueError(
                f"TensorFlow's graphs take no name like {layer.name!r}: name layers and"
                " models with letters a to z, digits, '_', '.' and '-'."
            )


def _check_weights(model: Any) -> None:
    name = repr(model.name)
    if not model.built or not model.weights:
        raise ValueError(
            f"The model {name} has no weights yet: call it on a batch, or give"
            " input_spec=tf.TensorSpec([None, ...])."
        )
    if not model.trainable_weights:
        raise ValueError(
            f"Nothing of the model {name} is trained: set trainable=True on a layer."
        )
    bound = [v for v in model.trainable_weights if getattr(v, "constraint", None)]
    if bound:
        raise ValueError(
            f"{keras_calls.name_of(bound[0])} has a constraint, which Keras's"
            " optimisers apply after each step and clients here do not: leave it out."
        )
    for layer in keras_internals.layers_of(model):
        if (
            layer.weights
            and layer.compute_dtype != layer.variable_dtype
            and layer is not model
        ):
            raise ValueError(
                f"The layer {layer.name!r} has {layer.variable_dtype} weights and"
                f" computes in {layer.compute_dtype} (mixed precision): give all layers"
                " the one dtype float32 or float64."
            )
    learning_model_lib.check_dtypes(model.trainable_weights)


def _head_of(trial: keras_trial.Trial, gives_probabilities: bool, keras: Any) -> Any:
    """Returns the `Dense` layer that gives the logits, else None."""
    kind = keras.layers.Dense
    calls = [each for each in trial.call.layer_calls if isinstance(each.layer, kind)]
    layer: Any = calls[-1].layer if calls else None
    times = sum(each.layer is layer for each in calls)
    if times != 1 or calls[-1].inputs[0].shape.rank != 2:
        return None
    is_plain = (
        type(layer).__call__ is kind.__call__
        and type(layer).call is kind.call
        and id(layer.kernel) in {id(v) for v in trial.variables}
        and id(layer.kernel) not in trial.changed
    )
    is_head = is_plain and keras_parts.ends_in(layer, trial.call, gives_probabilities)
    return layer if is_head else None
