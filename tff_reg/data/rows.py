"""Examples or labels: an array, or a dict or tuple of arrays, of the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg.lazy import np, tree


def count(arrays: Any) -> int:
    """Returns the number of rows."""
    return len(tree.flatten(arrays)[0])


def take(arrays: Any, rows: Any) -> Any:
    """Returns some rows of each array."""
    return tree.map_structure(lambda each: each[rows], arrays)


def join(parts: Sequence[Any]) -> Any:
    """Returns the rows of several, one after the other."""
    return tree.map_structure(lambda *each: np.concatenate(each), *parts)


def kinds(arrays: Any) -> Any:
    """Returns the data type and the shape of a row of each array, as texts."""
    return tree.map_structure(lambda each: f"{each.dtype} {each.shape[1:]}", arrays)


def same_count(*arrays: Any) -> bool:
    """Whether all arrays have the same rows, at least one."""
    sizes = {each.shape[:1] for each in tree.flatten(arrays)}
    return len(sizes) == 1 and sizes.isdisjoint({(), (0,)})


def are_classes(labels: Any) -> bool:
    """Whether labels are whole numbers [n], which are those of classes."""
    is_one = hasattr(labels, "dtype") and labels.ndim == 1
    return is_one and labels.dtype.kind in "iub"
