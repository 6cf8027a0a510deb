"""The eigenvalues of largest magnitude of a symmetric matrix, from products with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from absl import logging

from tff_reg.analysis import lanczos
from tff_reg.analysis.estimates import Eigenpairs
from tff_reg.lazy import np

# The error of an eigenvalue below this share of the largest is relative to this share.
_SMALL = 0.01


class _Estimates:
    """Estimates of the eigenvalues of largest magnitude from a tridiagonal matrix."""

    values: np.ndarray
    vectors: np.ndarray
    errors: np.ndarray

    def update(self, result: lanczos.Tridiagonal, k: int, tolerance: float) -> bool:
        """Computes the estimates; returns whether they are accurate enough."""
        values, vectors = result.eigenpairs()
        top = np.argsort(-np.abs(values), kind="stable")[:k]
        residuals = np.abs(result.off_diagonal[-1] * vectors[-1, top])
        gaps = np.abs(values[top, np.newaxis] - values)
        gaps[np.arange(k), top] = np.inf
        gaps = np.min(gaps, axis=1)
        self.values, self.vectors = values[top], vectors[:, top]
        self.errors = residuals * np.minimum(1.0, residuals / np.maximum(gaps, 1e-300))
        scales = np.maximum(np.abs(self.values), _SMALL * abs(self.values[0]))
        allowed = tolerance * scales
        return bool(np.all((self.errors <= allowed) & (residuals <= 100 * allowed)))


def largest(
    product: Callable[[np.ndarray], np.ndarray],
    random: Callable[[int], np.ndarray],
    size: int,
    k: int,
    tolerance: float,
    most: int,
    dtype: np.dtype,
) -> Eigenpairs:
    """Finds eigenvalues by Lanczos iteration with full reorthogonalisation.

    `random(i)` is the i-th random vector [size], `most` the largest number of products
    of an iteration, `dtype` that of the stored vectors. An iteration can miss copies of
    a multiple eigenvalue, so others look for larger ones in the rest of the space.

    Logs a warning if the eigenvalues are less accurate than `tolerance`.
    """
    numbers = itertools.count()

    def iterate(count: int, within: Callable = lambda v: v, dimensions: int = size):
        starts = (within(random(number)) for number in numbers)
        multiply = lambda v: within(product(within(v)))  # noqa: E731
        return _by_lanczos(multiply, starts, dimensions, count, tolerance, most, dtype)

    found = iterate(k)
    while 1 < k < size:
        basis = found.vectors
        other = iterate(1, lambda v, b=basis: v - b.T @ (b @ v), size - k)
        products = found.products + other.products
        smallest = abs(found.values[-1])
        if abs(other.values[0]) <= (1 + 10 * tolerance) * smallest:
            found.products = products
            break
        found = Eigenpairs.build(
            [*found.values[:-1], *other.values],
            [*found.vectors[:-1], *other.vectors],
            [*found.errors[:-1], *other.errors],
            products,
        )
    return found


def _by_lanczos(
    product: Callable[[np.ndarray], np.ndarray],
    starts: Iterator[np.ndarray],
    size: int,
    k: int,
    tolerance: float,
    most: int,
    dtype: np.dtype,
) -> Eigenpairs:
    """Finds eigenvalues by one iteration, in a space of `size` dimensions."""
    found = _Estimates()

    def is_done(result: lanczos.Tridiagonal) -> bool:
        steps = result.steps
        # After hundreds of steps a check costs as much as a product: check less often.
        if steps < k or (steps % (1 + steps // 32) and steps < min(most, size)):
            return False
        is_accurate = found.update(result, k, tolerance)
        # 2 k steps at least, so that eigenvalues next to the top k are known, too.
        return steps >= min(2 * k, size) and is_accurate

    result = lanczos.tridiagonalize(
        product,
        next(starts),
        min(max(most, k), size),
        basis_dtype=dtype,
        stop=is_done,
        another_start=lambda: next(starts),
    )
    if not is_done(result):
        logging.warning(
            "The top %d Hessian eigenvalues are less accurate than tolerance after %d "
            "products (estimated errors up to %.1e): raise max_iterations.",
            k,
            result.steps,
            np.max(found.errors),
        )
    expanded = [result.expand(column) for column in found.vectors.T]
    return Eigenpairs.build(
        found.values,
        [vector / np.linalg.norm(vector) for vector in expanded],
        found.errors,
        result.steps,
    )
