"""Tests of tff_reg.settings."""

import dataclasses
from typing import Optional

import numpy as np
import pytest

from tff_reg import settings

NOT_FINITE = "it must be a finite number, up to 3.4e38."


@dataclasses.dataclass(frozen=True)
class _Method:
    strength: float = settings.setting(1.0, symbol="mu", help="Factor.", minimum=0)
    width: float = settings.setting(0.5, help="Of the part.", above=0, below=1)
    paths: tuple[int, ...] = settings.setting((), help="Which.", minimum=1)
    seed: Optional[int] = settings.setting(None, help="A seed.")
    scaling: str = settings.setting("code", help="How.", choices=("code", "paper"))
    clips: bool = settings.setting(False, help="Whether it clips.")
    other: str = "no setting"


def _setting(name):
    (found,) = [s for s in settings.settings_of(_Method) if s.name == name]
    return found


def test_fields_say_what_they_are():
    names = [each.name for each in settings.settings_of(_Method())]
    assert names == ["strength", "width", "paths", "seed", "scaling", "clips"]
    paths, seed = _setting("paths"), _setting("seed")
    assert (paths.type, paths.is_tuple, paths.is_optional) == (int, True, False)
    assert (seed.type, seed.is_tuple, seed.is_optional) == (int, False, True)
    assert _setting("strength").symbol == "mu"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strength": -1.0}, "m_strength=-1.0: it must be at least 0."),
        ({"strength": True}, "m_strength=true: it must be a number."),
        ({"strength": float("nan")}, f"m_strength=nan: {NOT_FINITE}"),
        ({"strength": np.float32("nan")}, f"m_strength=nan: {NOT_FINITE}"),
        ({"strength": 10**309}, f"m_strength=1{'0' * 198}...: {NOT_FINITE}"),
        ({"strength": 3.5e38}, f"m_strength=3.5e+38: {NOT_FINITE}"),
        ({"seed": 2**31}, f"m_seed={2**31}: it must be at most {2**31 - 1}."),
        ({"strength": "1"}, "m_strength=1: it must be a number, not '1'."),
        ({"width": 0}, "m_width=0: it must be greater than 0."),
        ({"width": 1}, "m_width=1: it must be less than 1."),
        ({"paths": (2, 0)}, "m_paths=2,0: it must be at least 1."),
        ({"paths": 2}, "m_paths=2: it must be a tuple of numbers."),
        ({"seed": 1.5}, "m_seed=1.5: it must be a whole number."),
        ({"clips": 1}, "m_clips=1: it must be true or false."),
        (
            {"scaling": "papr"},
            "m_scaling=papr: there is no such scaling (did you mean paper?); choose one"
            " of code, paper.",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_a_sentence(values, message):
    with pytest.raises(settings.SettingError) as caught:
        settings.check(_Method(**values), "m_")
    assert str(caught.value) == message
    ((name, value),) = values.items()
    assert (caught.value.setting, caught.value.value) == (f"m_{name}", value)
    assert message.endswith(caught.value.reason)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("strength", "1e-3", 1e-3),
        ("paths", "1, 2", (1, 2)),
        ("paths", "", ()),
        ("seed", "7", 7),
        ("clips", "True", True),
        ("clips", "0", False),
        ("scaling", "paper", "paper"),
    ],
)
def test_texts_are_read_and_written(name, text, value):
    read = _setting(name).read(text)
    assert read == value and type(read) is type(value)
    assert _setting(name).read(settings.as_text(value)) == value


@settings.with_none_defaults
class _Asked(_Method):
    name: str = settings.setting(help="What it is called.")
    width: float = settings.setting(0.25, help="Another one.", above=0)


Asked = dataclasses.dataclass(frozen=True)(_Asked)


def test_with_none_defaults_fields_are_none_and_keep_their_default():
    assert Asked() == Asked(strength=None, width=None, name=None)
    found = {each.name: each for each in settings.settings_of(Asked)}
    assert list(found)[0] == "strength" and list(found)[-1] == "name"
    assert found["strength"].default == 1.0 and not found["strength"].is_optional
    assert found["width"].default == 0.25 and found["width"].below is None
    assert found["name"].default is dataclasses.MISSING
    # The base is as it was.
    assert _Method().strength == 1.0 and _setting("width").default == 0.5


@pytest.mark.parametrize(
    ("name", "value", "adopted"),
    [
        ("strength", 2, 2.0),
        ("strength", True, True),
        ("strength", "2", "2"),
        ("seed", 2, 2),
        ("seed", None, None),
        ("paths", [1, 2], (1, 2)),
        ("paths", "1", "1"),
    ],
)
def test_values_from_json_become_the_settings_own(name, value, adopted):
    found = _setting(name).adopt(value)
    assert found == adopted and type(found) is type(adopted)


def test_names_that_there_are_not_are_refused_one_by_one():
    some = settings.Setting(
        "columns", str, (), "Some.", is_tuple=True, choices=("best", "ema")
    )
    some.check(("ema", "best"))
    with pytest.raises(settings.SettingError) as caught:
        some.check(("ema", "bst"))
    assert str(caught.value) == (
        "columns=ema,bst: there is no bst (did you mean best?); choose some of best,"
        " ema."
    )
