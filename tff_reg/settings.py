"""Settings: fields of frozen dataclasses that carry their help and their bounds.

>>> import dataclasses
>>> from tff_reg import settings
>>> @dataclasses.dataclass(frozen=True)
... class FedProx:
...     strength: float = settings.setting(1e-4, symbol="mu", help="...", minimum=0)
>>> settings.check(FedProx(strength=-1.0))
Traceback (most recent call last):
tff_reg.settings.SettingError: strength=-1.0: it must be at least 0.

A method's checks, the commands' flags and their help, and the documentation's tables
are made from such fields. This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, TypeVar, Union

T = TypeVar("T")
_METADATA = "tff_reg"
# Tags of settings: on which a run's numbers do not depend; which change a summary only;
# which are paths of files; whose number of rounds is scaled down with all rounds;
NO_EFFECT, SUMMARY, FILE, ROUND = "free", "summary", "file", "round"
# which the first lines of a run say; which `bin/run --help` lists; which name a run or
# add measures to it, and are no part of a protocol;
HEADER, KEY, ASIDE = "header", "key", "aside"
# which compared runs have in common; which are the data and the clients of a run.
COMMON, SETUP = "common", "setup"
# The largest number of characters of a value in an error.
_LONGEST_SHOWN = 200
# The largest int32 and float32: the bounds of settings that name no maximum.
_LARGEST_INT, _LARGEST_FLOAT = 2**31 - 1, float.fromhex("0x1.fffffep+127")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_TRUTHS = {
    **dict.fromkeys(("true", "t", "1"), True),
    **dict.fromkeys(("false", "f", "0"), False),
}


class SettingError(ValueError):
    """Raised when the value of a setting is not allowed.

    Attributes:
      setting: The setting's name.
      value: The given value; None if none was given.
      reason: Why it is not allowed and what to do, such as "it must be at least 0."
    """

    def __init__(self, setting: str, value: Any, reason: str):
        """Makes the error with the message `setting=value: reason`."""
        super().__init__(setting, value, reason)
        self.setting = setting
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.setting}{self.given}: {self.reason}"

    @property
    def given(self) -> str:
        """`=value` as an error shows it, shortened; empty if no value was given."""
        text = "" if self.value is None else f"={as_text(self.value)}"
        return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


# Names in other libraries, for hints: ours, or why there is none.
_OTHER_NAMES = {
    "accuracy": "score",
    "algorithm": "process",
    "alpha": "concentration",
    "clients": "num_clients",
    "dataset": "task",
    "dirichlet": "dirichlet_unbalanced",
    "dirichlet_alpha": "concentration",
    "epochs": "local_epochs",
    "gpu": "devices",
    "gpus": "devices",
    "learning_rate": "client_learning_rate",
    "log_dir": "output_dir",
    "lr": "client_learning_rate",
    "momentum": "client_momentum",
    "mu": "fedprox_strength",
    "num_rounds": "total_rounds",
    "optimizer": "server_optimizer",
    "pretrained": "initial_weights",
    "round": "total_rounds",
    "rounds": "total_rounds",
    "strategy": "process",
    "wd": "client_weight_decay",
    "weight_decay": "client_weight_decay",
}


# What a rule makes of a value that does not apply, in the place of a value: the default
# or None, or nothing.
OFF, KEPT = object(), object()
# Values that switch a setting off.
NOTHING = (None, False, 0, "", "none", ())


@dataclasses.dataclass(frozen=True)
class Rule:
    """What other settings decide about a setting.

    Attributes:
      names: The other settings. The rule is not asked where one of them is unknown.
        `name` is the setting's own, and `values` are all.
      test: Function of their values: what is true if the setting does not apply.
      why: What to say then, with `{name}` for a value, `{found}` for that of `test`.
      then: What the setting is then.
      example: A value that the setting must have where it applies; None if it need not.
      is_check: Whether a value is refused from any source; else only the user's is, and
        any other is replaced.
      is_quiet: Whether the user's is replaced, too.
    """

    names: tuple[str, ...]
    test: Callable[..., Any]
    why: str
    then: Any = OFF
    example: Optional[str] = None
    is_check: bool = False
    is_quiet: bool = False

    def why_not(self, values: Mapping[str, Any]) -> Optional[str]:
        """Returns why the setting does not apply; None if it does."""
        if not {*self.names} <= values.keys():
            return None
        found = self.test(*(values[name] for name in self.names))
        return self.why.format_map({**values, "found": found}) if found else None


def off_when(test: Callable[..., Any], why: str, **rest: Any) -> Rule:
    """Returns the rule that a setting does not apply if a test of others is true.

    The arguments of `test` are named as the settings.
    """
    return Rule(tuple(inspect.signature(test).parameters), test, why, **rest)


def wrong_when(test: Callable[..., Any], why: str) -> Rule:
    """Returns the rule that a value is wrong if a test of it and others is true."""
    return off_when(test, why, is_check=True)


def only_with(other: str, *fitting: Any, why: str = "", **rest: Any) -> Rule:
    """Returns the rule that a setting applies only with some values of another.

    Without `fitting` these are all values but those of `NOTHING`.
    """
    which = " or ".join([", ".join(map(str, fitting[:-1])), *map(str, fitting[-1:])])
    said = f"it is for {other}={which.removeprefix(' or ')}, not {{{other}}}."
    if not fitting:
        return Rule((other,), NOTHING.__contains__, why or f"it needs {other}.", **rest)
    return Rule((other,), lambda value: value not in fitting, why or said, **rest)


def conflicts(other: str, *values: Any, why: str = "", **rest: Any) -> Rule:
    """Returns the rule that a setting does not apply with some values of another.

    Without `values` these are all values but those of `NOTHING`.
    """

    def found(value: Any) -> str:
        is_there = value in values if values else value not in NOTHING
        return as_text(value) if is_there else ""

    return Rule((other,), found, f"{other}={{found}} {why}; leave it out.", **rest)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The declaration of a setting.

    Attributes:
      name: Its name.
      type: bool, int, float or str; of a tuple, the type of its items.
      default: Its default; `dataclasses.MISSING` for none.
      help: Its help text.
      symbol: Its name in the paper.
      group: The heading under which it is listed.
      is_tuple: Whether it is a tuple of any length.
      is_optional: Whether it may be None.
      minimum: Smallest allowed value; None for none.
      above: Exclusive lower bound; None for none.
      maximum: Largest allowed value; None for the largest int32 or float32.
      below: Exclusive upper bound; None for none.
      choices: The values to choose from; None for any value.
      placeholder: The word for its value in a help, such as DIR.
      ending: The end of the names of files that may be given in place of a choice.
      rules: What other settings decide about it.
      tags: Labels by which the code selects it.
      alone: What a flag without a value stands for, and True; None for nothing.
      keeps_whole: Whether a float without a fraction is an int, as 5 epochs.
    """

    name: str
    type: type
    default: Any
    help: str
    symbol: str = ""
    group: str = ""
    is_tuple: bool = False
    is_optional: bool = False
    minimum: Optional[float] = None
    above: Optional[float] = None
    maximum: Optional[float] = None
    below: Optional[float] = None
    choices: Optional[Sequence[Any]] = None
    placeholder: str = ""
    ending: str = ""
    rules: Sequence[Rule] = ()
    tags: Sequence[str] = ()
    alone: Optional[int] = None
    keeps_whole: bool = False

    @property
    def kind(self) -> str:
        """The kind of its values, in words."""
        if not self.is_tuple:
            return _KINDS[self.type]
        return {int: "whole numbers", float: "numbers", str: "names"}[self.type] + (
            " joined by commas"
        )

    @property
    def off(self) -> Any:
        """The value of the setting where it does not apply."""
        return None if self.is_optional else self.default

    def why_not_beside(self, values: Mapping[str, Any]) -> Optional[str]:
        """Returns why the setting does not apply with the values of other settings."""
        return next((why for _, why in self.failing(values)), None)

    def failing(
        self, values: Mapping[str, Any], is_check: bool = False
    ) -> Iterator[tuple[Rule, str]]:
        """Yields the rules after which it does not apply, or the value is wrong."""
        beside = {**values, "name": self.name, "values": values}
        for rule in self.rules:
            if rule.is_check == is_check and (why_not := rule.why_not(beside)):
                yield rule, why_not

    def read(self, text: str) -> Any:
        """Converts the text of a command line; commas join the items of a tuple."""
        if self.alone is not None and text == "true":
            return self.alone
        read = _TRUTHS.__getitem__ if self.type is bool else self.type
        try:
            if self.is_tuple:
                items = text.split(",") if text else []
                return tuple(read(item.strip()) for item in items)
            return self._adopt_item(read(text.lower() if self.type is bool else text))
        except (KeyError, ValueError):
            raise SettingError(self.name, text, f"it must be {self.kind}.") from None

    def adopt(self, value: Any) -> Any:
        """Converts a value to its type; JSON has no tuples and may write 1 for 1.0.

        A path becomes its text, a NumPy number a Python number, and a single item a
        tuple if the setting is a tuple.
        """
        if self.alone is not None and isinstance(value, bool):
            return self.alone if value else None
        single = (str, os.PathLike) if self.type is str else numbers.Real
        if self.is_tuple and isinstance(value, single):
            value = (value,)
        if self.is_tuple and hasattr(value, "tolist"):
            value = value.tolist()
        if self.is_tuple and isinstance(value, (list, tuple)):
            return tuple(self._adopt_item(item) for item in value)
        return self._adopt_item(value)

    def _adopt_item(self, item: Any) -> Any:
        if self.type is str and isinstance(item, os.PathLike):
            return os.fspath(item)
        if hasattr(item, "item") and not getattr(item, "ndim", 1):
            item = item.item()
        is_whole = isinstance(item, int) and not isinstance(item, bool)
        if self.keeps_whole:
            is_whole_float = isinstance(item, float) and item.is_integer()
            return int(item) if is_whole_float else item
        return (
            float(item) if self.type is float and is_whole and _finite(item) else item
        )

    def check(self, value: Any, name: str = "") -> None:
        """Checks a value's type, its bounds and choices."""
        if value is None and self.is_optional:
            return
        reason = None
        if self.is_tuple and not isinstance(value, tuple):
            reason = f"it must be a tuple of {_KINDS[self.type].split()[-1]}s."
        for item in value if isinstance(value, tuple) and self.is_tuple else (value,):
            reason = reason or self._why_not(item)
        if reason:
            raise SettingError(name or self.name, value, reason)

    def _why_not(self, item: Any) -> Optional[str]:
        """Returns why a value, or an item of a tuple, is not allowed; None if it is."""
        # NumPy's numbers are allowed, too.
        types = {int: numbers.Integral, float: numbers.Real}.get(self.type, self.type)
        is_other_bool = isinstance(item, bool) and self.type is not bool
        if not isinstance(item, types) or is_other_bool:
            given = f", not {item!r}" if isinstance(item, str) else ""
            return f"it must be {self.kind}{given}."
        is_file = self.ending and str(item).endswith(self.ending)
        if self.choices is not None and item not in self.choices and not is_file:
            listed = ", ".join(map(str, self.choices))
            near = near_names(item, self.choices)
            if self.is_tuple:
                return f"there is no {item}{near}; choose some of {listed}."
            what = self.name.replace("_", " ")
            return f"there is no such {what}{near}; choose one of {listed}."
        if self.type is float and not _finite(item):
            return "it must be a finite number, up to 3.4e38."
        if self.minimum is not None and item < self.minimum:
            return f"it must be at least {self.minimum}."
        if self.above is not None and item <= self.above:
            return f"it must be greater than {self.above}."
        maximum = self.maximum
        if maximum is None and self.type is int:
            maximum = _LARGEST_INT
        if maximum is not None and item > maximum:
            return f"it must be at most {maximum}."
        if self.below is not None and item >= self.below:
            return f"it must be less than {self.below}."
        return None


