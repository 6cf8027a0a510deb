"""A method in a file of one's own: --plugin and --debug_eager."""

import json
import re

import pytest

from tests import commands, documents
from tff_reg.commands import run

_MINE = """
import dataclasses

from tff_reg import methods, settings
from tff_reg.lazy import tf


@dataclasses.dataclass(frozen=True)
class Mine(methods.Method):
    name = "mine"
    strength: float = settings.setting(0.1, help="Factor of the logits.", minimum=0)

    def term(self, step):
        print("the loss is", float(step.task_loss))
        return self.strength * tf.reduce_mean(step.outputs.logits ** 2)
"""
_TRACED = _MINE.replace('        print("the loss is", float(step.task_loss))\n', "")
SMALL = ("--scale=tiny", "--total_rounds=1", "--model=cnn")


@pytest.fixture(scope="module")
def call():
    with commands.calling(run.main) as found:
        yield found


def test_a_file_is_a_method_whose_hooks_can_be_looked_into(call, tmp_path):
    (tmp_path / "mine.py").write_text(_MINE)
    arguments = (f"--plugin={tmp_path / 'mine.py'}", "--process=fedprox+mine", *SMALL)
    told = call(*arguments[:2], "--helpfull")
    assert "--mine_strength" in told.stdout
    # A second file does not replace the first.
    (tmp_path / "second.py").write_text(_TRACED.replace('"mine"', '"second"'))
    second = f"--plugin={tmp_path / 'second.py'}"
    told = call(*arguments[:2], second, "--helpfull")
    assert "--mine_strength" in told.stdout and "--second_strength" in told.stdout
    folder = tmp_path / "run"
    done = call(
        *arguments,
        "--mine_strength=0.2",
        "--debug_eager",
        f"--output_dir={folder}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the loss is") > 2
    config = json.loads((folder / "config.json").read_text())
    assert config["mine_strength"] == 0.2
    assert config["plugin"] == [str(tmp_path / "mine.py")]
    traced = call(
        *arguments,
        f"--output_dir={tmp_path / 'traced'}",
    )
    *_, line = traced.stderr.splitlines()
    assert traced.returncode == 2
    assert "mine.term (mine.py, line 14" in line and "--debug_eager" in line


def test_the_readmes_method_without_settings_runs(call, tmp_path):
    text = documents.README.read_text("utf-8")
    (command,) = re.findall(r"(?m)^bin/run (--plugin=.*)$", text)
    done = call(*command.split(), *SMALL, f"--output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "near+man" in json.loads((tmp_path / "config.json").read_text())["process"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("def term", "def trem"), "'trem', which is no hook and no attribute"),
        (("import dataclasses", "import nowhere_here"), "nowhere_here"),
        (('"mine"', '"man"'), "there is another method 'man': rename it"),
        (('    name = "mine"\n', ""), "it has no method"),
        (
            ('"mine"\n', '"slip"\n    paper_settings = {"local_epoch": 1}\n'),
            "paper_settings of Mine has 'local_epoch', which is no setting (did you",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_a_line(call, tmp_path, change, words):
    (tmp_path / "wrong.py").write_text(_TRACED.replace(*change))
    process = "slip" if '"slip"' in change[1] else "mine"
    done = call(
        f"--plugin={tmp_path / 'wrong.py'}",
        f"--process={process}",
        f"--{process}_strength=1",  # A flag of the file that cannot be.
        f"--output_dir={tmp_path / 'run'}",
        *SMALL,
    )
    assert words in commands.refusal(done)


def test_a_file_that_is_not_there_is_refused_in_a_line(call, tmp_path):
    done = call(f"--plugin={tmp_path}/no.py", "--process=fedavg")
    assert "no.py: there is no such Python file." in commands.refusal(done)
