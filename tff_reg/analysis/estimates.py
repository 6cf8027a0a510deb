"""Results of Hessian estimators: eigenvalues, trace, diagonal, spectral density."""

from __future__ import annotations

from typing import NamedTuple

from tff_reg.lazy import np

# Widths between the outermost nodes and the grid's ends; grid points per width.
_TAIL_WIDTHS, _POINTS_PER_WIDTH = 6.0, 5.0


class _Eigenpairs(NamedTuple):
    values: np.ndarray
    vectors: np.ndarray


class Eigenpairs(_Eigenpairs):
    """Eigenvalues of largest magnitude with their vectors: `values, vectors = pairs`.

    Attributes:
      values: float64 [k], of descending magnitude.
      vectors: float64 [k, size]; row i belongs to value i and has length 1.
      errors: float64 [k], the estimated errors of the values.
      products: Number of computed Hessian-vector products.
    """

    errors: np.ndarray
    products: int

    @classmethod
    def build(cls, values, vectors, errors, products: int) -> Eigenpairs:
        """Returns the pairs, sorted by magnitude."""
        order = np.argsort(-np.abs(values), kind="stable")
        pairs = cls(np.asarray(values)[order], np.asarray(vectors)[order])
        pairs.errors = np.asarray(errors)[order]
        pairs.products = products
        return pairs


class TraceEstimate(NamedTuple):
    """A trace by Hutchinson's estimator.

    Attributes:
      mean: The estimate.
      standard_error: Standard error of the mean.
      samples: Number of random vectors.
    """

    mean: float
    standard_error: float
    samples: int


class DiagonalEstimate(NamedTuple):
    """The diagonal of a Hessian.

    Attributes:
      values: float64 [size].
      standard_errors: float64 [size]; zeros for the exact diagonal.
      samples: Number of Hessian-vector products.
    """

    values: np.ndarray
    standard_errors: np.ndarray
    samples: int


class _SpectralDensity(NamedTuple):
    grid: np.ndarray
    density: np.ndarray


class SpectralDensity(_SpectralDensity):
    """The distribution of the eigenvalues: `grid, density = spectrum`.

    Attributes:
      grid: float64 [points], equidistant eigenvalues.
      density: float64 [points], the density on the grid; its integral is 1.
      nodes: float64 [n], the nodes of the quadrature for all random vectors.
      weights: float64 [n], the share of the eigenvalues at each node; the sum is 1.
      width: Standard deviation of the Gaussian around each node.
    """

    nodes: np.ndarray
    weights: np.ndarray
    width: float

    @classmethod
    def build(cls, nodes, weights, relative_width: float) -> SpectralDensity:
        """Returns the sum of Gaussians around the nodes.

        Args:
          nodes: float64 [n].
          weights: float64 [n] with the sum 1.
          relative_width: As in `Hessian.spectral_density`.

        Returns:
          The density.
        """
        low, high = float(np.min(nodes)), float(np.max(nodes))
        scale = high - low
        if scale <= 1e-6 * max(abs(low), abs(high)):
            scale = max(abs(low), abs(high)) or 1.0
        width = relative_width * scale
        low, high = low - _TAIL_WIDTHS * width, high + _TAIL_WIDTHS * width
        points = int((high - low) / width * _POINTS_PER_WIDTH)
        grid = np.linspace(low, high, points + 1)
        density = np.zeros_like(grid)
        for node, weight in zip(nodes, weights):
            density += weight * np.exp(-0.5 * np.square((grid - node) / width))
        result = cls(grid, density / (width * np.sqrt(2 * np.pi)))
        result.nodes, result.weights, result.width = nodes, weights, width
        return result
