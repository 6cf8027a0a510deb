import importlib
import json

import pytest
import tensorflow as tf

import tff_reg
from tff_reg.commands import preloaded
from tff_reg.experiment.config import identity
from tff_reg.methods import catalogue


def test_machine_and_code_are_json():
    found = {**identity.machine(), "code": identity.code({})}
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["tensorflow_devices"]


def test_settings_without_effect_make_no_other_experiment():
    first = {"batch_size": 4, "total_rounds": 2, "seed": 0, "code": []}
    elsewhere = {"output_dir": "x", "devices": ["GPU:1"], "score_at_rounds": [1]}
    second = {**first, **elsewhere, "code": [{"tff_reg": "1"}]}
    assert identity.differences(first, second) == []
    other = {"total_rounds": 3, "seed": 1, "batch_size": 4, "unknown_to_first": 1}
    assert identity.differences(first, other) == ["total_rounds", "seed"]
    assert identity.differences(first, other, ("total_rounds", "seed")) == []


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package in the place of `tff_reg`."""
    for name in ("loop", "data/deal", "analysis/hessian", "commands/run"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    (tmp_path / "README.md").write_text("x")
    monkeypatch.setattr(tff_reg, "__path__", [str(tmp_path)])
    identity.of_package.cache_clear()
    yield tmp_path
    identity.of_package.cache_clear()


@pytest.mark.parametrize(
    "name, is_other",
    [
        ("loop.py", True),
        ("data/new.py", True),
        ("analysis/hessian.py", False),
        ("commands/run.py", False),
        ("README.md", False),
    ],
)
def test_the_digest_is_of_the_sources_that_make_numbers(package, name, is_other):
    before = identity.code({})
    assert identity.code({"process": "fedprox+man"}) == before
    identity.of_package.cache_clear()
    (package / name).write_text("x = 2\n")
    assert (identity.code({}) != before) == is_other


def test_forks_have_the_digest_of_the_sources_that_their_server_imported(package):
    before = identity.code({})
    identity.of_package.cache_clear()
    importlib.reload(preloaded)
    (package / "loop.py").write_text("x = 2\n")
    assert identity.code({}) == before


def test_the_package_of_a_third_party_method_is_part_of_the_code(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("class Theirs: pass")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("theirs").Theirs
    monkeypatch.setattr(catalogue, "find", {"theirs": theirs}.get)
    monkeypatch.setattr(
        catalogue, "parse", lambda process: tuple({process} - {"fedavg"})
    )
    config = {"process": "theirs"}
    before = identity.code(config)
    assert before["theirs"] and "theirs" not in identity.code({})
    identity.of_package.cache_clear()
    (tmp_path / "theirs.py").write_text("class Theirs: x = 1")
    assert identity.code(config) != before


def test_what_a_plugin_imports_from_its_folder_is_part_of_the_code(
    tmp_path, monkeypatch
):
    for name in ("helper", "deeper", "unused"):
        (tmp_path / f"{name}.py").write_text("FACTOR = 1\n")
    (tmp_path / "helper.py").write_text("from deeper import FACTOR\n")
    (tmp_path / "two.py").write_text(
        "import numpy\nfrom helper import FACTOR\nfrom tff_reg import methods\n"
        "class Two(methods.Method):\n    name = 'two_files'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue.REGISTRY, "_found", {})
    catalogue.add_file(str(tmp_path / "two.py"))
    digests = []
    for changed in ("unused", "helper", "deeper", "two"):
        identity.of_package.cache_clear()
        digests.append(identity.code({"process": "two_files"})["two.py"])
        with open(tmp_path / f"{changed}.py", "a") as file:
            file.write("# Another line.\n")
    assert len(set(digests)) == 3 and digests[0] == digests[1]


def test_other_code_is_named_in_a_line_and_the_same_is_not():
    now = identity.code({})
    assert identity.other_code({"code": [now]}) is None
    old = {**now, "tensorflow": "2.12.0"}
    said = identity.other_code({"code": [old, now]})
    assert said == (
        f"It was made by other code: tensorflow 2.12.0 (now {tf.__version__})."
    )


def test_code_that_only_one_compared_run_has_is_not_different():
    now = {"tff_reg": "1", "tensorflow": "2.21.0"}
    groups = {"a": [{"code": [now]}], "b": [{"code": [{**now, "theirs": "2"}]}]}
    assert identity.different_code(groups) is None
    groups["c"] = [{"code": [now, {**now, "tff_reg": "3"}]}]
    assert identity.different_code(groups) == (
        "They were not all made by the same code: tff_reg 1 (a, b, c), 3 (c)."
    )
