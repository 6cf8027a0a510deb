"""Curvature of a model's loss: eigenvalues, trace, diagonal and spectral density.

For any Keras model, any model of this package, or a loss function with variables:

    from tff_reg.analysis import hessian

    values, vectors = hessian.top_eigenvalues(model, (images, labels), k=2)
    mean, standard_error, samples = hessian.trace(model, (images, labels))
    by_layer = hessian.trace(model, (images, labels), parts="block")

or, compiled once for all of them, and for later weights of the same model:

    curvature = hessian.Hessian(model, (images, labels))
    curvature.top_eigenvalues(2)
    curvature.trace()

The loss is the mean over the examples given, always the same ones, computed in
mini-batches. Weight decay and a Keras model's own penalties are no part of it. All
random vectors follow from `seed` by stateless operations.

Sources: Hutchinson, "A stochastic estimator of the trace of the influence matrix for
Laplacian smoothing splines", 1990 (trace); Bekas, Kokiopoulou and Saad, "An estimator
for the diagonal of a matrix", 2007; Ubaru, Chen and Saad, "Fast estimation of tr(f(A))
via stochastic Lanczos quadrature", 2017 (density); Yao et al., "PyHessian: Neural
Networks Through the Lens of the Hessian", 2020, for their use on networks.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from tff_reg.analysis import (
    eigenvalues,
    examples,
    hessian_products,
    lanczos,
    objective,
)
from tff_reg.analysis.estimates import (
    DiagonalEstimate,
    SpectralDensity,
    TraceEstimate,
)
from tff_reg.data import keys
from tff_reg.lazy import np, tf, tqdm

Parts = Union[None, str, Sequence[Sequence[Any]]]
Vector = Union["np.ndarray", Sequence["np.ndarray"]]

METHODS = ("lanczos", "power")
# What a random vector is for: no two of these share one.
_EIGENVALUES, _PROBES, _DENSITY = 1, 2, 3
# Below, a standard error says little.
_FEWEST_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some of the weights: where they are in a vector of all."""

    name: Any
    slices: Sequence[slice]

    @property
    def size(self) -> int:
        return sum(where.stop - where.start for where in self.slices)

    def of(self, vector: np.ndarray) -> np.ndarray:
        return np.concatenate([vector[where] for where in self.slices])

    def among(self, part: np.ndarray, size: int) -> np.ndarray:
        """The part's vector with zeros for all other weights, [size]."""
        vector = np.zeros(size)
        begin = 0
        for where in self.slices:
            end = begin + where.stop - where.start
            vector[where] = part[begin:end]
            begin = end
        return vector


