import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from tff_reg import methods, plugins, settings, training
from tff_reg.methods import catalogue

ROOT = pathlib.Path(__file__).parents[2]


def test_classes_are_offered_by_their_names():
    for name, cls in catalogue.methods().items():
        assert getattr(methods, cls.__name__) is cls and cls.name == name
    with pytest.raises(AttributeError, match="no attribute 'FedNothing'"):
        _ = methods.FedNothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = methods.nothing


@pytest.mark.parametrize(
    "process, parts",
    [
        ("fedavg", ()),
        ("FedProx", ("fedprox",)),
        ("fedavg+man", ("man",)),
        ("man + fedalign", ("fedalign", "man")),
    ],
)
def test_parses_sums(process, parts):
    assert catalogue.parse(process) == parts


@pytest.mark.parametrize(
    "process, message",
    [
        ("fedalgin", "Unknown process 'fedalgin' .did you mean fedalign."),
        ("man+", "A name is missing"),
        ("man+man", "names 'man' twice"),
    ],
)
def test_raises_on_an_unknown_process(process, message):
    with pytest.raises(
        catalogue.UnknownProcessError, match=message.replace("?", r"\?")
    ):
        catalogue.parse(process)


def test_settings_are_those_of_the_first_method():
    assert catalogue.settings("fedavg+man") == catalogue.settings("man")
    assert catalogue.settings("man+fedalign") == catalogue.settings("man")
    assert catalogue.settings("fedalign+man")["max_gradient_norm"] == 10.0
    assert "max_gradient_norm" not in catalogue.settings("fedprox")
    paper = catalogue.settings("fedalign")
    names = ("num_clients", "local_epochs", "total_rounds")
    assert [paper[name] for name in names] == [16, 20, 25]


def test_strengths_are_flags_with_defaults():
    known = {s.flag: s.setting for s in catalogue.hyperparameters()}
    assert known["fedprox_strength"].default == 1e-4
    assert known["fedalign_lipschitz_scaling"].type is str
    assert known["fedalign_stop_gradients"].type is bool
    assert known["fedalign_power_iterations"].type is int
    assert [s.flag for s in catalogue.hyperparameters("man")] == [
        "man_strength",
        "man_scaling",
        "man_terms",
    ]
    assert catalogue.hyperparameters("fedavg") == []


def test_strengths_reach_their_methods():
    first, second = catalogue.build(
        "man+fedprox", {"man_strength": 0.3, "fedprox_strength": 0.7}
    )
    assert dataclasses.asdict(first) == {"strength": 0.7}
    assert second.strength == 0.3 and second.scaling == "code"
    assert catalogue.build("fedavg", {}) == ()
    with pytest.raises(ValueError, match="man_strength is not a setting of .*fedprox"):
        catalogue.build("fedprox", {"man_strength": 0.3})


# Methods of installed packages.

_THEIRS = """
import dataclasses

from tff_reg.methods import method


class NoDataclass(method.Method):
    name = "theirs"
    strength: float = 0.1


@dataclasses.dataclass(frozen=True)
class Man(method.Method):
    name = "man"


SOMETHING = 3
"""


def _install(folder, entry):
    """Installs a package of one module with this entry point into a folder."""
    (folder / "theirs_module.py").write_text(_THEIRS)
    known = folder / "theirs-0.1.dist-info"
    known.mkdir()
    points = f"[tff_reg.methods]\n{entry}\n"
    (known / "entry_points.txt").write_text(points)


def _run(script, *folders):
    """What a fresh interpreter that finds the folders prints, as JSON."""
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "entry, message",
    [
        ("theirs = theirs_module:SOMETHING", "must be a sub-class of .*, but is 3"),
        ("theirs = theirs_module:NoDataclass", "a dataclass if it has settings"),
        ("theirs = absent:Theirs", "cannot be loaded: ModuleNotFoundError: .*absent"),
        ("man = theirs_module:Man", "is left out: its name is taken already"),
    ],
)
def test_a_broken_package_fails_only_when_its_method_is_used(tmp_path, entry, message):
    _install(tmp_path, entry)
    said = _run(
        """
        import json, sys, warnings
        from tff_reg.methods import catalogue

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert catalogue.parse("fedprox") == ("fedprox",)
            assert "theirs_module" not in sys.modules
            assert "theirs" not in catalogue.methods()
        (said,) = caught
        try:
            catalogue.parse("fedprox+theirs")
        except catalogue.UnknownProcessError as error:
            named = str(error) + " It is left out." == str(said.message)
            assert named or "Unknown process 'theirs'" in str(error)
        print(json.dumps(str(said.message)))
        """,
        tmp_path,
    )
    assert said.startswith("The entry point ") and "\n" not in said
    assert entry.partition(" = ")[2] in said
    assert re.search(message, said)


_FILE = """
import dataclasses
from tff_reg import methods, settings
@dataclasses.dataclass(frozen=True)
class X(methods.Method):
    name = {name!r}
    {field}: float = settings.setting(1.0, help="x")
"""


@pytest.mark.parametrize(
    "name, field, words",
    [
        ("a_b", "c", "a_b_c .* a and a_b"),  # The method a has a b_c.
        ("client", "momentum", "client_momentum .* every run and client"),
        ("Mine", "x", "small letters"),
        ("", "x", "small letters"),
    ],
)
def test_a_files_method_has_a_name_and_flags_of_its_own(
    tmp_path, monkeypatch, name, field, words
):
    monkeypatch.setattr(catalogue.REGISTRY, "_found", {})
    twice = _FILE.format(name="c", field="x") + _FILE.format(name="c", field="x")
    (tmp_path / "twice.py").write_text(twice.replace("class X", "class Y", 1))
    with pytest.raises(plugins.PluginError, match="two methods are called 'c'"):
        catalogue.add_file(str(tmp_path / "twice.py"))
    for file, own in (("a.py", ("a", "b_c")), ("other.py", (name, field))):
        (tmp_path / file).write_text(_FILE.format(name=own[0], field=own[1]))
    catalogue.add_file(str(tmp_path / "a.py"))
    # What these two hold, no other method moves afterwards.
    assert catalogue.names()[-3:] == ("a", "fedrep", "fedbabu")
    with pytest.raises(plugins.PluginError, match=words):
        catalogue.add_file(str(tmp_path / "other.py"), ["client_momentum"])


def test_conflicting_required_settings_must_be_given_by_the_user():
    words = "projector: moon requires 'moon', and univarfl requires 'feduv': give the"
    with pytest.raises(settings.SettingError, match=words):
        catalogue.settings("moon+univarfl")
    assert catalogue.settings("moon+univarfl", ["projector"])["projector"] == "moon"
    assert training.ProcessSettings.of("moon+univarfl").client_momentum == 0.9
