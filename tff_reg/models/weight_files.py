"""Weights from a file for a model's variables: by name, else by the layers' order.

The files are ours (`final_weights.npz`), Keras's (`.keras`, `.weights.h5`, `.h5`), and
`.npz` of any names, such as those of a PyTorch `state_dict`. Parts of a name end at "/"
or "."; the last part is the variable's role, which libraries call differently.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_reg.lazy import h5py, np
from tff_reg.settings import SettingError

# The setting that names a file.
SETTING = "initial_weights"
SUFFIXES = (".npz", ".keras", ".h5")
_ROLES = {
    **dict.fromkeys(("weight", "embeddings", "depthwise_kernel"), "kernel"),
    **dict.fromkeys(("recurrent_kernel", "pointwise_kernel"), "second_kernel"),
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_OF_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
_KNOWN = ("kernel", "second_kernel", *_OF_NORM)
# Axes of PyTorch's kernels in TensorFlow's order, by rank; of depthwise kernels last.
_OF_PYTORCH = {2: [(1, 0)], 3: [(2, 1, 0)], 4: [(2, 3, 1, 0), (2, 3, 0, 1)]}


def read(path: str) -> dict[str, Any]:
    """Returns a file's arrays by name.

    Raises:
      SettingError: If it cannot be read, or has numbers that are not finite.
    """
    try:
        if path.endswith(".npz"):
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        elif path.endswith(".keras"):
            with zipfile.ZipFile(path) as whole:
                arrays = dict(_of_h5(io.BytesIO(whole.read("model.weights.h5"))))
        else:
            arrays = dict(_of_h5(path))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        why = f"it cannot be read ({str(error).splitlines()[0]})."
        raise SettingError(SETTING, path, why) from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            why = f"its array {name} has numbers that are not finite."
            raise SettingError(SETTING, path, why)
    return arrays


def _of_h5(file: Any) -> Iterator[tuple[str, Any]]:
    """Yields the arrays in one of Keras's HDF5 files with names as in a model."""
    with h5py.File(file) as whole:
        legacy = whole.get("model_weights", whole)
        for layer in legacy.attrs.get("layer_names", ()):
            group = legacy[_text(layer)]
            for name in map(_text, group.attrs["weight_names"]):
                yield name, group[name][()]
        groups: list[tuple[str, Any]] = []
        whole.visititems(lambda name, item: groups.append((name, item)))
        # Keras 3 numbers layers of a kind, and a layer's weights.
        for name, group in sorted(groups, key=lambda pair: _natural(pair[0])):
            if name.endswith("vars") and len(group):
                arrays = [group[str(n)][()] for n in range(len(group))]
                roles = _roles_of([array.ndim for array in arrays])
                for role, array in zip(roles, arrays):
                    yield f"{_text(group.attrs['name'])}/{role}", array


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _natural(name: str) -> list[Any]:
    """Returns a key that sorts numbers in a name by their value."""
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]


def _roles_of(ranks: Sequence[int]) -> list[str]:
    """Returns the roles of a layer's weights of these ranks, in Keras's order."""
    if max(ranks) == 1:  # A norm, which may lack its scale.
        return [*(_OF_NORM[1:] if len(ranks) == 3 else _OF_NORM), *map(str, ranks[4:])]
    has_two = len(ranks) > 1 and ranks[0] == ranks[1]  # A cell, a separable layer.
    kernels = ["kernel", "second_kernel"] if has_two else ["kernel"]
    return [*kernels, "beta", *map(str, ranks)][: len(ranks)]