class Hessian:
    """The Hessian of a mean loss over fixed examples, compiled at first use.

    `parts` of its methods looks at diagonal blocks of the matrix instead of the whole:
    "block" (a block of our models, a layer of a Keras model), "variable", or a list of
    lists of variables. The result is then a dictionary by the blocks' or variables'
    names, or a list.

    Args:
      model_or_loss_fn: A `keras.Model`, a `BlockModel`, a `LearningModel`, or a
        function of a batch giving its mean loss (then `variables` is needed).
      data: The examples: a tuple of arrays (x, y), a `tf.data.Dataset` of batches, or
        a list of batches. Models take batches (x, y), or mappings with 'x' and 'y'.
      loss_fn: For models: a function of (labels, predictions) giving the losses of the
        examples, or their mean; any Keras loss is one. By default a `LearningModel`'s
        own, else cross-entropy of integer labels and logits.
      variables: What to differentiate by; by default all trainable variables. Others
        stay fixed.
      training: Whether models run in training mode: BatchNorm with its batch's
        statistics. The running ones keep their values.
      batch_size: Most examples of a batch, where `data` is arrays.

    Attributes:
      variables: What the loss is differentiated by, in the order of a vector [size].
      filter_axes: As of `objective.Objective`.
      size: Number of weights.
      num_examples: Number of examples.

    Raises:
      UnsuitableModelError: If the model is none that can be differentiated.
      UnsuitableDataError: If the data are in no such form, or empty.
      ValueError: If the arguments do not belong together.
    """

    def __init__(
        self,
        model_or_loss_fn,
        data,
        *,
        loss_fn: Optional[Callable] = None,
        variables: Optional[Sequence] = None,
        training: bool = False,
        batch_size: int = 64,
    ):
        batches = examples.fixed_batches(
            data, batch_size, for_model=objective.is_model(model_or_loss_fn)
        )
        built = objective.build(
            model_or_loss_fn,
            loss_fn=loss_fn,
            variables=variables,
            training=training,
            first_features=tf.nest.flatten(batches[0].values)[0],
        )
        self._products = hessian_products.HessianProducts(built, batches)
        self._blocks = built.blocks
        self.variables = built.variables
        self.filter_axes = built.filter_axes
        self.size = self._products.size
        self.num_examples = self._products.num_examples

    def loss(self) -> float:
        """The mean loss over the examples."""
        return self._products.loss()

    def gradient(self) -> np.ndarray:
        """The gradient of the mean loss, float64 [size]."""
        return self._products.gradient()

    def unflatten(self, vector: np.ndarray) -> list[np.ndarray]:
        """A vector [size] to a list of arrays shaped like the variables."""
        return self._products.unflatten(np.asarray(vector))

    def product(self, vector: Vector) -> Vector:
        """Multiplies the Hessian with a vector.

        Args:
          vector: [size], or a list of arrays shaped like the variables.

        Returns:
          The product in the same form, float64.

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
                f"A vector must have {self.size} numbers, one a weight, or be a list "
                f"of arrays shaped like the variables, but its shape is {vector.shape}."
            )
        return self._products.product(vector)

    def top_eigenvalues(
        self,
        k: int = 1,
        *,
        method: str = "lanczos",
        tolerance: float = 1e-5,
        max_iterations: Optional[int] = None,
        parts: Parts = None,
        seed: int = 0,
        progress: bool = False,
    ):
        """The k eigenvalues of largest magnitude, with their vectors.

        Both methods stop when the estimated relative error of the values is at most
        `tolerance`, and their residuals bound it by 100 times that (for values below a
        hundredth of the largest: relative to that). A warning is logged if they do not
        get there. "lanczos" (with full reorthogonalisation) needs far fewer products,
        but keeps a vector of all weights for each; "power" (power iteration with
        deflation) keeps `k`, and cannot tell values of one magnitude and different
        signs.

        Args:
          k: How many; not more than there are weights.
          method: "lanczos" or "power".
          tolerance: See above.
          max_iterations: Most products: in all for "lanczos" (default 100 + 4 k), for
            each value for "power" (default 1000).
          parts: See the class.
          seed: Of the first vectors.
          progress: Whether to draw a progress bar.

        Returns:
          `Eigenpairs`, or those of each part.

        Raises:
          ValueError: If an argument cannot be, with the errors of `product`.
        """
        if method not in METHODS:
            raise ValueError(
                f"Unknown method {method!r}: choose one of {', '.join(METHODS)}."
            )
        _check_positive(k=k, tolerance=tolerance)
        if max_iterations is not None:
            _check_positive(max_iterations=max_iterations)
        chosen = self._parts_of(parts)
        for part in chosen:
            if k > part.size:
                raise ValueError(
                    f"There are {part.size} eigenvalues"
                    f"{'' if part.name is None else f' in {part.name!r}'}, not {k}."
                )
        find = (
            eigenvalues.by_power_iteration
            if method == "power"
            else eigenvalues.by_lanczos
        )
        most = max_iterations or (1000 if method == "power" else 100 + 4 * k)
        total = most * (k if method == "power" else 1)
        found = []
        for part in chosen:
            with self._progress(progress, min(total, part.size), part):
                found.append(
                    find(
                        self._product_within(part),
                        self._random(part.size, seed, _EIGENVALUES, normal=True),
                        part.size,
                        k,
                        tolerance,
                        most,
                        self._products.dtype,
                    )
                )
        return self._by_name(parts, chosen, found)

    def trace(
        self,
        *,
        tolerance: float = 0.01,
        max_samples: int = 200,
        parts: Parts = None,
        seed: int = 0,
        progress: bool = False,
    ):
        """The trace by Hutchinson's estimator: the mean of v.Hv over random signs v.

        Args:
          tolerance: It ends when the standard error is at most this share of the mean's
            magnitude, for all parts (after 10 samples at least).
          max_samples: It ends after so many in any case.
          parts: See the class. All parts come from the same products.
          seed: Of the random vectors.
          progress: Whether to draw a progress bar.

        Returns:
          A `TraceEstimate`, or one of each part.

        Raises:
          ValueError: If an argument cannot be, with the errors of `product`.
        """
        _check_positive(tolerance=tolerance)
        _check_at_least_two("max_samples", max_samples)
        chosen = self._parts_of(parts)
        values = []
        probes = self._random(self.size, seed, _PROBES)
        with self._progress(progress, max_samples):
            while len(values) < max_samples:
                probe = probes(len(values))
                terms = probe * self._products.product(probe)
                values.append([np.sum(part.of(terms)) for part in chosen])
                estimates = [_estimate(column) for column in zip(*values)]
                if len(values) >= _FEWEST_SAMPLES and all(
                    error <= tolerance * abs(mean) for mean, error, _ in estimates
                ):
                    break
        return self._by_name(parts, chosen, estimates)

    def diagonal(
        self,
        *,
        exact: bool = False,
        samples: int = 100,
        parts: Parts = None,
        seed: int = 0,
        progress: bool = False,
    ):
        """The diagonal: the mean of v * Hv over random signs v, or exactly.

        Args:
          exact: Whether to take one product a weight instead: for small models.
          samples: How many random vectors, at least 2.
          parts: See the class. All parts come from the same products.
          seed: Of the random vectors.
          progress: Whether to draw a progress bar.

        Returns:
          A `DiagonalEstimate`, or one of each part.

        Raises:
          ValueError: If an argument cannot be, with the errors of `product`.
        """
        _check_at_least_two("samples", samples)
        chosen = self._parts_of(parts)
        total, squares = np.zeros(self.size), np.zeros(self.size)
        if exact:
            samples = self.size
            with self._progress(progress, samples):
                for index in range(self.size):
                    unit = np.zeros(self.size)
                    unit[index] = 1.0
                    total[index] = self._products.product(unit)[index]
            errors = squares
        else:
            probes = self._random(self.size, seed, _PROBES)
            with self._progress(progress, samples):
                for number in range(1, samples + 1):
                    probe = probes(number - 1)
                    terms = probe * self._products.product(probe)
                    # Welford's running mean and sum of squared differences.
                    before = terms - total
                    total += before / number
                    squares += before * (terms - total)
            errors = np.sqrt(squares / (samples - 1) / samples)
        found = [
            DiagonalEstimate(part.of(total), part.of(errors), samples)
            for part in chosen
        ]
        return self._by_name(parts, chosen, found)

    def spectral_density(
        self,
        *,
        steps: int = 80,
        samples: int = 8,
        relative_width: float = 0.005,
        parts: Parts = None,
        seed: int = 0,
        progress: bool = False,
    ):
        """The density of the eigenvalues by stochastic Lanczos quadrature.

        Args:
          steps: Of the Lanczos iteration: products for each random vector, which are
            all in memory.
          samples: Random vectors.
          relative_width: Standard deviation of the Gaussian that each node becomes, as
            a share of the range of the nodes.
          parts: See the class.
          seed: Of the random vectors.
          progress: Whether to draw a progress bar.

        Returns:
          A `SpectralDensity`, or one of each part.

        Raises:
          ValueError: If an argument cannot be, with the errors of `product`.
        """
        _check_positive(steps=steps, samples=samples)
        if not 1e-5 <= relative_width < 1:
            raise ValueError(
                f"relative_width must be from 1e-5 to 1, but is {relative_width}."
            )
        chosen = self._parts_of(parts)
        found = []
        for part in chosen:
            probes = self._random(part.size, seed, _DENSITY)
            nodes, weights = [], []
            with self._progress(progress, samples * min(steps, part.size), part):
                for number in range(samples):
                    result = lanczos.tridiagonalize(
                        self._product_within(part),
                        probes(number),
                        min(steps, part.size),
                        basis_dtype=self._products.dtype,
                    )
                    values, vectors = result.eigenpairs()
                    nodes.append(values)
                    weights.append(np.square(vectors[0]) / samples)
            found.append(
                SpectralDensity.build(
                    np.concatenate(nodes), np.concatenate(weights), relative_width
                )
            )
        return self._by_name(parts, chosen, found)

    def _parts_of(self, parts: Parts) -> list[_Part]:
        slices = {
            variable.ref(): where
            for variable, where in zip(self.variables, self._products.slices)
        }

        def part(name, variables):
            unknown = [v for v in variables if v.ref() not in slices]
            if unknown or not variables:
                raise ValueError(
                    "Each of the parts must be a list of variables that the loss is "
                    "differentiated by, but one "
                    + (f"has {unknown[0].name!r}." if unknown else "is empty.")
                )
            return _Part(name, [slices[v.ref()] for v in variables])

        if parts is None:
            return [_Part(None, [slice(0, self.size)])]
        if parts == "variable":
            names = [v.name.rpartition(":")[0] or v.name for v in self.variables]
            if len(set(names)) < len(names):
                names = [f"{name} ({i})" for i, name in enumerate(names)]
            return [part(name, [v]) for name, v in zip(names, self.variables)]
        if parts == "block":
            if not self._blocks:
                raise ValueError(
                    "A loss function has no blocks: give parts as lists of variables."
                )
            return [part(name, block) for name, block in self._blocks.items()]
        if isinstance(parts, str) or not all(
            isinstance(p, (list, tuple)) for p in parts
        ):
            raise ValueError(
                'parts must be None, "block", "variable", or a list of lists of '
                f"variables, but is {parts!r}."
            )
        return [part(number, list(p)) for number, p in enumerate(parts)]

    @staticmethod
    def _by_name(parts: Parts, chosen: Sequence[_Part], found: Sequence[Any]) -> Any:
        if parts is None:
            return found[0]
        if isinstance(parts, str):
            return {part.name: result for part, result in zip(chosen, found)}
        return list(found)

    def _product_within(self, part: _Part) -> Callable[[np.ndarray], np.ndarray]:
        """Products with the part's diagonal block."""
        if part.size == self.size and len(part.slices) == 1:
            return self._products.product
        return lambda vector: part.of(
            self._products.product(part.among(vector, self.size))
        )

    def _random(self, size: int, seed: int, purpose: int, normal: bool = False):
        """A function from a number to its random vector, float64 [size]."""

        def draw(number: int) -> np.ndarray:
            key = keys.fold_in(tf.constant([seed, purpose], tf.int64), number)
            if normal:
                numbers = tf.random.stateless_normal([size], key, alg="philox")
                return numbers.numpy().astype(np.float64)
            bits = tf.random.stateless_uniform([size], key, alg="philox") < 0.5
            return np.where(bits.numpy(), 1.0, -1.0)

        return draw

    @contextlib.contextmanager
    def _progress(self, wanted: bool, total: int, part: Optional[_Part] = None):
        """Draws a bar with a step for each product."""
        if not wanted:
            yield
            return
        name = "" if part is None or part.name is None else f" {part.name}"
        with tqdm.tqdm(total=total, desc=f"Hessian{name}", unit="product") as bar:
            self._products.after_product = bar.update
            try:
                yield
            finally:
                self._products.after_product = None


