"""Studies: comparisons with claims that are written down before they are run.

`bin/study NAME` carries out a study of this package, or of a TOML file: its question,
the flags of `bin/compare`, and its claims (`new_study.toml` shows all keys).

>>> from tff_reg.tasks import studies
>>> studies.read("digits_dir01").claims[0].than
'fedavg'

TensorFlow is not loaded here.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.resources
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

from tff_reg import tables
from tff_reg.settings import SettingError, near_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = ("better", "worse")
_TEMPLATE = "new_study"
_SUFFIX = ".toml"
# Of a claim's keys that are no texts.
_KINDS: Mapping[str, tuple[type, str]] = {
    "each": (bool, "true or false"),
    "methods": (list, "a list of texts, in brackets"),
    "where": (list, "a list of texts, in brackets"),
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about methods, each of which is tested.

    Attributes:
      says: The claim in a sentence.
      than: The method that others are compared with, seed by seed.
      methods: The methods that it is about; all others if empty.
      expected: One of `EXPECTED`.
      quantity: What is compared, as in `bin/compare --columns`.
      where: The headings of the settings whose mean it is about; all if empty.
      each: Whether it is tested in each of these settings by itself.
    """

    says: str
    than: str
    methods: tuple[str, ...] = ()
    expected: str = EXPECTED[0]
    quantity: str = "score"
    where: tuple[str, ...] = ()
    each: bool = False


@dataclasses.dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
      name: Its name, that of its file.
      text: The file's text.
      question: What it asks.
      written: The day on which it was written down.
      flags: The flags of `bin/compare`, by name.
      claims: What it expects.
    """

    name: str
    text: str
    question: str
    written: datetime.date
    flags: Mapping[str, Any]
    claims: tuple[Claim, ...]


def names() -> list[str]:
    """Returns the names of the studies of this package."""
    files = importlib.resources.files(__package__ or "").iterdir()
    found = {each.name.removesuffix(_SUFFIX) for each in files if _SUFFIX in each.name}
    return sorted(found - {_TEMPLATE})


def read(name: str) -> Study:
    """Reads a study of this package, or a file NAME.toml.

    Raises:
      SettingError: If there is none, or the file has a mistake.
    """
    path: Any = pathlib.Path(name)
    if not name.endswith(_SUFFIX):
        if name not in names():
            near = near_names(name, names())
            why = f"there is no such study{near}; bin/study --list has all."
            raise SettingError("study", name, why)
        path = importlib.resources.files(__package__ or "") / f"{name}{_SUFFIX}"
    try:
        text = path.read_text("utf-8")
        return _study(path.name.removesuffix(_SUFFIX), text, tomllib.loads(text))
    except OSError as error:
        raise SettingError("study", name, f"{error.strerror}.") from error
    except (ValueError, TypeError) as error:  # TOML's errors are ValueErrors.
        raise SettingError("study", name, f"{error}") from error


def published(name: str, file: str) -> list[dict[str, str]]:
    """Returns the rows of a study's file that this package has, such as `values.csv`.

    Without a name of a study they are those of a file of all studies, `map.csv`. Empty
    if there is none.
    """
    folder = importlib.resources.files(__package__ or "") / "results"
    path = folder.joinpath(*filter(None, (name, file)))
    return tables.from_csv(path.read_text("utf-8")) if path.is_file() else []


def template() -> str:
    """Returns the text of a study to fill in."""
    files = importlib.resources.files(__package__ or "")
    return (files / f"{_TEMPLATE}{_SUFFIX}").read_text("utf-8")


def _study(name: str, text: str, given: Mapping[str, Any]) -> Study:
    _check_keys("it", given, ("question", "written", "compare", "claims"))
    flags = dict(given["compare"])
    for key in ("processes", "seeds"):
        if key not in flags:
            raise ValueError(f"[compare] has no {key}.")
    for key, value in flags.items():
        if isinstance(value, (list, dict)):
            raise ValueError(f"[compare]: {key} is a text, as on a command line.")
    if type(given["written"]) is not datetime.date:
        raise ValueError("written is no date; write 2026-11-29, without quotes.")
    if not isinstance(given["claims"], list):
        raise ValueError("claims: write [[claims]], in two pairs of brackets.")
    if given["written"] > datetime.date.today():
        raise ValueError(f"written: {given['written']} is in the future.")
    _check_kinds("it", {"question": given["question"]})
    claims: list[Claim] = []
    for number, each in enumerate(given["claims"], 1):
        where = f"claim {number}"
        fields = dataclasses.fields(Claim)
        no_default = [f.name for f in fields if f.default is dataclasses.MISSING]
        _check_keys(where, each, no_default, [f.name for f in fields])
        _check_kinds(where, each)
        lists = {n: tuple(v) for n, v in each.items() if isinstance(v, list)}
        claims.append(claim := Claim(**{**each, **lists}))
        if claim.expected not in EXPECTED:
            raise ValueError(f"{where}: expected is {' or '.join(EXPECTED)}.")
        if claim.than in claim.methods:
            raise ValueError(f"{where}: {claim.than} is compared with itself.")
        if len({*claim.methods}) < len(claim.methods):
            raise ValueError(f"{where} has a method twice.")
    return Study(name, text, given["question"], given["written"], flags, tuple(claims))


def _check_kinds(where: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        kind, called = _KINDS.get(name, (str, "a text in quotes"))
        if not isinstance(value, kind):
            raise ValueError(f"{where}: {name} is {value!r}, and must be {called}.")


def _check_keys(
    where: str,
    given: Mapping[str, Any],
    must: Collection[str],
    may: Collection[str] = (),
) -> None:
    for name in given:
        if name not in {*must, *may}:
            near = near_names(name, [*must, *may])
            raise ValueError(f"{where} has an unknown key {name}{near}.")
    for name in must:
        if name not in given:
            raise ValueError(f"{where} has no {name}.")
