"""A Keras model as a `BlockModel` with this package's variables.

A pass through the whole network calls the model as Keras does (`keras_calls`). The call
records the tensors that methods use: the outputs of the blocks, the input of the last
`Dense` layer, the outputs of non-linear layers. Functional models between two such
tensors run a part alone (`keras_parts`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_reg.models import (
    block_model,
    forward as forward_lib,
    keras_activations,
    keras_calls,
    layers,
)
from tff_reg.seam import keras_internals

ForwardPass = forward_lib.ForwardPass
MissingCapabilityError = block_model.MissingCapabilityError

_EPSILON = 1e-7  # Keras's.
_WHOLE = (
    "This Keras model shows {what}: its output is not that of a Dense layer which reads"
    " [batch, features] once. End it in one, with or without softmax."
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A block of a Keras model.

    Attributes:
      name: The block's name.
      model: The functional model that computes the block; None for the identity.
    """

    name: str
    model: Any


@dataclasses.dataclass(frozen=True)
class Plan:
    """The structure of a Keras model, as `from_keras` analysed it.

    Attributes:
      model: The Keras model.
      input_spec: `tf.TensorSpec`s of the input, the batch axis first.
      variables: The weights: first the trainable ones, then the others.
      names: The weights' names, made unique.
      values: The weights' values, arrays.
      num_trainable: Number of trainable weights.
      fixed: Pairs of another variable (of a metric, for example) and its value.
      constants: Positions in `variables` of non-trainable weights that no pass changes:
        the frozen ones.
      head: The `Dense` layer that gives the logits, or None.
      parts: The blocks up to the head's input; without a head, up to the output.
      ends: The last layer of each part but the last.
      num_classes: Number of logits; None if the output is no vector of logits.
      gives_probabilities: Whether a classifier returns probabilities; the logits of a
        `KerasNetwork` are their logarithms.
      is_random: Whether a pass in training mode draws random numbers.
      sets_trained_weights: As in `BlockModel`.
      seed: The network's seed, of the weights' values.
    """

    model: Any
    input_spec: Any
    variables: Sequence[Any]
    names: Sequence[str]
    values: Sequence[np.ndarray]
    num_trainable: int
    fixed: Sequence[tuple[Any, np.ndarray]]
    constants: frozenset[int]
    head: Any
    parts: Sequence[Part]
    ends: Sequence[Any]
    num_classes: Optional[int]
    gives_probabilities: bool
    is_random: bool
    sets_trained_weights: bool
    seed: int


class WholeOutputs:
    """The outputs of a network whose last layer is not linear.

    Attributes:
      predictions: The model's output: a tensor or a structure of tensors.
      logits: The same; of probabilities, their logarithms.
      activations: As in `Outputs`.
    """

    def __init__(
        self,
        predictions: Any,
        logits: Any,
        activations: Sequence[tf.Tensor],
        block_outputs: Sequence[tf.Tensor],
        preactivations: Sequence[tf.Tensor],
    ):
        self.predictions = predictions
        self.logits = logits
        self.activations = activations
        self._block_outputs = block_outputs
        self._preactivations = preactivations

    @property
    def embedding(self):
        """Raises a MissingCapabilityError."""
        raise MissingCapabilityError(_WHOLE.format(what="no embedding"))

    @property
    def block_outputs(self):
        """As in `Outputs`; raises a MissingCapabilityError for a single block."""
        if len(self._block_outputs) < 2:
            raise MissingCapabilityError(_WHOLE.format(what="no blocks"))
        return self._block_outputs

    @property
    def preactivations(self):
        """As in `Outputs`; raises as `block_outputs` does."""
        return self._preactivations if self.block_outputs else ()