def setting(default: Any = dataclasses.MISSING, **known: Any) -> Any:
    """Makes a dataclass field that is a setting.

    Args:
      default: Its default.
      **known: The attributes of `Setting` that do not follow from the field: `help`
        and, where they apply, the attributes after it.

    Returns:
      The right side of the field's `=`.
    """
    return dataclasses.field(default=default, metadata={_METADATA: known})


def with_none_defaults(kind: type[T]) -> type[T]:
    """Decorator that makes None the default of all settings of a dataclass.

    The fields keep their types, and in `Setting.default` the value that replaces None.
    """
    fields = {
        name: field
        for base in reversed(kind.__mro__[1:])
        for name, field in getattr(base, "__dataclass_fields__", {}).items()
    }
    fields.update(
        (name, value)
        for name, value in vars(kind).items()
        if isinstance(value, dataclasses.Field)
    )
    hints = typing.get_type_hints(kind)
    for name, field in fields.items():
        if _METADATA in field.metadata:
            known = {"default": field.default, **field.metadata[_METADATA]}
            kind.__annotations__[name] = hints[name]
            field = dataclasses.field(default=None, metadata={_METADATA: known})
            setattr(kind, name, field)
    return kind


def settings_of(owner: Any) -> tuple[Setting, ...]:
    """Returns the settings among the fields of a dataclass or an instance, in order.

    A class that is no dataclass has none.
    """
    return _settings_of_class(owner if isinstance(owner, type) else type(owner))


