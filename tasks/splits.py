"""Fixed splits into training and test examples, for data that come without one."""

from __future__ import annotations

from tff_reg.lazy import np


def by_share(
    groups: np.ndarray, num_test: int, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits so that every group has its share of both parts.

    The test part is shared out over the groups in proportion to their numbers by
    largest remainders. Which examples of a group are taken depends on no library's
    splitter: they are ordered by raw words of a PCG64 generator, whose stream NumPy
    promises never to change.

    Args:
      groups: int [n], numbers >= 0, such as labels.
      num_test: Examples of the test part.
      seed: The same seed gives the same split, in every version.

    Returns:
      Two ascending int64 arrays, training and test positions, together all of them.
    """
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
