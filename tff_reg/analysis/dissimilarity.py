"""Differences between clients: Hessians, gradients, drift.

H_N and H_D are Eqs. 3 and 4 of Mendieta et al., "Local Learning Matters: Rethinking
Data Heterogeneity in Federated Learning" (FedAlign), CVPR 2022: the squared difference
of the norms of two clients' Hessian diagonals, and the cosine between the diagonals,
averaged over all pairs of different clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from tff_reg.lazy import np


class HessianDissimilarity(NamedTuple):
    """Differences between clients' Hessians.

    Attributes:
      norm: H_N, the mean of `norm_pairs`; lower is more alike.
      direction: H_D, the mean of `direction_pairs`; higher is more alike, at most 1.
      norm_pairs: float64 [clients, clients], Eq. 3 of every pair of clients.
      direction_pairs: float64 [clients, clients], Eq. 4 of every pair of clients.
    """

    norm: float
    direction: float
    norm_pairs: np.ndarray
    direction_pairs: np.ndarray


class ClientGradients(NamedTuple):
    """Agreement of clients' gradients or updates.

    Attributes:
      agreement: Mean cosine over all pairs of different clients.
      cosines: float64 [clients, clients].
      norms: float64 [clients].
    """

    agreement: float
    cosines: np.ndarray
    norms: np.ndarray


def hessian_dissimilarity(
    diagonals: Sequence, standard_errors: Optional[Sequence] = None
) -> HessianDissimilarity:
    """Computes H_N and H_D of FedAlign's Eqs. 3 and 4, over the pairs k != j.

    >>> from tff_reg.analysis import hessian_dissimilarity
    >>> found = hessian_dissimilarity([[3.0, 4.0], [8.0, 6.0]])
    >>> found.norm, round(found.direction, 2)
    (25.0, 0.96)

    Args:
      diagonals: For each client the diagonal of its Hessian [size], such as
        `hessian.diagonal` returns.
      standard_errors: For each client the standard errors of an estimated diagonal
        [size]. Noise makes a norm too large; the expected excess is subtracted.
        Estimate each client's diagonal with a different seed: shared random vectors
        would make the clients' noise, and so their Hessians, look alike.

    Returns:
      The `HessianDissimilarity`.

    Raises:
      ValueError: If there are fewer than two clients, sizes differ, or a diagonal is
        zero or smaller than its noise.
    """
    rows = _rows(diagonals, "diagonals")
    squares = np.sum(np.square(rows), axis=1)
    if standard_errors is not None:
        squares = squares - np.sum(np.square(standard_errors), axis=1)
    _check_lengths(squares, "Hessian diagonal")
    norms, cosines = _pairs(rows, np.sqrt(squares))
    return HessianDissimilarity(
        _mean_of_different(norms), _mean_of_different(cosines), norms, cosines
    )


def published_hessian_dissimilarity(traces: Sequence) -> HessianDissimilarity:
    """Computes H_N and H_D as the FedAlign authors' published code does.

    Instead of the diagonals, the code compares one number per parameter tensor, the
    trace of its block. The means are over all ordered pairs and include each client
    paired with itself (0 and 1), so H_D is far nearer to 1 than by Eq. 4.

    >>> from tff_reg.analysis import published_hessian_dissimilarity
    >>> found = published_hessian_dissimilarity([[3.0, 4.0], [8.0, 6.0]])
    >>> found.norm, round(found.direction, 2)
    (12.5, 0.98)

    Args:
      traces: For each client the traces [tensors], such as `hessian.trace` returns with
        parts="variable".

    Returns:
      The `HessianDissimilarity`.

    Raises:
      ValueError: As `hessian_dissimilarity`.
    """
    rows = _rows(traces, "traces")
    squares = np.sum(np.square(rows), axis=1)
    _check_lengths(squares, "list of traces")
    norms, cosines = _pairs(rows, np.sqrt(squares))
    return HessianDissimilarity(
        float(np.mean(norms)), float(np.mean(cosines)), norms, cosines
    )


def gradient_agreement(gradients: Sequence) -> ClientGradients:
    """Computes cosines between clients' gradients at shared weights, or updates.

    For the drift of clients, pass their updates (weights after local training minus
    the global weights): `norms` are then the distances that the clients moved, and
    `agreement` says whether they moved in one direction.

    >>> from tff_reg.analysis import gradient_agreement
    >>> found = gradient_agreement([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    >>> round(found.agreement, 3), found.norms
    (0.467, array([1., 2., 5.]))

    Args:
      gradients: For each client a vector [size], such as `Hessian.gradient` returns.

    Returns:
      The `ClientGradients`.

    Raises:
      ValueError: If there are fewer than two clients, sizes differ, or a vector is 0.
    """
    rows = _rows(gradients, "gradients")
    squares = np.sum(np.square(rows), axis=1)
    _check_lengths(squares, "gradient")
    norms = np.sqrt(squares)
    _, cosines = _pairs(rows, norms)
    return ClientGradients(_mean_of_different(cosines), cosines, norms)


def _rows(vectors: Sequence, name: str) -> np.ndarray:
    rows = [np.asarray(vector, np.float64) for vector in vectors]
    if len(rows) < 2:
        raise ValueError(f"{name} of at least two clients are needed, not {len(rows)}.")
    return np.stack(rows)


def _check_lengths(squares: np.ndarray, name: str) -> None:
    for client, square in enumerate(squares):
        if not square > 0:
            raise ValueError(
                f"The {name} of client {client} (counted from 0) is zero or smaller "
                "than its standard errors: it has no direction."
            )


def _pairs(vectors: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the squared difference of norms and the cosine of every pair."""
    differences = np.square(norms[:, np.newaxis] - norms)
    cosines = vectors @ vectors.T / np.outer(norms, norms)
    np.fill_diagonal(cosines, 1.0)
    return differences, cosines


def _mean_of_different(pairs: np.ndarray) -> float:
    return float(np.mean(pairs[~np.eye(len(pairs), dtype=bool)]))
