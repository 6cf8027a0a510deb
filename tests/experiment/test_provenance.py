import json
import subprocess

import tensorflow as tf

import tff_reg
from tff_reg.experiment import provenance


def test_describes_versions_devices_and_commit_as_json():
    found = provenance.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["tensorflow_devices"]


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
