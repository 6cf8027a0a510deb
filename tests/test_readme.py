"""The README's and the site's commands and examples do what they say."""

import ast
import collections
import importlib
import json
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf

from docs.examples.anchors import anchors
from tests import commands, documents, random_clients
from tff_reg import commands as names_of, models, runtime, settings, training
from tff_reg.commands import run
from tff_reg.experiment import config

# What others than our commands do with the flags is theirs.
OTHERS = ("bin/launch", "bin/test", "bin/lint", "bin/bench")
COMMANDS = [
    (file.name, command)
    for file in documents.files()
    for command in documents.commands(file)
    if command.startswith(("bin/", "tff-reg "))
]


def _example(file, containing):
    found = [b for b in documents.blocks(file, "python") if containing in b]
    (block,) = found
    return block


def test_the_readme_is_one_page_whose_links_lead_somewhere():
    text = documents.README.read_text("utf-8")
    assert len(text.splitlines()) <= 150
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 15
    assert not [link for link in links if not (documents.ROOT / link).exists()]


def test_the_readmes_commands_are_those_that_tests_run():
    shown = documents.commands(documents.README)
    assert shown == ["bin/run --process=fedalign", "bin/test"]
    inline = re.findall(
        r"`((?:bin/|tff-reg |pip )[^`]*)`", documents.README.read_text()
    )
    # The last three: test_package.py, test_peers.py and test_docs_command.py.
    assert inline == [
        "bin/test --lane=tff_pins",
        "pip install .",
        "tff-reg run --process=fedalign",
        "bin/bench peers",
        "bin/docs",
    ]


def test_the_readmes_run_prints_what_it_shows(tmp_path):
    (command,) = (c for c in documents.commands(documents.README) if "/run" in c)
    done = commands.call(
        run.main, *command.split()[1:], "--scale=tiny", f"--output_dir={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    (shown,) = (b for b in documents.blocks(documents.README) if "Clients run" in b)
    digits = re.compile(r"[\d.,:]+")

    def forms(text):
        lines = [line for line in text.splitlines() if line[0] not in ". "]
        return [digits.sub("0", line).split()[0] for line in lines]

    assert forms(done.stdout)[:2] == forms(shown)[:2] == ["Clients", "process"]
    assert set(forms(shown)) == set(forms(done.stdout))


@pytest.mark.parametrize(("file", "command"), COMMANDS)
def test_a_shown_command_is_there_with_its_flags(file, command):
    program, *arguments = shlex.split(command.partition("#")[0])
    name = program.removeprefix("bin/")
    if program == "tff-reg":
        name = arguments.pop(0)
        assert name in names_of.NAMES
    assert (documents.ROOT / "bin" / name).exists()
    if f"bin/{name}" in OTHERS:
        return
    given = dict(
        argument.removeprefix("--").partition("=")[::2]
        for argument in arguments
        if argument.startswith("--")
    )
    given.pop("help", None)
    if name == "run" and given.get("process") not in ("anchor", "man+anchor"):
        known = {each.name: each for each in config.listed()}
        read = {flag: known[flag].read(text or "1") for flag, text in given.items()}
        config.RunConfig.of(read).resolved()
        return
    in_bin = (documents.ROOT / "bin" / f"{name}.py").exists()
    module = importlib.import_module(
        f"bin.{name}" if in_bin else f"tff_reg.commands.{name}"
    )
    told = commands.call(module.main, "--help").stdout
    told += commands.call(run.main, "--help=all").stdout
    for flag in given:
        bare = flag.removeprefix("no")
        assert re.search(rf"--(\[?no\]?)?({flag}|{bare})\b", told) or "anchor" in flag


def test_a_run_from_python_is_one(capsys, monkeypatch, tmp_path):
    page = documents.PAGES / "tutorials" / "python.md"
    code = _example(page, "experiment.RunConfig(")
    assert "total_rounds=5" in code
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code.replace("total_rounds=5", 'scale="tiny"'), names)
    assert names["result"].summary["rounds"] == 1
    assert capsys.readouterr().out.endswith("%\n")
    recorded = json.loads((tmp_path / "runs/from_python/config.json").read_text())
    assert recorded["process"] == "fedalign+man" and recorded["man_strength"] == 0.1


def test_the_library_in_ten_lines_trains():
    code = _example(documents.README, "training.build(")
    assert "range(25)" in code and len(code.splitlines()) <= 11
    rng = np.random.default_rng(0)

    def my_client_dataset(client, round_num):
        return tf.data.Dataset.from_tensors(
            collections.OrderedDict(
                x=rng.normal(size=(20, 8, 8, 1)).astype(np.float32),
                y=rng.integers(0, 10, 20).astype(np.int32),
                key=np.array([client, round_num], np.int64),
            )
        )

    names = dict(my_client_dataset=my_client_dataset, my_clients=range(2))
    try:
        exec(code.replace("range(25)", "range(2)"), names)
    finally:
        runtime.shutdown()
    train = names["output"].metrics["client_work"]["train"]
    assert train["num_examples"] == 40
    assert np.isfinite(train["loss"])
    assert train["fedalign/term"] > 0


def test_any_process_runs_in_process_as_the_page_says(capsys):
    code = _example(documents.PAGES / "runtimes.md", "tff_reg.runtime.describe()")
    process = training.build_regularized(
        models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=3),
        [],
        training.build_sgd(0.1),
        client_data=training.WholeClientData(batch_size=4),
    )
    client_data = random_clients.clients((8, 5))
    names = dict(process=process, client_data=client_data)
    try:
        exec(code, names)
        before, after = (
            process.get_model_weights(state).trainable
            for state in (process.initialize(), names["state"])
        )
    finally:
        runtime.shutdown()
    assert capsys.readouterr().out.startswith("clients run in process on 1 ")
    assert any(np.any(a != b) for a, b in zip(after, before))


def test_all_examples_are_python():
    found = [(f, b) for f in documents.files() for b in documents.blocks(f, "python")]
    assert len(found) >= 6
    for file, block in found:
        compile(block, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_arrays_become_clients_as_the_tutorial_says(capsys):
    exec(_example(documents.PAGES / "tutorials" / "add_a_task.md", "labels ="), {})
    counts = capsys.readouterr().out
    assert counts.count("[") == 5  # A row a client.


def test_the_hessians_examples_run_on_a_keras_model():
    code = _example(documents.PAGES / "analysis.md", "from tff_reg.analysis")
    keras_model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,))])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2)).astype(np.float32)
    y = rng.integers(0, 3, 20).astype(np.int32)
    names = dict(keras_model=keras_model, x=x, y=y)
    exec(code.replace("k=5", "k=2").replace("0.01", "0.5"), names)
    assert names["pairs"].values[0] >= names["pairs"].values[1] > 0
    assert names["estimate"].mean > 0 and names["estimate"].standard_error >= 0
    assert sum(np.size(each) for each in tf.nest.flatten(names["product"])) == 9


def test_the_tutorials_method_is_as_long_and_refuses_what_it_says():
    folder = documents.ROOT / "docs" / "examples" / "anchors"
    lines = [len(file.read_text().splitlines()) for file in folder.glob("*.*")]
    assert len(lines) == 2 and sum(lines) <= 40
    page = (documents.PAGES / "tutorials" / "add_a_method.md").read_text("utf-8")
    with pytest.raises(settings.SettingError) as refused:
        anchors.Anchor(-1.0)
    assert f"`{refused.value}`" in page
