"""The class of `SUBJECT`, which each benchmark of `bin/bench` defines.

A new subject is a new file; `bin/bench` finds it, with its flags and its help.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

import benchmarks
from tff_reg import tables


class RefusedError(ValueError):
    """Raised when a measurement is impossible; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """Something that can be measured, under the name of its module.

    Attributes:
      help: Its part of `bin/bench --help`: the command, then the measurement and its
        duration.
      run: Called with the flags; measures, then calls `finish`. It raises
        `RefusedError` before it measures anything.
      define_flags: Adds flags beside `--quick` and `--json`.
    """

    help: str
    run: Callable[[flags.FlagValues], None]
    define_flags: Callable[[flags.FlagValues], None] = lambda given: None


def find() -> dict[str, Subject]:
    """All subjects by name; imports their files, but neither NumPy nor TensorFlow."""
    names = [
        module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if not module.ispkg
    ]
    modules = [importlib.import_module(f"benchmarks.{name}") for name in names]
    return {name: module.SUBJECT for name, module in zip(names, modules)}


def say(line: str) -> None:
    """Prints a line at once, to show progress."""
    print(line, flush=True)


def to_markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of a Markdown table; a row maps column heads to cells."""
    return tables.to_markdown({head: [row[head] for row in rows] for head in rows[0]})


def finish(
    given: flags.FlagValues, rows: Sequence[Mapping[str, Any]], lines: Sequence[str]
) -> None:
    """Prints the results, and writes them to the file of `--json`.

    Args:
      given: The flags.
      rows: The results as JSON values.
      lines: The lines of a table with the same results.
    """
    print()
    print(*lines, sep="\n")
    if given.json:
        text = json.dumps(rows, indent=2) + "\n"
        pathlib.Path(given.json).write_text(text, encoding="utf-8")
    print()