@functools.cache
def _settings_of_class(owner: type) -> tuple[Setting, ...]:
    if not dataclasses.is_dataclass(owner):
        return ()
    hints = typing.get_type_hints(owner)
    result = []
    for field in dataclasses.fields(owner):
        if _METADATA not in field.metadata:
            continue
        type_, is_optional, is_tuple = hints[field.name], False, False
        if typing.get_origin(type_) is Union:
            is_optional = True
            (type_,) = (t for t in typing.get_args(type_) if t is not type(None))
        if typing.get_origin(type_) is tuple:
            is_tuple = True
            type_ = typing.get_args(type_)[0]
        derived = {
            "default": field.default,
            "is_tuple": is_tuple,
            "is_optional": is_optional,
        }
        known = {**derived, **field.metadata[_METADATA]}
        result.append(Setting(field.name, type_, **known))
    return tuple(result)


def tagged(owner: Any, *tags: str) -> tuple[str, ...]:
    """Returns the names of the settings that have one of some tags."""
    return tuple(s.name for s in settings_of(owner) if {*tags} & {*s.tags})


def check(instance: Any, prefix: str = "") -> None:
    """Checks all settings of an instance.

    Args:
      instance: An instance of a dataclass with settings.
      prefix: Text before a setting's name in an error.

    Raises:
      SettingError: If a value is not allowed.
    """
    for each in settings_of(instance):
        each.check(getattr(instance, each.name), prefix + each.name)


