"""Given arrays for a model's variables: by name, else by the layers' order.

They are those of a PyTorch `state_dict`, or of a file: ours (`final_weights.npz`),
Keras's (`.keras`, `.weights.h5`, `.h5`), and `.npz` of any names. Keras itself reads
its files for a model of the same structure, if `load` is given. Parts of a name end at
"/" or "."; the last part is the variable's role, which libraries call differently.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
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
_OF_PYTORCH: dict[int, Any] = {
    2: [(1, 0)],
    3: [(2, 1, 0), (2, 0, 1)],
    4: [(2, 3, 1, 0), (2, 3, 0, 1)],
    5: [(2, 3, 4, 1, 0)],
}
# What PyTorch's norms have beside their weights.
_COUNTER = "num_batches_tracked"
# What Keras's files have beside the layers' weights.
_NO_LAYER = re.compile("^(optimizer|metrics)/|/seed_generator")


def read(path: str) -> tuple[dict[str, Any], set[str]]:
    """Returns a file's arrays by name, and the names whose order it does not say.

    Raises:
      SettingError: If it cannot be read, or has numbers that are not finite.
    """
    unordered: set[str] = set()
    try:
        if path.endswith(".npz"):
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        elif path.endswith(".keras"):
            with zipfile.ZipFile(path) as whole:
                arrays, unordered = _of_h5(io.BytesIO(whole.read("model.weights.h5")))
        else:
            arrays, unordered = _of_h5(path)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        why = f"it cannot be read ({str(error).splitlines()[0]})."
        raise SettingError(SETTING, path, why) from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            why = f"its array {name} has numbers that are not finite."
            raise SettingError(SETTING, path, why)
    return arrays, unordered


def _of_h5(file: Any) -> tuple[dict[str, Any], set[str]]:
    """Reads one of Keras's HDF5 files, with names as in a model."""
    arrays: dict[str, Any] = {}
    # Names by their layers' ranks and by the layers' paths without numbers.
    kinds: dict[Any, dict[str, list[str]]] = {}
    with h5py.File(file) as whole:
        legacy = whole.get("model_weights", whole)
        for layer in legacy.attrs.get("layer_names", ()):
            group = legacy[_text(layer)]
            for name in map(_text, group.attrs["weight_names"]):
                arrays[name] = group[name][()]
        paths: list[str] = []
        whole.visit(paths.append)
        # Keras 3 numbers the layers of a class, and a layer's weights.
        for path in sorted(paths, key=_natural):
            if path.rpartition("/")[2] != "vars" or _NO_LAYER.search(path):
                continue
            values = [whole[path][str(n)][()] for n in range(len(whole[path]))]
            ranks = tuple(array.ndim for array in values)
            layer = _layer_of(whole, path)
            names = [f"{layer}/{role}" for role in _roles_of(path, ranks)]
            arrays.update(zip(names, values))
            same = kinds.setdefault(ranks, {})
            same.setdefault(re.sub(r"_\d+", "", path), []).extend(names)
    return arrays, {
        name
        for same in kinds.values()
        if len(same) > 1
        for names in same.values()
        for name in names
    }


def _layer_of(whole: Any, path: str) -> str:
    """Returns a layer's name, after those of the models and layers around it."""
    parts, found = path.split("/")[:-1], []
    for count, part in enumerate(parts, start=1):
        group = whole.get("/".join([*parts[:count], "vars"]))
        if group is not None:
            found.append(_text(group.attrs.get("name", part)))
    return "/".join(found)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _natural(name: str) -> list[Any]:
    """Returns a key that sorts numbers in a name by their value."""
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]


def _roles_of(path: str, ranks: Sequence[int]) -> list[str]:
    """Returns the roles of a layer's weights of these ranks; numbers if unknown."""
    if max(ranks, default=0) > 1:
        has_two = len(ranks) > 1 and ranks[0] == ranks[1]  # A cell, a separable layer.
        kernels = ["kernel", "second_kernel"] if has_two else ["kernel"]
        known = [kernels, [*kernels, "beta"]]
    else:  # A norm; of those without scale or centre the file does not say which.
        known = [[*_OF_NORM]]
        known += [] if "batch_normalization" in path else [[*_OF_NORM[:2]]]
    numbers = [*map(str, range(len(ranks)))]
    return next((each for each in known if len(each) == len(ranks)), numbers)


@dataclasses.dataclass(frozen=True)
class Fit:
    """What of given arrays fits a model; as text a line that says it.

    Attributes:
      values: The arrays in the layout of the variables, by the variables' names.
      pairs: The names of the given arrays, by the variables' names.
      by_name: How many are found by name; the others are by the order of layers.
      missing: The variables without an array.
      unused: The given arrays that are left out.
    """

    values: Mapping[str, Any] = dataclasses.field(repr=False)
    pairs: Mapping[str, str]
    by_name: int
    missing: Sequence[str]
    unused: Sequence[str]

    def of(self, source: str) -> str:
        """Returns the line, of arrays from a source."""
        count, total = len(self.values), len(self.values) + len(self.missing)
        return (
            f"{count} of {total} weights are from {source}, {self.by_name} by name,"
            f" {count - self.by_name} by the order of layers"
            f"{_named('; without one', self.missing)}"
            f"{_named('; left out', self.unused)}"
        )

    def __str__(self) -> str:
        return self.of("the state_dict")


