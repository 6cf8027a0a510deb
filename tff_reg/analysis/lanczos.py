"""The Lanczos iteration for a symmetric matrix, from products with vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Optional

from tff_reg.lazy import np, scipy_linalg


@dataclasses.dataclass
class Tridiagonal:
    """The tridiagonal matrix of the iteration, and its orthonormal basis.

    Attributes:
      diagonal: float64 [steps].
      off_diagonal: float64 [steps]; the last entry leads out of the basis.
      basis: `steps` vectors [size].
    """

    diagonal: list[float]
    off_diagonal: list[float]
    basis: list[np.ndarray]

    @property
    def steps(self) -> int:
        """Order of the matrix."""
        return len(self.diagonal)

    def eigenpairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Computes Ritz values, ascending [steps], and basis vectors [steps, steps]."""
        return scipy_linalg.eigh_tridiagonal(self.diagonal, self.off_diagonal[:-1])

    def expand(self, coefficients: np.ndarray) -> np.ndarray:
        """Returns the float64 vector [size] of coefficients [steps] in the basis."""
        total = np.zeros(self.basis[0].shape)
        for coefficient, vector in zip(coefficients, self.basis):
            total += coefficient * vector
        return total


def tridiagonalize(
    product: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    steps: int,
    *,
    basis_dtype: np.dtype,
    stop: Callable[[Tridiagonal], bool] = lambda result: False,
    another_start: Optional[Callable[[], np.ndarray]] = None,
) -> Tridiagonal:
    """Runs the iteration, keeping the basis orthonormal by full reorthogonalisation."""
    result = Tridiagonal([], [], [])
    vector = start / np.linalg.norm(start)
    while True:
        result.basis.append(vector.astype(basis_dtype))
        image = product(vector)
        result.diagonal.append(float(vector @ image))
        scale = np.linalg.norm(image)
        image = _orthogonalized(image, result.basis)
        norm = float(np.linalg.norm(image))
        is_invariant = norm <= 10 * np.finfo(basis_dtype).eps * max(
            scale, np.max(np.abs(result.diagonal))
        )
        result.off_diagonal.append(0.0 if is_invariant else norm)
        if result.steps >= steps or stop(result):
            return result
        if is_invariant:
            if another_start is None:
                return result
            image = _orthogonalized(another_start(), result.basis)
            norm = float(np.linalg.norm(image))
        vector = image / norm


def _orthogonalized(vector: np.ndarray, basis: list[np.ndarray]) -> np.ndarray:
    # Two passes are enough (Kahan, in Parlett, "The Symmetric Eigenvalue Problem").
    for _ in range(2):
        for other in basis:
            vector = vector - (other @ vector) * other
    return vector