def hessian_vector_product(model_or_loss_fn, data, vector: Vector, **options) -> Vector:
    """Multiplies the Hessian of a mean loss with a vector.

    Args:
      model_or_loss_fn: A `keras.Model`, a `BlockModel`, a `LearningModel`, or a
        function of a batch giving its mean loss, a scalar.
      data: The examples: arrays (x [n, ...], y int [n]), or a `tf.data.Dataset` or a
        list of such batches.
      vector: [size], a number a weight, or a list of arrays shaped like the variables.
      **options: `loss_fn`, `variables`, `training` and `batch_size`, as of `Hessian`.

    Returns:
      The product in the vector's form, float64.

    Raises:
      UnsuitableModelError, UnsuitableDataError: As of `Hessian`.
      ValueError, NonFiniteError, NoSecondDerivativeError: As of `Hessian.product`.
    """
    return Hessian(model_or_loss_fn, data, **options).product(vector)


def top_eigenvalues(model_or_loss_fn, data, k: int = 1, **options):
    """Finds the k eigenvalues of largest magnitude of the Hessian of a mean loss.

    Args:
      model_or_loss_fn: As of `hessian_vector_product`.
      data: As of `hessian_vector_product`.
      k: How many.
      **options: `loss_fn`, `variables`, `training` and `batch_size`, as of `Hessian`;
        `method` ("lanczos" or "power"), `tolerance` (the values' relative error,
        1e-5), `max_iterations`, `parts`, `seed` and `progress`, as of its method.

    Returns:
      `Eigenpairs`: values, float64 [k], and vectors, float64 [k, size]; or those of
      each of the `parts`.

    Raises:
      ValueError: If an argument cannot be, with the errors of
        `hessian_vector_product`.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).top_eigenvalues(k, **own)


def trace(model_or_loss_fn, data, **options):
    """Estimates the trace of the Hessian of a mean loss.

    Args:
      model_or_loss_fn: As of `hessian_vector_product`.
      data: As of `hessian_vector_product`.
      **options: `loss_fn`, `variables`, `training` and `batch_size`, as of `Hessian`;
        `tolerance` (the standard error, as a share of the trace, 0.01), `max_samples`
        (200 random vectors), `parts`, `seed` and `progress`, as of its method.

    Returns:
      A `TraceEstimate`: mean and standard error, floats, and the number of samples;
      or one of each of the `parts`.

    Raises:
      ValueError: If an argument cannot be, with the errors of
        `hessian_vector_product`.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).trace(**own)


