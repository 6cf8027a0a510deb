import importlib
import json
import subprocess

import pytest
import tensorflow as tf

import tff_reg
from tff_reg.experiment.config import provenance
from tff_reg.methods import catalogue


def test_describes_versions_devices_and_commit_as_json():
    found = provenance.describe({})
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["tensorflow_devices"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package in the place of `tff_reg`."""
    for name in ("loop", "data/deal", "analysis/hessian", "commands/run"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    (tmp_path / "README.md").write_text("x")
    monkeypatch.setattr(tff_reg, "__path__", [str(tmp_path)])
    provenance._of_package.cache_clear()
    yield tmp_path
    provenance._of_package.cache_clear()


@pytest.mark.parametrize(
    "name, is_other",
    [
        ("loop.py", True),
        ("data/deal.py", True),
        ("data/new.py", True),
        ("analysis/hessian.py", False),
        ("commands/run.py", False),
        ("README.md", False),
    ],
)
def test_the_digest_is_of_the_sources_that_make_numbers(package, name, is_other):
    before = provenance.sources({})
    assert provenance.sources({"process": "fedprox+man"}) == before
    provenance._of_package.cache_clear()
    (package / name).write_text("x = 2\n")
    assert (provenance.sources({}) != before) == is_other


def test_the_package_of_somebodys_method_is_among_the_sources(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("class Theirs: pass")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("theirs").Theirs
    monkeypatch.setattr(catalogue, "find", {"theirs": theirs}.get)
    monkeypatch.setattr(
        catalogue, "parse", lambda process: tuple({process} - {"fedavg"})
    )
    config = {"process": "theirs"}
    before = provenance.sources(config)
    assert before != provenance.sources({})
    provenance._of_package.cache_clear()
    (tmp_path / "theirs.py").write_text("class Theirs: x = 1")
    assert provenance.sources(config) != before


def test_other_code_is_told_in_a_line_and_the_same_is_not():
    made = provenance.describe({"process": "fedavg"})
    now = {"process": "fedavg"}
    now.update((name, made[name]) for name in ("sources", "versions", "git_commit"))
    assert provenance.change(now) is None
    # Of another commit, in which only texts differ.
    assert provenance.change({**now, "git_commit": "other"}) is None
    old = {
        **now,
        "versions": {"tensorflow": "2.12.0", "tensorflow_federated": "0.87.0"},
    }
    said = provenance.change({**old, "git_commit": "0123456789"})
    assert said.startswith("It was made by commit 0123456, sources ")
    assert "with TensorFlow 2.12.0 and TFF 0.87.0; this is " in said
    assert f"with TensorFlow {tf.__version__} and TFF" in said and "\n" not in said
    # A part of a run counts, too.
    assert provenance.change({**now, "made_before": [{"rounds": [1, 2], **old}]})
    assert provenance.change({**now, "sources": "0"})


def test_a_plugin_is_no_other_code_of_tff_reg():
    made = provenance.describe({})
    other = {**made, "sources": "of a plugin, too"}
    assert provenance.makers(made) != provenance.makers(other)
    same = [provenance.makers(each, of_tff_reg=True) for each in (made, other)]
    assert same[0] == same[1]


def test_commit_is_gits_or_none(tmp_path, monkeypatch):
    package = tmp_path / "tff_reg" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(tff_reg, "__file__", str(package))
    assert provenance.git_commit() is None

    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        return result.stdout

    git("init")
    assert provenance.git_commit() is None
    git("add", ".")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert provenance.git_commit() == commit
    package.write_text("changed")
    assert provenance.git_commit() == f"{commit}-modified"