class KerasDense(layers.ForwardLayer):
    """The last layer of a Keras model without its softmax, with our variables.

    Attributes:
      kernel: [features, classes].
      bias: [classes], or None.
    """

    def make(self, kernel: tf.Variable, bias: Optional[tf.Variable]):
        self.kernel = kernel
        self.bias = bias

    def call(self, x, forward: ForwardPass):
        y = tf.linalg.matmul(x, self.kernel)
        return y if self.bias is None else tf.nn.bias_add(y, self.bias)


class KerasBlock(block_model.Block):
    """One block of a `KerasNetwork`."""

    def make(self, network: KerasNetwork, part: Part):
        self._network = [network]  # In a list that `tf.Module` does not look into.
        self._part = (part,)

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return self._network[0].variables_of(self._part[0].model, True)

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        return self._network[0].variables_of(self._part[0].model, False)

    def call(self, x, forward: ForwardPass):
        return self._network[0].run_part(self._part[0].model, x, forward)


class KerasClassifier(block_model.Classifier, KerasBlock):
    """The last block of a `KerasNetwork`: the layers before the head, and the head."""

    def make(self, network: KerasNetwork, part: Part, head: Optional[KerasDense]):
        super().make(network, part)
        self.head = head

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        own = [] if self.head is None else self.head.trainable_variables
        return [*super().trainable_variables, *own]

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        own = [] if self.head is None else self.head.non_trainable_variables
        return [*super().non_trainable_variables, *own]

    @property
    def linear_layer(self):
        return self.head

    def replace_linear_layer(self, layer: layers.ForwardLayer) -> None:
        self.head = layer

    def embed(self, x, forward: ForwardPass):
        return self._network[0].run_part(self._part[0].model, x, forward)

    def classify(self, embedding, forward: ForwardPass):
        network = self._network[0]
        if self.head is not None:
            logits = self.head(embedding, forward)
            is_known = not network.gives_probabilities
            return logits if is_known else network.shifted(tf.nn.log_softmax(logits))
        return network.logits_of(embedding)