def from_file(
    path: str,
    *of_model: Any,
    load: Callable[[], Optional[dict[str, Any]]] = dict,
) -> tuple[dict[str, Any], list[str]]:
    """Reads the arrays of a file that fit a model's variables.

    Args:
      path: The file.
      *of_model: As in `fit`.
      load: Reads the file as Keras does; nothing if Keras cannot.

    Returns:
      The arrays by the variables' names, and a report: what fitted, what did not.

    Raises:
      SettingError: If the file cannot be read, or no kernel fits.
    """
    stored, unordered = read(path)
    name, total = os.path.basename(path), len(of_model[0])
    if len(stored) == total and (loaded := load()):
        said = f"{len(loaded)} of {total} weights are from {name}, as Keras reads it"
        return loaded, [said]
    try:
        found = fit(stored, *of_model, unordered=unordered)
    except ValueError as error:
        raise SettingError(SETTING, path, str(error)) from None
    return {**found.values}, [found.of(name)]


def fit(
    stored: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    flattened: Mapping[str, Optional[Sequence[int]]],
    kinds: Collection[str] = (),
    *,
    unordered: Collection[str] = (),
) -> Fit:
    """Finds the arrays that fit a model's variables.

    Args:
      stored: The arrays by name.
      shapes: The variables' shapes by name, in order.
      flattened: The shapes [height, width, channels] before the flattening of the
        kernels and norms behind one; None if PyTorch's order of it is not known.
      kinds: Names that Keras gives to layers without one, but for their numbers.
      unordered: Names of arrays whose order is not known.

    Raises:
      ValueError: If no kernel fits.
    """
    stored = {n: each for n, each in stored.items() if not n.endswith(_COUNTER)}
    by_name = _by_name(shapes, stored, kinds)
    taken = {*by_name.values()} | {*unordered}
    pairs = by_name | _by_order(
        {name: shape for name, shape in shapes.items() if name not in by_name},
        {name: value for name, value in stored.items() if name not in taken},
    )
    # PyTorch flattens the channels first.
    behind = flattened if any(name.endswith("weight") for name in stored) else {}
    pairs = {o: t for o, t in pairs.items() if behind.get(o, ()) is not None}
    if not any(len(shapes[own]) > 1 for own in pairs):  # Biases alone are no start.
        first, other = (", ".join(list(each)[:3]) for each in (stored, shapes))
        raise ValueError(
            f"no kernel in it ({first}, ...) fits the model's weights ({other}, ...) by"
            " name or by shape; give a file of this network."
        )
    values: dict[str, Any] = {
        o: _shaped(stored[t], t, o, shapes[o]) for o, t in pairs.items()
    }
    for own in pairs.keys() & behind.keys():
        if shape := behind[own]:
            rows = values[own].reshape(shape[2], shape[0], shape[1], -1)
            values[own] = np.moveaxis(rows, 0, 2).reshape(shapes[own])
    return Fit(
        values,
        pairs,
        by_name=len(pairs.keys() & by_name.keys()),
        missing=[name for name in shapes if name not in pairs],
        unused=[name for name in stored if name not in pairs.values()],
    )


def _named(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {', '.join(names[:3])}{more}" if names else ""


def _key(name: str, rank: int, kinds: Collection[str] = ()) -> tuple[str, ...]:
    *parts, last = name.split(":")[0].replace(".", "/").split("/")
    is_scale = last == "weight" and rank == 1
    # Keras numbers layers without a name by what was made before.
    stems = [re.sub(r"_\d+$", "", part) for part in parts]
    parts = [stem if stem in kinds else part for part, stem in zip(parts, stems)]
    return *parts, "gamma" if is_scale else _ROLES.get(last, last)


def _by_name(
    shapes: Mapping[str, Any], stored: Mapping[str, Any], kinds: Collection[str]
) -> dict[str, str]:
    """Pairs variables with the only array of the same name, or ending of a name."""
    theirs = {name: _key(name, value.ndim, kinds) for name, value in stored.items()}
    pairs: dict[str, str] = {}
    for name, shape in shapes.items():
        own = _key(name, len(shape), kinds)
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

    if len(shapes) == len(stored) and all(
        fits(own, other) and _roles_fit(own, other, len(shapes[own]))
        for own, other in zip(shapes, stored)
    ):
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
        elif others and max(rank for _, rank in kind) > 2:
            return {}  # Of another order of the convolutions, and so of the norms.
    return pairs


def _roles_fit(own: str, other: str, rank: int) -> bool:
    roles = {_key(own, rank)[-1], _key(other, rank)[-1]}
    return len(roles) == 1 or not roles <= {*_KNOWN}


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
    fitting = [array.transpose(each) for each in axes]
    *_, channels, filters = (0, *fitting[-1].shape)[-2:]
    if filters == 1 and channels == math.prod(shape[-2:]):
        # Of a depthwise kernel, whose filters of a channel follow one another.
        fitting.append(fitting[-1].reshape([*fitting[-1].shape[:-2], *shape[-2:]]))
    return next((each for each in fitting if each.shape == tuple(shape)), None)
