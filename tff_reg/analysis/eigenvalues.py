"""The eigenvalues of largest magnitude of a symmetric matrix, from products with it."""

from __future__ import annotations

from collections.abc import Callable

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

    Logs a warning if the eigenvalues are less accurate than `tolerance`.
    """
    found = _Estimates()

    def is_done(result: lanczos.Tridiagonal) -> bool:
        steps = result.steps
        # After hundreds of steps a check costs as much as a product: check less often.
        if steps < k or (steps % (1 + steps // 32) and steps < min(most, size)):
            return False
        is_accurate = found.update(result, k, tolerance)
        # 2 k steps at least, so that eigenvalues next to the top k are known, too.
        return steps >= min(2 * k, size) and is_accurate

    numbers = iter(range(size))
    result = lanczos.tridiagonalize(
        product,
        random(next(numbers)),
        min(max(most, k), size),
        basis_dtype=dtype,
        stop=is_done,
        another_start=lambda: random(next(numbers)),
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
