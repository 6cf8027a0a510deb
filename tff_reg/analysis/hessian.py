"""The Hessian of a mean loss: products with vectors, and estimators built on them.

The loss is the mean over a fixed set of examples, computed in mini-batches. It leaves
out weight decay and a Keras model's own penalties. All random vectors are stateless
functions of `seed`.

Sources: Hutchinson, "A stochastic estimator of the trace of the influence matrix for
Laplacian smoothing splines", 1990 (trace); Bekas, Kokiopoulou and Saad, "An estimator
for the diagonal of a matrix", 2007; Ubaru, Chen and Saad, "Fast estimation of tr(f(A))
via stochastic Lanczos quadrature", 2017 (density); Yao et al., "PyHessian: Neural
Networks Through the Lens of the Hessian", 2020, for these estimators on networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Optional, Union

from tff_reg.analysis import (
    eigenvalues,
    examples,
    hessian_products,
    lanczos,
    objective,
    parts as parts_lib,
)
from tff_reg.analysis.estimates import (
    DiagonalEstimate,
    SpectralDensity,
    TraceEstimate,
)
from tff_reg.data import keys
from tff_reg.lazy import np, tf

Parts = parts_lib.Parts
Vector = Union["np.ndarray", Sequence["np.ndarray"]]

# The purposes of random vectors: part of the seed, so that no two share vectors.
_EIGENVALUES, _PROBES, _DENSITY = 1, 2, 3
# With fewer samples a standard error is unreliable.
_FEWEST_SAMPLES = 10


class Hessian:
    """The Hessian of a mean loss over fixed examples, compiled at first use.

    >>> import numpy as np, tensorflow as tf
    >>> from tff_reg.analysis import Hessian
    >>> w = tf.Variable([1.0, 2.0])
    >>> loss = lambda batch: tf.reduce_mean(batch) * (2 * w[0] ** 2 + w[0] * w[1])
    >>> hessian = Hessian(loss, [np.ones(3, np.float32)], variables=[w])
    >>> hessian.loss(), hessian.product(np.array([1.0, 0.0]))
    (4.0, array([4., 1.]))

    The argument `parts` of the methods selects diagonal blocks of the matrix instead of
    the whole matrix: "block" (a block of this package's models, a layer of a Keras
    model), "variable", or a list of lists of variables. The result is then a dictionary
    by the blocks' or variables' names, or a list.

    Args:
      model_or_loss_fn: A `keras.Model`, a `BlockModel`, a `LearningModel`, or a
        function of a batch that returns its mean loss (which needs `variables`). The
        loss is that of a `LearningModel` or of a Keras model (see
        `models.from_keras`), else the cross-entropy of integer labels and logits.
      data: The examples: a tuple of arrays (x, y), a `tf.data.Dataset` of batches, or
        a list of batches. Models take batches (x, y), or mappings with 'x' and 'y'.
      variables: The variables to differentiate by; the default is all trainable
        variables. All other variables stay fixed.
      training: Whether models run in training mode: BatchNorm then uses the batch's
        statistics. The running statistics keep their values.
      batch_size: Largest batch if `data` is a tuple of arrays.

    Attributes:
      variables: The variables to differentiate by, in the order of a vector [size].
      filter_axes: As in `objective.Objective`.
      size: Number of weights.
      num_examples: Number of examples.

    Raises:
      UnsuitableModelError: If the model cannot be differentiated.
      UnsuitableDataError: If the data have an unsupported form, or no examples.
      ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        model_or_loss_fn,
        data,
        *,
        variables: Optional[Sequence] = None,
        training: bool = False,
        batch_size: int = 64,
    ):
        batches = examples.fixed_batches(
            data, batch_size, for_model=objective.is_model(model_or_loss_fn)
        )
        built = objective.build(
            model_or_loss_fn,
            variables=variables,
            training=training,
            first_batch=batches[0].values,
        )
        self._products = hessian_products.HessianProducts(built, batches)
        self._blocks, self._names = built.blocks, built.names
        self.variables = built.variables
        self.filter_axes = built.filter_axes
        self.size = self._products.size
        self.num_examples = self._products.num_examples

    def loss(self) -> float:
        """Computes the mean loss over the examples."""
        return self._products.loss()

    def gradient(self) -> np.ndarray:
        """Computes the gradient of the mean loss, float64 [size]."""
        return self._products.gradient()

    def unflatten(self, vector: np.ndarray) -> list[np.ndarray]:
        """Splits a vector [size] into arrays shaped like the variables."""
        return self._products.unflatten(np.asarray(vector))

    def product(self, vector: Vector) -> Vector:
        """Multiplies the Hessian with a vector.

        Args:
          vector: [size], or a list of arrays shaped like the variables.

        Returns:
          The product in the form of `vector`, float64.

        Raises:
          ValueError: If the vector has another size or shape.
          NonFiniteError: If the product is not finite.
          NoSecondDerivativeError: If TensorFlow lacks a derivative.
        """
        if isinstance(vector, (list, tuple)):
            flat = self._products.flatten(vector)
            return self._products.unflatten(self._products.product(flat))
        vector = np.asarray(vector, np.float64)
        if vector.shape != (self.size,):
            raise ValueError(
                f"A vector must have {self.size} numbers, one for each weight, or be a "
                "list of arrays shaped like the variables, but its shape is "
                f"{vector.shape}."
            )
        return self._products.product(vector)

    def top_eigenvalues(
        self,
        k: int = 1,
        *,
        tolerance: float = 1e-5,
        max_iterations: Optional[int] = None,
        parts: Parts = None,
        seed: int = 0,
    ):
        """Computes the k eigenvalues of largest magnitude, with their eigenvectors.

        The Lanczos iteration with full reorthogonalisation stores one vector of all
        weights per product. It stops when the estimated relative error of every value
        is at most `tolerance` and the residual, a bound on the error, at most 100 times
        that. (For values below a hundredth of the largest, errors are relative to that
        hundredth.) A warning is logged if `max_iterations` is reached first.

        Args:
          k: Number of eigenvalues, at most the number of weights.
          tolerance: Estimated relative error of the values.
          max_iterations: Largest number of products; the default is 100 + 4 k.
          parts: See the class.
          seed: Seed of the first vectors.

        Returns:
          `Eigenpairs`; with `parts`, the eigenpairs of each part.

        Raises:
          ValueError: If there are fewer eigenvalues; and the errors of `product`.
        """
        most = max_iterations or 100 + 4 * k
        chosen = self._parts_of(parts)
        for part in chosen:
            if k > part.size:
                where = "" if part.name is None else f" in {part.name!r}"
                raise ValueError(f"There are {part.size} eigenvalues{where}, not {k}.")
        found = []
        for part in chosen:
            pairs = eigenvalues.largest(
                self._product_within(part),
                self._random(part.size, seed, _EIGENVALUES, normal=True),
                part.size,
                k,
                tolerance,
                most,
                self._products.dtype,
            )
            found.append(pairs)
        return parts_lib.by_name(parts, chosen, found)

    def trace(
        self,
        *,
        tolerance: float = 0.01,
        max_samples: int = 200,
        parts: Parts = None,
        seed: int = 0,
    ):
        """Estimates the trace by Hutchinson's method: mean of v.Hv over random signs v.

        Args:
          tolerance: The estimator stops after at least 10 samples, as soon as each
            part's standard error is at most this share of the estimate's magnitude.
          max_samples: Largest number of samples, at least 2.
          parts: See the class. All parts are estimated from the same products.
          seed: Seed of the random vectors.

        Returns:
          A `TraceEstimate`; with `parts`, one estimate per part.
        """
        chosen = self._parts_of(parts)
        values = []
        for terms in self._diagonal_samples(max_samples, seed):
            values.append([np.sum(part.of(terms)) for part in chosen])
            estimates = [_estimate(column) for column in zip(*values)]
            if len(values) >= _FEWEST_SAMPLES and all(
                error <= tolerance * abs(mean) for mean, error, _ in estimates
            ):
                break
        return parts_lib.by_name(parts, chosen, estimates)

    def diagonal(
        self,
        *,
        exact: bool = False,
        samples: int = 100,
        parts: Parts = None,
        seed: int = 0,
    ):
        """Computes the diagonal: the mean of v * Hv over random signs v, or exactly.

        Args:
          exact: Whether to compute one product per weight, for small models.
          samples: Number of random vectors, at least 2.
          parts: See the class. All parts are estimated from the same products.
          seed: Seed of the random vectors.

        Returns:
          A `DiagonalEstimate`; with `parts`, one estimate per part.
        """
        chosen = self._parts_of(parts)
        total, squares = np.zeros(self.size), np.zeros(self.size)
        if exact:
            samples = self.size
            for index in range(self.size):
                unit = np.zeros(self.size)
                unit[index] = 1.0
                total[index] = self._products.product(unit)[index]
            errors = squares
        else:
            drawn = self._diagonal_samples(samples, seed)
            for number, terms in enumerate(drawn, start=1):
                # Welford's running mean and sum of squared differences.
                before = terms - total
                total += before / number
                squares += before * (terms - total)
            errors = np.sqrt(squares / (samples - 1) / samples)
        found = [
            DiagonalEstimate(part.of(total), part.of(errors), samples)
            for part in chosen
        ]
        return parts_lib.by_name(parts, chosen, found)

    def spectral_density(
        self,
        *,
        steps: int = 80,
        samples: int = 8,
        relative_width: float = 0.005,
        parts: Parts = None,
        seed: int = 0,
    ):
        """Estimates the density of the eigenvalues by stochastic Lanczos quadrature.

        Args:
          steps: Steps of the Lanczos iteration: products per random vector; as many
            vectors are kept in memory.
          samples: Number of random vectors.
          relative_width: Standard deviation of the Gaussian around each node, as a
            share of the range of the nodes, from 1e-5 to 1.
          parts: See the class.
          seed: Seed of the random vectors.

        Returns:
          A `SpectralDensity`; with `parts`, one density per part.
        """
        chosen = self._parts_of(parts)
        found = []
        for part in chosen:
            probes = self._random(part.size, seed, _DENSITY)
            most = min(steps, part.size)
            nodes, weights = [], []
            for number in range(samples):
                values, vectors = lanczos.tridiagonalize(
                    self._product_within(part),
                    probes(number),
                    most,
                    basis_dtype=self._products.dtype,
                ).eigenpairs()
                nodes.append(values)
                weights.append(np.square(vectors[0]) / samples)
            joined = np.concatenate(nodes), np.concatenate(weights)
            found.append(SpectralDensity.build(*joined, relative_width))
        return parts_lib.by_name(parts, chosen, found)

    def _diagonal_samples(self, count: int, seed: int) -> Iterator[np.ndarray]:
        """Yields v * Hv, whose mean is the diagonal, for random signs v."""
        if count < 2:
            raise ValueError(f"A standard error takes 2 samples or more, not {count}.")
        probes = self._random(self.size, seed, _PROBES)
        for number in range(count):
            probe = probes(number)
            yield probe * self._products.product(probe)

    def _parts_of(self, parts: Parts) -> list[parts_lib.Part]:
        names, slices = self._names, self._products.slices
        return parts_lib.choose(parts, self.variables, names, slices, self._blocks)

    def _product_within(self, part) -> Callable[[np.ndarray], np.ndarray]:
        """Returns a function that multiplies with the part's diagonal block."""
        if part.size == self.size and len(part.slices) == 1:
            return self._products.product
        return lambda vector: part.of(
            self._products.product(part.among(vector, self.size))
        )

    def _random(self, size: int, seed: int, purpose: int, normal: bool = False):
        """Returns a function from i to the i-th random vector, float64 [size]."""

        def draw(number: int) -> np.ndarray:
            key = keys.fold_in(tf.constant([seed, purpose], tf.int64), number)
            if normal:
                numbers = tf.random.stateless_normal([size], key, alg="philox")
                return numbers.numpy().astype(np.float64)
            bits = tf.random.stateless_uniform([size], key, alg="philox") < 0.5
            return np.where(bits.numpy(), 1.0, -1.0)

        return draw


def _estimate(values: Sequence[float]) -> TraceEstimate:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return TraceEstimate(float(np.mean(values)), float(error), len(values))