def fit(
    path: str, shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Any], list[str]]:
    """Reads the arrays of a file that fit a model's variables.

    Args:
      path: The file.
      shapes: The variables' shapes by name, in order.

    Returns:
      The arrays by the variables' names, and a report: what fitted, what did not.

    Raises:
      SettingError: If the file cannot be read, or nothing fits.
    """
    stored = read(path)
    pairs = _by_name(shapes, stored)
    named = len(pairs)
    taken = {*pairs.values()}
    pairs |= _by_order(
        {name: shape for name, shape in shapes.items() if name not in pairs},
        {name: value for name, value in stored.items() if name not in taken},
    )
    if not pairs:
        first, other = (", ".join(list(each)[:3]) for each in (stored, shapes))
        why = (
            f"nothing in it ({first}, ...) fits the model's weights ({other}, ...) by"
            " name or by shape; give a file of this network."
        )
        raise SettingError(SETTING, path, why)
    values = {o: _shaped(stored[t], t, o, shapes[o]) for o, t in pairs.items()}
    report = f"{len(values)} of {len(shapes)} weights are from {os.path.basename(path)}"
    report += f", {named} by name, {len(values) - named} by the order of layers"
    missing = [name for name in shapes if name not in pairs]
    unused = [name for name in stored if name not in pairs.values()]
    return values, [
        f"{report}{_named('; without one', missing)}"
        f"{_named('; left out of the file', unused)}"
    ]


def _named(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {', '.join(names[:3])}{more}" if names else ""


def _key(name: str, rank: int) -> tuple[str, ...]:
    *parts, last = name.split(":")[0].replace(".", "/").split("/")
    is_scale = last == "weight" and rank == 1
    return *parts, "gamma" if is_scale else _ROLES.get(last, last)


def _by_name(shapes: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    """Pairs variables with the only array of the same name, or ending of a name."""
    theirs = {name: _key(name, value.ndim) for name, value in stored.items()}
    pairs: dict[str, str] = {}
    for name, shape in shapes.items():
        own = _key(name, len(shape))
        same = [t for t, key in theirs.items() if key == own]
        same = same or [t for t, key in theirs.items() if _end_alike(key, own)]
        if (
            len(same) == 1
            and _shaped(stored[same[0]], same[0], name, shape) is not None
        ):
            pairs[name] = same[0]
    taken = [*pairs.values()]
    return {name: each for name, each in pairs.items() if taken.count(each) == 1}


def _end_alike(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    count = min(len(first), len(second))
    return count > 1 and first[-count:] == second[-count:]


def _by_order(shapes: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    """Pairs all arrays in order, else those of alike layers; a last one may differ."""

    def fits(own: str, other: str) -> bool:
        return _shaped(stored[other], other, own, shapes[own]) is not None

    if len(shapes) == len(stored) and all(map(fits, shapes, stored)):
        return dict(zip(shapes, stored))
    pairs: dict[str, str] = {}
    ours = _layers({name: len(shape) for name, shape in shapes.items()})
    theirs = _layers({name: value.ndim for name, value in stored.items()})
    for kind, own in ours.items():
        others = theirs.get(kind, [])
        both = [[*zip(*each)] for each in zip(own, others)]
        if len(own) == len(others) and all(
            fits(*p) for each in both[:-1] for p in each
        ):
            pairs.update(pair for each in both for pair in each if fits(*pair))
    return pairs


def _layers(ranks: Mapping[str, int]) -> dict[Any, list[list[str]]]:
    """Returns the names of each layer's weights by role, by their roles and ranks."""
    layers: dict[Any, dict[str, str]] = {}
    for name, rank in ranks.items():
        *layer, role = _key(name, rank)
        if role in _KNOWN:
            layers.setdefault(tuple(layer), {})[role] = name
    kinds: dict[Any, list[list[str]]] = {}
    for own in layers.values():
        kind = tuple((role, ranks[own[role]]) for role in sorted(own))
        kinds.setdefault(kind, []).append([own[role] for role, _ in kind])
    return kinds


def _shaped(
    array: Any, theirs: str, ours: str, shape: Sequence[int]
) -> Optional[np.ndarray]:
    """Returns an array in the layout of a variable; None if its shape does not fit."""
    axes = [tuple(range(array.ndim))]
    if theirs.endswith("weight") and not ours.endswith("embeddings"):
        axes = _OF_PYTORCH.get(array.ndim, axes)
    fitting = (array.transpose(each) for each in axes)
    return next((each for each in fitting if each.shape == tuple(shape)), None)