def settle(
    known: Sequence[Setting], values: dict[str, Any], given: Mapping[str, Any]
) -> None:
    """Replaces the values of settings that do not apply beside the others.

    Args:
      known: The settings.
      values: The values by name, and what else rules ask for.
      given: The values that the user gave; they are among `values`.

    Raises:
      SettingError: If one of these does not apply, and would not be replaced by itself.
    """
    is_settled = False
    while not is_settled:
        is_settled = True
        for each in known:
            rule, why_not = next(each.failing(values), (None, ""))
            if rule is None:
                continue
            value = each.off if rule.then is OFF else rule.then
            asked = given.get(each.name)
            is_off = asked in (None, value) or value is KEPT and asked in NOTHING
            if not (is_off or rule.is_quiet):
                raise SettingError(each.name, asked, why_not)
            if value is not KEPT and values[each.name] != value:
                values[each.name] = value
                is_settled = False


def check_rules(known: Sequence[Setting], values: Mapping[str, Any]) -> None:
    """Checks the settled values of settings beside each other.

    Raises:
      SettingError: If a value that is not off contradicts others, or one is missing.
    """
    for each in known:
        if (value := values[each.name]) not in NOTHING:
            for _, why_not in each.failing(values, is_check=True):
                raise SettingError(each.name, value, why_not)
        elif each.why_not_beside(values) is None:
            for rule in each.rules:
                if rule.example is not None and rule.names[0] in values:
                    other = f"{rule.names[0]}={values[rule.names[0]]}"
                    why = f"it is missing; {other} needs it, such as {rule.example}."
                    raise SettingError(each.name, None, why)


def ignored_settings(known: Sequence[Setting], values: Mapping[str, Any]) -> list[str]:
    """Returns the names of settings that quietly have no effect beside others."""
    return [e.name for e in known if any(r.is_quiet for r, _ in e.failing(values))]


def check_names(
    kind: type, given: Iterable[str], also: Callable[[], Iterable[str]] = tuple
) -> None:
    """Checks that argument names are fields of a dataclass with settings.

    `also` returns names that a hint may name, too.
    """
    names = [field.name for field in dataclasses.fields(kind)]
    symbols = {each.symbol: each.name for each in settings_of(kind)}
    for name in given:
        if name in names:
            continue
        hint = near_names(symbols.get(name, name), [*names, *also()])
        if not hint and len(names) < 10:
            hint = f"; it has {', '.join(names) or 'none'}"
        called = getattr(kind, "CALLED", kind.__name__)
        raise TypeError(f"{called} has no setting {name!r}{hint}.")


def _finite(number: Any) -> bool:
    try:
        return math.isfinite(number) and abs(number) <= _LARGEST_FLOAT
    except OverflowError:  # A whole number beyond any float.
        return False


def near_names(value: Any, choices: Sequence[Any], prefix: str = "") -> str:
    """Returns ` (did you mean NAME?)`, or why there is none, or an empty text."""
    wanted = _OTHER_NAMES.get(str(value), str(value))
    near = difflib.get_close_matches(wanted, list(map(str, choices)), n=1)
    if " " in wanted and not near:
        return f" ({wanted})"
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


def as_text(value: Any) -> str:
    """Returns a value as written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(as_text, value))
    return str(value)
