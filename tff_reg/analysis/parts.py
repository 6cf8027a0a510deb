"""The weights of a Hessian's diagonal blocks, and results by block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tff_reg.lazy import np

Parts = Union[None, str, Sequence[Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Part:
    """The weights of one diagonal block.

    Attributes:
      name: Name of a block or variable, index of a list, or None for all weights.
      slices: The positions of the weights in a vector of all weights.
    """

    name: Any
    slices: Sequence[slice]

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(where.stop - where.start for where in self.slices)

    def of(self, vector: np.ndarray) -> np.ndarray:
        """Returns the part's entries of a vector of all weights."""
        return np.concatenate([vector[where] for where in self.slices])

    def among(self, part: np.ndarray, size: int) -> np.ndarray:
        """Returns a vector of all weights [size] with zeros outside the part."""
        vector = np.zeros(size)
        begin = 0
        for where in self.slices:
            end = begin + where.stop - where.start
            vector[where] = part[begin:end]
            begin = end
        return vector


def choose(
    parts: Parts,
    variables: Sequence[Any],
    names: Sequence[str],
    slices: Sequence[slice],
    blocks: Mapping[str, Sequence[Any]],
) -> list[Part]:
    """Returns the parts that the argument `parts` of `hessian.Hessian` selects."""
    places = {variable.ref(): where for variable, where in zip(variables, slices)}

    def part(name, members):
        unknown = [v for v in members if v.ref() not in places]
        if unknown or not members:
            raise ValueError(
                "Each of the parts must be a list of variables that the loss is "
                "differentiated by, but one "
                + (f"has {unknown[0].name!r}." if unknown else "is empty.")
            )
        return Part(name, [places[v.ref()] for v in members])

    if parts is None:
        return [Part(None, [slice(0, slices[-1].stop)])]
    if parts == "variable":
        if len(set(names)) < len(names):
            names = [f"{name} ({i})" for i, name in enumerate(names)]
        return [part(name, [v]) for name, v in zip(names, variables)]
    if parts == "block":
        if not blocks:
            raise ValueError(
                "A loss function has no blocks: give parts as lists of variables."
            )
        return [part(name, block) for name, block in blocks.items()]
    if isinstance(parts, str) or not all(isinstance(p, (list, tuple)) for p in parts):
        raise ValueError(
            'parts must be None, "block", "variable", or a list of lists of '
            f"variables, but is {parts!r}."
        )
    return [part(number, list(p)) for number, p in enumerate(parts)]


def by_name(parts: Parts, chosen: Sequence[Part], found: Sequence[Any]) -> Any:
    """Returns results in the form of `parts`: one result, a dictionary or a list."""
    if parts is None:
        return found[0]
    if isinstance(parts, str):
        return {part.name: result for part, result in zip(chosen, found)}
    return list(found)
