"""Fixed splits into training and test examples, for data that come without one."""

from __future__ import annotations

from tff_reg.lazy import np


def by_share(
    groups: np.ndarray, num_test: int, *, seed: int, units: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Splits examples so that every group has its share of both parts.

    The test part is divided among the groups in proportion to their sizes, by largest
    remainders. Within a group, examples are ordered by raw words of a PCG64 generator,
    whose stream NumPy promises never to change, so versions of libraries do not matter.

    >>> import numpy as np
    >>> train, test = by_share(np.array([0, 0, 0, 0, 1, 1]), 3, seed=1)
    >>> len(train), len(test)
    (3, 3)

    Args:
      groups: int [n], numbers >= 0, such as labels.
      num_test: The number of test examples, or of units.
      seed: The same seed gives the same split, in every version.
      units: int [n]; examples of one unit, such as the images of a lesion, stay in one
        part, and the unit's first example decides its group.

    Returns:
      The positions of the training and of the test examples, two ascending int64
      arrays.
    """
    if units is not None:
        _, first, units = np.unique(units, return_index=True, return_inverse=True)
        _, chosen = by_share(groups[first], num_test, seed=seed)
        is_test = np.isin(units, chosen)
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    counts = np.bincount(groups)
    exact = counts * num_test / groups.size
    shares = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(shares - exact, kind="stable")
    shares[by_remainder[: num_test - shares.sum()]] += 1
    words = np.random.PCG64(seed).random_raw(groups.size)
    order = np.argsort(words, kind="stable")
    is_test = np.zeros(groups.size, dtype=bool)
    for group in np.flatnonzero(shares):
        is_test[order[groups[order] == group][: shares[group]]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