def diagonal(model_or_loss_fn, data, **options):
    """Computes the diagonal of the Hessian of a mean loss, estimated or exact.

    Args:
      model_or_loss_fn: As of `hessian_vector_product`.
      data: As of `hessian_vector_product`.
      **options: `loss_fn`, `variables`, `training` and `batch_size`, as of `Hessian`;
        `exact` (a product a weight), `samples` (100 random vectors), `parts`, `seed`
        and `progress`, as of its method.

    Returns:
      A `DiagonalEstimate`: values and standard errors, float64 [size], and the number
      of samples; or one of each of the `parts`.

    Raises:
      ValueError: If an argument cannot be, with the errors of
        `hessian_vector_product`.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).diagonal(**own)


def spectral_density(model_or_loss_fn, data, **options):
    """Estimates the density of the eigenvalues of the Hessian of a mean loss.

    Args:
      model_or_loss_fn: As of `hessian_vector_product`.
      data: As of `hessian_vector_product`.
      **options: `loss_fn`, `variables`, `training` and `batch_size`, as of `Hessian`;
        `steps` (80 of Lanczos for each random vector), `samples` (8 of them),
        `relative_width` (0.005), `parts`, `seed` and `progress`, as of its method.

    Returns:
      A `SpectralDensity`: the grid and the density there, float64 [points]; or one of
      each of the `parts`.

    Raises:
      ValueError: If an argument cannot be, with the errors of
        `hessian_vector_product`.
    """
    options, own = _split(options)
    return Hessian(model_or_loss_fn, data, **options).spectral_density(**own)


def _split(options: dict) -> tuple[dict, dict]:
    """The options of `Hessian`, and the others."""
    names = ("loss_fn", "variables", "training", "batch_size")
    ours = {name: options[name] for name in names if name in options}
    return ours, {name: options[name] for name in options if name not in ours}


def _check_positive(**arguments) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, but is {value}.")


def _check_at_least_two(name: str, value: int) -> None:
    if value < 2:
        raise ValueError(f"{name} must be at least 2, but is {value}.")


def _estimate(values: Sequence[float]) -> TraceEstimate:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return TraceEstimate(float(np.mean(values)), float(error), len(values))
