import re
import sys

import pytest
from absl import flags, logging

from tests import commands
from tff_reg import settings
from tff_reg.commands import command_line, help_texts
from tff_reg.experiment import RunConfig
from tff_reg.experiment.config import run_config as config
from tff_reg.experiment.series import batch
from tff_reg.methods import catalogue


@command_line.command(help_texts.help_of_run)
def main(argv, stop):
    del stop
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(argv, given)
    logging.set_verbosity(logging.DEBUG)
    print(sorted(command_line.requested(given).items()))


def parse(*arguments):
    return commands.call(main, *arguments)


def test_a_call_leaves_nothing_behind():
    before = flags.FLAGS["verbosity"].value
    assert parse("--process=fedavg").stdout == "[('process', 'fedavg')]\n"
    assert parse().stdout == "[]\n"
    assert flags.FLAGS["verbosity"].value == before
    assert "process" not in flags.FLAGS


def test_what_was_given_is_requested_and_nothing_else(tmp_path):
    (tmp_path / "recipe").write_text("--process=man\n# remark\n--man_strength=0.2\n")
    for arguments, requested in (
        (
            ["--process=fedavg", "--batch_size=3", "--nooverwrite"],
            "('batch_size', 3), ('overwrite', False), ('process', 'fedavg')",
        ),
        (
            ["--accuracy_at_rounds=500, 1000", "--devices=GPU:0"],
            "('accuracy_at_rounds', (500, 1000)), ('devices', ('GPU:0',))",
        ),
        (
            [f"--flagfile={tmp_path / 'recipe'}"],
            "('man_strength', 0.2), ('process', 'man')",
        ),
    ):
        assert parse(*arguments).stdout == f"[{requested}]\n"


def test_a_config_becomes_the_flags_that_ask_for_it():
    asked = RunConfig(
        process="fedprox+man",
        target_accuracies=(0.5, 0.25),
        overwrite=False,
        client_learning_rate=1e-5,
        strengths={"man_strength": 0.2},
    )
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(batch.as_flags(asked), given)
    assert RunConfig.of(command_line.requested(given)) == asked


@pytest.mark.parametrize(
    "error, line",
    [
        (
            settings.SettingError("ray_address", "a:1", "it is for runtime=ray."),
            "--ray_address=a:1: it is for --runtime=ray.",
        ),
        (
            settings.SettingError("batch_size", 5, "runs/x=1/y has batch_size=4;\nno."),
            "--batch_size=5: runs/x=1/y has --batch_size=4; no.",
        ),
        (
            settings.SettingError("task", None, "it is missing."),
            "--task: it is missing.",
        ),
        (ValueError("give image_size=N to\nbring"), "give --image_size=N to bring"),
        (ValueError("k=3, --seed=2 and my_seed=4"), "k=3, --seed=2 and my_seed=4"),
    ],
)
def test_errors_name_settings_as_flags(error, line):
    assert command_line.in_words(error) == line


