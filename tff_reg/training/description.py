"""The facts about a model and its methods that building a process needs."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import checks
from tff_reg.models import learning_model
from tff_reg.training import (
    finishing,
    local_training,
    needs as needs_lib,
    numbers,
    personal as personal_lib,
    trial,
)


class Description(NamedTuple):
    """A model and the client's half of a process.

    Attributes:
      model_fn: Makes the model, a result of `adaptation.adapt_model_fn`.
      training: The settings of the clients' training.
      needs: The values that the methods' hooks need.
      initial_weights: () -> the `ModelWeights` that training begins with.
      input_spec: The model's `input_spec`.
      metric_finalizers: The finalizers of the model's metrics and of the methods'
        measurements, by name.
      hparams_dtype: Data type of the client optimiser's hyperparameters.
      has_statistics: Whether training may change non-trainable weights that are sent.
      personal: Which weights stay at clients; None if none do.
      said: What the server's hooks tell of a round, in the trial, by name.
      output_spec: The `tf.TensorSpec`s of a client's output; None without
        `debug_eager`.
      eager: The Python functions that graphs call with `debug_eager`.
    """

    model_fn: Callable[[], Any]
    training: local_training.LocalTraining
    needs: needs_lib.Needs
    initial_weights: tff.Computation
    input_spec: Any
    metric_finalizers: dict[str, Callable[..., Any]]
    hparams_dtype: tf.DType
    has_statistics: bool
    personal: Optional[personal_lib.Personal]
    said: Any
    output_spec: Any
    eager: list[Any]

    @property
    def weights_type(self) -> Any:
        """The type of the model's `ModelWeights`."""
        return self.initial_weights.type_signature.result

    @property
    def update_type(self) -> tff.types.Type:
        """The type of a client's update: of weights, with statistics if there are."""
        trainable = self.weights_type.trainable
        flat = tff.structure.flatten(self.weights_type.non_trainable)
        if not (statistics := numbers.floats(flat)):
            return trainable
        return tff.types.to_type(
            tff.learning.models.ModelWeights(trainable, statistics)
        )


def describe(
    model_fn: Callable[[], Any], training: local_training.LocalTraining
) -> Description:
    """Makes a model and runs a trial round of the methods' hooks on it."""
    needs, output, said = trial.run(model_fn, training)
    found: dict[str, Any] = {}

    @tff.tensorflow.computation
    def initial_weights() -> tff.learning.models.ModelWeights:
        model = model_fn()
        found.update(_seen(model, training, needs))
        return tff.learning.models.ModelWeights.from_model(model)

    spec = None
    if output is not None and training.debug_eager:
        spec = tf.nest.map_structure(
            tf.TensorSpec.from_tensor, finishing.as_tensors(output)
        )
    return Description(
        model_fn,
        training,
        needs,
        initial_weights,
        **found,
        said=said,
        output_spec=spec,
        eager=[],
    )


def _seen(
    model: Any, training: local_training.LocalTraining, needs: needs_lib.Needs
) -> dict[str, Any]:
    """Returns the fields of `Description` that are read from the model."""
    learning_model.check_model(model)
    for method in training.methods:
        checks.check_model(method, model)
    finalizers = collections.OrderedDict(model.metric_finalizers())
    for name in needs.measurement_names(training.methods):
        finalizers[name] = learning_model.finalize_ratio
    for name in finishing.blamed_names(training.methods):
        key = f"{name}/{finishing.NOT_FINITE}"
        finalizers[key] = learning_model.finalize_identity
    finalizers[finishing.REJECTED] = learning_model.finalize_identity
    # Training may change all weights of a model that does not show its network.
    shows = checks.has_network(model)
    fixed = {id(v) for v in model.network.constants} if shows else set[int]()
    personal = personal_lib.of_model(model, training.methods)
    statistics = numbers.floats(model.non_trainable_variables)
    if personal:
        kept = zip(statistics, personal.statistics)
        statistics = [v for v, is_own in kept if not is_own]
    is_double = any(v.dtype == tf.float64 for v in model.trainable_variables)
    return dict(
        input_spec=model.input_spec,
        metric_finalizers=finalizers,
        hparams_dtype=tf.float64 if is_double else tf.float32,
        has_statistics=any(id(v) not in fixed for v in statistics),
        personal=personal,
    )
