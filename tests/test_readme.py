"""The README's and the site's Python does what they say.

Their commands are run by test_shown_commands.py.
"""

import ast
import asyncio
import dataclasses
import inspect
import json
import re

import pytest

from docs.examples.anchors import anchors
from tests import commands, documents
from tff_reg import methods, runtime, settings
from tff_reg.commands import run

# What their Python prints, where it is known.
PRINTED = {
    "README.md": r"(?s)Clients run in process.*\n0\.\d+ \(397, 10\) Figure\(",
    "add_a_task.md": r"(\[.*\]\s*){4}",  # A row a client.
    "analysis.md": r"eigenvalues \[[1-9].*\], trace [1-9]",
    "keras.md": (
        r"(?s)^\d\.\d\nTrue \(5, 3\)\n\['stem', 'stage1', 'stage2', 'classifier'\]\n"
        r"\['first', 'second'\] \['price', 'size'\]\nTrue$"
    ),
    "python.md": r"(?s)\n1 0\.\d+\n.*\n\d+\.\d%\n.*\n0\.\d+$",
    "runtimes.md": "clients run in process on 1 CPU device",
}


def test_the_readmes_links_lead_somewhere():
    text = documents.README.read_text("utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 15
    assert not [link for link in links if not (documents.ROOT / link).exists()]


def test_the_readmes_first_screen_is_short_and_shows_the_method_of_its_command():
    text = documents.README.read_text("utf-8")
    assert len(text.splitlines()) <= 120
    plugin = re.search(r"--plugin=(\S+)", text)[1]
    assert f"```python\n{(documents.ROOT / plugin).read_text('utf-8')}```" in text


def test_the_tutorials_run_prints_what_it_shows(tmp_path):
    page = documents.PAGES / "tutorials" / "command.md"
    command = documents.commands(page)[0]
    done = commands.call(
        run.main, *command.split()[1:], "--scale=tiny", f"--output_dir={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    (shown,) = (b for b in documents.blocks(page) if "Clients run" in b)
    digits = re.compile(r"[\d.,:]+")

    def forms(text):
        lines = [line for line in text.splitlines() if line[0] not in ". "]
        return [digits.sub("0", line).split()[0] for line in lines]

    assert forms(done.stdout)[:2] == forms(shown)[:2] == ["Clients", "process"]
    assert set(forms(shown)) == set(forms(done.stdout))


# Each builds processes of its own, up to a minute; the README's and the method's are
# run every day.
_DAILY = ("README.md", "add_a_method.md")


@pytest.mark.parametrize(
    "file",
    [
        each
        if each.name in _DAILY
        else pytest.param(each, marks=pytest.mark.slow, id=each.name)
        for each in documents.files()
        if documents.programs(each)
    ],
    ids=lambda file: file.name,
)
def test_a_pages_python_runs(file, capsys, monkeypatch, tmp_path):
    """All of it, block after block; of rounds and local epochs, one."""
    monkeypatch.chdir(tmp_path)
    # The tests among a page's files import the others.
    monkeypatch.syspath_prepend(documents.ROOT / "docs" / "examples" / "methods")
    names = {"__name__": "__main__"}
    try:
        for program in documents.programs(file):
            short = re.sub(r"(total_rounds|local_epochs)=\d+", r"\1=1", program)
            short = re.sub(r"range\(1, \d+\)", "range(1, 2)", short)
            allowed = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(short, str(file), "exec", flags=allowed)
            awaited = eval(code, names)
            if inspect.iscoroutine(awaited):
                asyncio.run(awaited)
    finally:
        runtime.shutdown()
    assert re.search(PRINTED.get(file.name, ""), capsys.readouterr().out.strip())
    if file.name == "python.md":
        recorded = json.loads((tmp_path / "runs/from_python/config.json").read_text())
        assert recorded["process"] == "fedalign+man"
        assert recorded["man_strength"] == 0.1


def test_the_tutorials_method_refuses_what_it_says():
    page = (documents.PAGES / "tutorials" / "add_a_method.md").read_text("utf-8")
    with pytest.raises(settings.SettingError) as refused:
        anchors.Anchor(-1.0)
    assert f"`{refused.value}`" in page
    # Its table has every field that hooks read.
    kinds = (methods.Step, methods.Local, methods.Server)
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert not {n for n in names if not re.search(rf"`{n}[`(]", page)}