@pytest.mark.parametrize("is_help", [False, True])
@pytest.mark.parametrize(
    "content, line",
    [
        (b"--seed=\xff\xfe", "it is no text file."),
        (b"--seed=1\n--flagfile=b", "it names itself."),
        (None, "it cannot be read (Is a directory)."),
    ],
)
def test_a_flag_file_that_is_none_is_one_line(
    tmp_path, monkeypatch, content, line, is_help
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_text("--flagfile=./a\n")
    if content is None:
        (tmp_path / "a").mkdir()
    else:
        (tmp_path / "a").write_bytes(content)
    result = parse("--flagfile=a", *["--help"] * is_help)
    where = "./a" if "itself" in line else "a"
    expected = (2, "", f"bin/run: --flagfile={where}: {line}\n")
    assert (result.returncode, result.stdout, result.stderr) == expected


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("--output_dir=~/runs\n")
    result = parse("--flagfile=~/a", "--data_dir=~", "--split_file=a~/b")
    assert result.stdout == (
        f"[('data_dir', '{tmp_path}'), ('output_dir', '{tmp_path}/runs'),"
        " ('split_file', 'a~/b')]\n"
    )


@pytest.mark.parametrize(
    "argument, line",
    [
        (
            "--batchsize=3",
            "--batchsize: there is no such flag (did you mean --batch_size?);"
            " --help=all lists them.",
        ),
        (
            "--lr=3",
            "--lr: there is no such flag (did you mean --client_learning_rate?);"
            " --help=all lists them.",
        ),
        ("--batch_size=x", "--batch_size=x: it must be a whole number."),
        ("--overwrite=perhaps", "--overwrite=perhaps: it must be true or false."),
        ("--seed=", "--seed=: it must be a whole number."),
        (
            "--accuracy_at_rounds=5,x",
            "--accuracy_at_rounds=5,x: it must be whole numbers joined by commas.",
        ),
        ("--nooverwrite=3", "--nooverwrite=3 does not take an argument"),
        (
            f"--batch_size={'9' * 5000}",
            f"--batch_size={'9' * 199}...: it must be a whole number.",
        ),
        ("word", "word is not a flag; --help=all lists them."),
    ],
)
def test_errors_are_one_line_and_exit_code_2(argument, line):
    result = parse(argument)
    assert result.returncode == 2
    assert result.stderr == f"bin/run: {line}\n"


def test_help_names_every_flag_once_in_lines_of_88():
    text = help_texts.help_text({}, is_all=True)
    for each in config.listed():
        heads = re.findall(rf"^  --(?:\[no\])?{each.name}\b", text, re.MULTILINE)
        assert len(heads) == 1, each.name
    assert max(len(line) for line in text.splitlines()) <= 88


def test_the_first_help_is_a_page_and_names_what_matters_and_where_the_rest_is():
    text = help_texts.help_text({})
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 88
    for name in ("process", "task", "total_rounds", "output_dir", r"\[no\]overwrite"):
        assert len(re.findall(rf"^  --{name}\b", text, re.MULTILINE)) == 1
    assert all(name in text for name in catalogue.names())
    assert lines[-1] == f"--help=all lists all {len(config.listed())} flags."
    assert parse("--help").stdout == f"{text}\n"
    for flag in ("--help=all", "--helpfull"):
        assert parse(flag).stdout == f"{help_texts.help_text({}, is_all=True)}\n"


def test_a_command_that_takes_the_flags_of_runs_lists_them_on_demand():
    made = help_texts.with_flags_of_runs("bin/compare ...", ())
    assert made(["--help"]) == "bin/compare ..."
    text = made(["--help=all"])
    assert text.startswith("bin/compare ...\n\nWhat to run:\n  --process=NAME")
    assert "--gpus_per_client=X" in text and "--man_strength=X" in text


def test_help_with_a_process_shows_its_values():
    text = help_texts.help_text({"process": "man"}, is_all=True)
    assert "--man_strength" in help_texts.help_text({"process": "man"})
    assert "--process=man on --task=digits" in " ".join(text.split())
    whose = (
        "what is not given comes from the MAN paper (Yashwanth et al., WACV 2024) and"
    )
    assert whose in " ".join(text.split())
    paper = RunConfig(process="man").resolved()
    (line,) = [part for part in text.splitlines() if "--client_learning_rate=" in part]
    assert line.endswith(f"[{paper.client_learning_rate}]")
    assert "--fedalign_width" not in text


def test_help_with_a_recipe_shows_its_values_and_what_goes_before_them():
    result = parse("--recipe=man/table1/fedprox", "--help")
    assert result.returncode == 2 and "(did you mean" in result.stderr
    result = parse("--recipe=man/table1/fedsam", "--batch_size=7", "--help")
    assert result.returncode == 0
    assert "--process=fedsam on --task=cifar100" in " ".join(result.stdout.split())
    for value in ("7", "feddyn_cnn", "runs/man/table1/fedsam-seed0", "0.05"):
        assert f"[{value}]" in result.stdout


def test_help_reads_settings_as_the_command_does(tmp_path):
    nested, file = tmp_path / "nested", tmp_path / "recipe"
    nested.write_text("--man_strength=0.25\n")
    file.write_text(f"--process=man\n\n# remark\n// another\n--flagfile={nested}\n")
    arguments = ["--flagfile", str(file), "--seed", "7", "--nooverwrite", "word"]
    arguments += ["--require_gpu", "--synthetic_data=f", "--verbosity=0"]
    given = flags.FlagValues()
    command_line.define_flags(given)
    given(["bin/run", *arguments])
    wanted = help_texts.help_text(command_line.requested(given), is_all=True)

    result = parse(*arguments, "--help=all")

    assert (result.returncode, result.stdout) == (0, f"{wanted}\n")
    for value in ("[0.25]", "[7]", "[true]"):
        assert value in wanted


@pytest.mark.parametrize(
    "argument, line",
    [
        ("--batch_size=x", "--batch_size=x: it must be a whole number."),
        ("--overwrite=perhaps", "--overwrite=perhaps: it must be true or false."),
        ("--rounds_per_evaluation=0", "--rounds_per_evaluation=0: it must be at least"),
        ("--flagfile=/nowhere", "--flagfile=/nowhere: it cannot be read (No such file"),
    ],
)
def test_help_of_what_cannot_be_is_one_line_and_exit_code_2(argument, line):
    result = parse("--process=man", argument, "--help")
    assert commands.refusal(result, "run").startswith(f"bin/run: {line}")


def test_commands_are_called_as_they_were_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/env/bin/tff-reg", "run"])
    result = parse("--proces=fedavg")
    assert result.stderr.startswith("tff-reg run: --proces: there is no such flag")
    assert "bin/" not in parse("--help").stdout
    text = "bin/run, bin/analyze cost, bin/runs, bin/test, runs/bin/bench"
    assert command_line.as_typed(text) == (
        "tff-reg run, tff-reg analyze cost, tff-reg runs, bin/test, runs/bin/bench"
    )
