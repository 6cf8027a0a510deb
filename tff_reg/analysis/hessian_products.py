"""Gradients and Hessian-vector products of a mean loss over fixed examples.

A product is the gradient of the gradient's inner product with the vector (Pearlmutter,
"Fast Exact Multiplication by the Hessian", 1994), in one compiled function: it takes
about 2.5 times as long as a gradient. Forward-mode differentiation of the gradient is
as fast, but TensorFlow needs five times as long to prepare it. `second_derivatives`
replaces TensorFlow's wrong second derivatives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.analysis import (
    examples as examples_lib,
    objective as objective_lib,
    second_derivatives,
)
from tff_reg.lazy import np, tf


class NonFiniteError(ValueError):
    """The loss or a derivative is not a finite number."""


class HessianProducts:
    """Products of vectors with the Hessian, batch by batch.

    Products are float64 on the host; each batch is computed in the variables' data
    type. The variables' values are read at every product.

    Attributes:
      variables: The variables that the loss is differentiated by.
      size: Number of weights.
      num_examples: Number of examples.
    """

    def __init__(
        self,
        objective: objective_lib.Objective,
        batches: Sequence[examples_lib.Batch],
    ):
        self.variables = objective.variables
        self.num_examples = sum(batch.size for batch in batches)
        self._objective = objective
        self._batches = batches
        self._sizes = [v.shape.num_elements() for v in self.variables]
        self.size = sum(self._sizes)
        is_double = any(v.dtype == tf.float64 for v in self.variables)
        self._dtype = tf.float64 if is_double else tf.float32
        self._functions = {}

    @property
    def dtype(self) -> np.dtype:
        """The data type in which a batch is computed."""
        return np.dtype(self._dtype.as_numpy_dtype)

    @property
    def slices(self) -> list[slice]:
        """The position of each variable's weights in a vector."""
        ends = list(itertools.accumulate(self._sizes))
        return [slice(end - size, end) for size, end in zip(self._sizes, ends)]

    def product(self, vector: np.ndarray) -> np.ndarray:
        """Multiplies the Hessian with a vector: [size] to float64 [size]."""
        vector = tf.constant(vector, self._dtype)
        result = self._mean(self._product_of_batch, vector)
        if not np.all(np.isfinite(result)):
            raise NonFiniteError(
                "The Hessian-vector product is not finite: the loss is not smooth at "
                "these weights, or a weight is not finite."
            )
        return result

    def gradient(self) -> np.ndarray:
        """Computes the gradient of the mean loss, float64 [size]."""
        result = self._mean(self._gradient_of_batch)
        if not np.all(np.isfinite(result)):
            raise NonFiniteError("The gradient of the loss is not finite.")
        return result

    def loss(self) -> float:
        """Computes the mean loss over the examples."""
        return float(self._mean(self._loss_of_batch))

    def flatten(self, values: Sequence) -> np.ndarray:
        """Joins arrays shaped like the variables into one float64 vector [size]."""
        arrays = [np.asarray(value, np.float64) for value in values]
        shapes = [array.shape for array in arrays]
        if shapes != [tuple(v.shape) for v in self.variables]:
            raise ValueError(
                "Expected arrays of the variables' shapes "
                f"{[tuple(v.shape) for v in self.variables]}, but got {shapes}."
            )
        return np.concatenate([array.ravel() for array in arrays])

    def unflatten(self, vector: np.ndarray) -> list[np.ndarray]:
        """Splits a vector [size] into arrays shaped like the variables."""
        return [
            vector[where].reshape(variable.shape)
            for where, variable in zip(self.slices, self.variables)
        ]

    def _mean(self, make_function: Callable, *arguments: Any) -> Any:
        """Computes the mean of a batch function over all examples, in float64."""
        total = 0.0
        for batch in self._batches:
            values = tf.nest.flatten(batch.values)
            result = self._function(make_function)(*values, *arguments)
            share = batch.size / self.num_examples
            total = total + share * result.numpy().astype(np.float64)
        return total

    def _function(self, compute):
        """Returns a compiled function of a batch's flat values and other arguments."""
        if compute not in self._functions:
            first = self._batches[0].values

            def of_flat_values(*arguments):
                count = len(tf.nest.flatten(first))
                batch = tf.nest.pack_sequence_as(first, arguments[:count])
                return compute(batch, *arguments[count:])

            specs = self._batch_specs()
            if compute == self._product_of_batch:
                specs.append(tf.TensorSpec([self.size], self._dtype))
            function = tf.function(of_flat_values, autograph=False)
            self._functions[compute] = function.get_concrete_function(*specs)
        return self._functions[compute]

    def _batch_specs(self) -> list[tf.TensorSpec]:
        """Returns a batch's specs; the number of examples is None if batches differ."""
        flat = [tf.nest.flatten(batch.values) for batch in self._batches]
        specs = []
        for tensors in zip(*flat):
            shape = tensors[0].shape
            if len({tensor.shape[0] for tensor in tensors}) > 1:
                shape = [None, *shape[1:]]
            specs.append(tf.TensorSpec(shape, tensors[0].dtype))
        return specs

    def _loss_of_batch(self, batch):
        loss = tf.convert_to_tensor(self._objective.mean_loss(batch))
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise objective_lib.UnsuitableModelError(
                "The loss of a batch must be one real number, but it is "
                f"{loss.dtype.name} of shape {loss.shape}."
            )
        return loss

    def _gradients(self, batch) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        with second_derivatives.corrected(graph):
            loss = self._loss_of_batch(batch)
            second_derivatives.check_no_hidden_moments(graph)
            return self._of_all(_differentiate(loss, self.variables))

    def _gradient_of_batch(self, batch):
        return self._flat(self._gradients(batch))

    def _product_of_batch(self, batch, vector):
        directions = [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            for part, variable in zip(tf.split(vector, self._sizes), self.variables)
        ]
        gradients = _differentiate(self._gradients(batch), self.variables, directions)
        # A gradient that does not depend on a variable has no second derivative by it.
        return self._flat(
            tf.zeros_like(variable) if gradient is None else gradient
            for gradient, variable in zip(gradients, self.variables)
        )

    def _of_all(self, gradients) -> list[tf.Tensor]:
        """Checks that the loss depends on all variables."""
        for gradient, name in zip(gradients, self._objective.names):
            if gradient is None:
                raise objective_lib.UnsuitableModelError(
                    f"The loss does not depend on the variable {name!r}."
                )
        return gradients

    def _flat(self, tensors):
        parts = [tf.cast(tf.reshape(t, [-1]), self._dtype) for t in tensors]
        return tf.concat(parts, axis=0)


def _differentiate(targets, variables, directions: Any = None) -> list[Any]:
    """Computes gradients; None for variables that the targets do not depend on."""
    try:
        gradients = tf.gradients(targets, variables, grad_ys=directions)
    except LookupError as error:
        raise second_derivatives.NoSecondDerivativeError(
            "TensorFlow cannot differentiate this model twice: "
            f"{' '.join(str(error).split())}"
        ) from error
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]