class KerasNetwork(block_model.BlockModel):
    """A `BlockModel` that calls a Keras model with this package's variables."""

    # Probabilities say logits up to a constant, which a trial changes.
    constant = 0.0

    def __init__(self, plan: Plan, in_place: bool = False):
        self.plan = plan
        if in_place:
            made = [
                v.value if keras_calls.is_keras_3_variable(v) else v
                for v in plan.variables
            ]
        else:
            made = [
                tf.constant(value)
                if number in plan.constants
                else tf.Variable(
                    functools.partial(tf.constant, value),
                    trainable=number < plan.num_trainable,
                    name=name,
                    dtype=value.dtype,
                )
                for number, (name, value) in enumerate(zip(plan.names, plan.values))
            ]
        self._made = made
        # Our variables, in order: the trainable ones, and those that passes change.
        held = [None if n in plan.constants else v for n, v in enumerate(made)]
        self._trained = made[: plan.num_trainable]
        self._changing = [v for v in held[plan.num_trainable :] if v is not None]
        # Positions of the head's kernel and bias among the plan's variables.
        self._head_positions: dict[str, int] = {}
        head = None
        if plan.head is not None:
            at = {id(v): n for n, v in enumerate(plan.variables)}
            weights = {"kernel": plan.head.kernel, "bias": plan.head.bias}
            self._head_positions = {
                name: at[id(v)] for name, v in weights.items() if v is not None
            }
            own = {name: made[n] for name, n in self._head_positions.items()}
            head = KerasDense(own["kernel"], own.get("bias"), name="head")
        *first, last = plan.parts
        spec = plan.input_spec
        shape = spec.shape[1:] if isinstance(spec, tf.TensorSpec) else ()
        super().__init__(
            [
                *(KerasBlock(self, part, name=part.name) for part in first),
                KerasClassifier(self, last, head, name=last.name),
            ],
            input_shape=shape,
            num_classes=plan.num_classes,
            # A user's layers may mix the examples of a batch.
            has_independent_examples=False,
            num_branches=0,
            supports_width=False,
            dtype=plan.values[0].dtype.name,
            seed=plan.seed,
        )
        self.frozen = {plan.names[n]: made[n] for n in sorted(plan.constants)}

    @property
    def input_spec(self):
        return self.plan.input_spec

    @property
    def is_random(self) -> bool:
        return self.plan.is_random

    @property
    def sets_trained_weights(self) -> bool:
        return self.plan.sets_trained_weights

    @property
    def gives_probabilities(self) -> bool:
        return self.plan.gives_probabilities

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """In the Keras model's order; the variables of a replaced head come last."""
        return self._held(trainable=True)

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        """In the Keras model's order; the variables of a frozen head come last."""
        return self._held(trainable=False)

    def _held(self, trainable: bool) -> list[tf.Variable]:
        made = self._trained if trainable else self._changing
        head = self.blocks[-1].linear_layer
        held = {
            n for n in self._head_positions.values() if n not in self.plan.constants
        }
        in_place = {id(self._made[n]) for n in held}
        own = [] if head is None else [*head.trainable_variables]
        own += [] if head is None else [*head.non_trainable_variables]
        if {id(v) for v in own} == in_place:
            return [*made]
        kept = [v for v in made if id(v) not in in_place]
        return [*kept, *(v for v in own if v.trainable == trainable)]

    @property
    def keras_layers(self) -> list[Any]:
        """The Keras model and its layers, at any depth."""
        return keras_internals.layers_of(self.plan.model)

    @property
    def weight_names(self) -> dict[int, str]:
        """The Keras model's names of its weights by the `id` of our variable."""
        return {id(v): name for v, name in zip(self._made, self.plan.names)}

    @property
    def layer_variables(self) -> dict[str, list[tf.Variable]]:
        """Our trained variables of each layer of the Keras model, by its name."""
        return {
            layer.name: [self.standing_for(v) for v in layer.trainable_weights]
            for layer in self.plan.model.layers
        }

    def standing_for(self, variable: Any) -> tf.Variable:
        """Returns our variable in place of a variable of the Keras model."""
        known = [id(v) for v in self.plan.variables]
        return self._made[known.index(id(variable))]

    def variables_of(self, model: Any, trainable: bool) -> list[tf.Variable]:
        """Returns our variables of a part, without the head's, in the model's order."""
        if model is None:
            return []
        inside = {id(self.standing_for(v)) for v in model.weights}
        inside -= {id(self._made[n]) for n in self._head_positions.values()}
        held = self._trained if trainable else self._changing
        return [v for v in held if id(v) in inside]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, x, forward: ForwardPass):
        """Runs the whole network; see `BlockModel`."""
        self.check_supports(forward)
        plan = self.plan
        call = self._call(plan.model, _cast(x, plan.input_spec), forward)
        ended = [keras_calls.output_of(layer, call) for layer in plan.ends]
        if plan.head is not None:
            ended = ended or [keras_calls.input_of(plan.head, call)]
        recorded: Sequence[Any] = ()
        before: Sequence[Any] = ()
        if forward.record_activations:
            recorded = keras_activations.Activations(call, plan.head, is_whole=True)
            before = [keras_activations.before(call, output) for output in ended]
        if plan.head is None:
            logits = self.logits_of(call.output)
            return WholeOutputs(call.output, logits, recorded, [*ended, logits], before)
        embedding = keras_calls.input_of(plan.head, call)
        logits = self.blocks[-1].classify(embedding, forward)
        return forward_lib.Outputs(
            block_outputs=[*ended, logits],
            embedding=embedding,
            logits=logits,
            activations=recorded,
            preactivations=before,
            gives_probabilities=plan.gives_probabilities,
        )

    def logits_of(self, output: Any) -> Any:
        """Returns the logits of the model's output."""
        gives_probabilities = self.plan.gives_probabilities
        return self.shifted(_log(output)) if gives_probabilities else output

    def shifted(self, logits: Any) -> Any:
        """Adds `constant` times an example's number, from 1, to all of its logits."""
        if not self.constant:
            return logits
        numbers = tf.range(1, tf.shape(logits)[0] + 1)
        return logits + self.constant * tf.cast(numbers, logits.dtype)[:, tf.newaxis]

    def run_part(self, model: Any, x: Any, forward: ForwardPass) -> Any:
        """Runs a part of the model; the whole model only up to its head's input."""
        if model is None:
            return x
        call = self._call(model, x, forward)
        if forward.on_activation is not None:
            for activation in keras_activations.Activations(call, self.plan.head):
                forward.on_activation((activation, call.output))
        if model is self.plan.model and self.plan.head is not None:
            return keras_calls.input_of(self.plan.head, call)
        return call.output

    @property
    def source(self) -> Any:
        """The user's Keras model, with the weights that it has."""
        return self.plan.model

    def keras_model(self) -> Any:
        """Returns the user's Keras model with this network's weights."""
        head = self.blocks[-1].linear_layer
        if self.plan.head is not None and not isinstance(head, KerasDense):
            raise ValueError(
                f"The last layer of {self.plan.model.name!r} was replaced by a"
                f" {type(head).__name__} (fedetf does so), which the Keras model"
                " cannot hold."
            )
        for variable, ours in self._pairs():
            variable.assign(np.asarray(ours))
        return self.plan.model

    def _pairs(self) -> list[tuple[Any, tf.Variable]]:
        """Returns pairs of a weight of the Keras model and our variable for it."""
        standing = list(self._made)
        head = self.blocks[-1].linear_layer
        for name, n in self._head_positions.items():
            standing[n] = getattr(head, name, standing[n])
        return list(zip(self.plan.variables, standing))

    def _call(self, model: Any, x: Any, forward: ForwardPass) -> keras_calls.Call:
        plan = self.plan
        trained = {id(v) for v in plan.model.trainable_weights}
        if forward.training and trained != set(
            map(id, plan.variables[: plan.num_trainable])
        ):
            raise ValueError(
                f"What is trainable of the model {plan.model.name!r} was changed after"
                " from_keras: call from_keras again."
            )
        values = self._pairs()
        kept = []
        if not keras_calls.is_keras_3(model) and not forward.updates_statistics:
            first = self._trained if plan.sets_trained_weights else []
            kept = [(v, tf.identity(v)) for v in (*first, *self._changing)]
        call = keras_calls.call(
            model,
            x,
            [*values, *plan.fixed],
            whole=plan.model,
            training=forward.training,
            key=forward.key,
        )
        if forward.training:
            for variable, value in kept:
                variable.assign(value)
        if forward.updates_statistics:
            for (_, ours), new in zip(values, call.new_values):
                if new is not None:
                    ours.assign(new)
        if forward.on_loss is not None:
            for loss in call.losses:
                forward.on_loss(loss)
        return call


def logits_of(output: Any) -> Any:
    """Returns the logits that Keras's cross-entropy takes for an output, or None.

    The input of a last softmax, and of a last sigmoid of Keras's.
    """
    logits = getattr(output, "_keras_logits", None)
    is_traced = logits is None and not hasattr(output, "numpy")
    is_softmax = is_traced and output.op.type == "Softmax"
    return output.op.inputs[0] if is_softmax else logits


def _log(probabilities: Any) -> Any:
    """Returns the logarithm of probabilities, clipped as Keras's cross-entropy does."""
    logits = logits_of(probabilities)
    if logits is not None:
        return tf.nn.log_softmax(logits)
    return tf.math.log(tf.clip_by_value(probabilities, _EPSILON, 1 - _EPSILON))


def _cast(x: Any, spec: Any) -> Any:
    """Casts the input to the model's data types and structure."""
    flat = zip(tf.nest.flatten(x), tf.nest.flatten(spec))
    return tf.nest.pack_sequence_as(spec, [tf.cast(v, s.dtype) for v, s in flat])
