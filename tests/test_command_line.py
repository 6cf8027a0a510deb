import re
import sys

import pytest
from absl import flags, logging

from tests import commands
from tff_reg import settings, tasks
from tff_reg.commands import command_line
from tff_reg.experiment import RunConfig
from tff_reg.experiment.config import run_config as config
from tff_reg.experiment.series import batch
from tff_reg.methods import catalogue


@command_line.command
def main(argv, stop):
    del stop
    given = flags.FlagValues()
    command_line.define_flags(given, key=("process", "output_dir"))
    command_line.parse(argv, given, "bin/run --process=NAME\n\nTrains.\n")
    logging.set_verbosity(logging.DEBUG)
    print(sorted(command_line.requested(given).items()))


def parse(*arguments):
    return commands.call(main, *arguments)


def test_only_given_flags_are_requested(tmp_path):
    (tmp_path / "recipe").write_text("--process=man\n# remark\n--man_strength=0.2\n")
    for arguments, requested in (
        (
            ["--process=fedavg", "--batch_size=3", "--nooverwrite"],
            "('batch_size', 3), ('overwrite', False), ('process', 'fedavg')",
        ),
        (
            ["--score_at_rounds=500, 1000", "--devices=GPU:0"],
            "('devices', ('GPU:0',)), ('score_at_rounds', (500, 1000))",
        ),
        (["--client_evaluation", "--seed=1"], "('client_evaluation', 0), ('seed', 1)"),
        (["--client_evaluation=5"], "('client_evaluation', 5)"),
        (
            [f"--flagfile={tmp_path / 'recipe'}"],
            "('man_strength', 0.2), ('process', 'man')",
        ),
    ):
        assert parse(*arguments).stdout == f"[{requested}]\n"


def test_a_config_becomes_the_flags_that_ask_for_it():
    asked = RunConfig(
        process="fedprox+man",
        targets=(0.5, 0.25),
        overwrite=False,
        client_learning_rate=1e-5,
        hyperparameters={"man_strength": 0.2},
    )
    given = flags.FlagValues()
    command_line.define_flags(given)
    command_line.parse(batch.as_flags(asked), given, "bin/run")
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


@pytest.mark.parametrize("content", [b"--seed=\xff\xfe", None])
def test_a_flag_file_that_is_none_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    commands.refusal(parse(f"--flagfile={tmp_path / 'a'}"), "run")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("--output_dir=~/runs\n")
    result = parse("--flagfile=~/a", "--data_dir=~", "--split_file=a~/b")
    assert result.stdout == (
        f"[('data_dir', '{tmp_path}'), ('output_dir', '{tmp_path}/runs'),"
        " ('split_file', 'a~/b')]\n"
    )


def test_names_of_other_libraries_lead_to_ours_or_to_a_reason():
    listed = config.listed()
    ours = [*tasks.names(), *(each.name for each in listed)]
    ours += [each for setting in listed for each in setting.choices or ()]
    ours += [each.flag for each in catalogue.hyperparameters()]
    assert len(settings._OTHER_NAMES) > 20
    for name, wanted in settings._OTHER_NAMES.items():
        is_name = wanted in ours
        hint = f"did you mean {wanted}?" if is_name else wanted
        assert settings.near_names(name, ours) == f" ({hint})"
        assert is_name or " " in wanted and name not in ours


@pytest.mark.parametrize(
    "argument, line",
    [
        (
            "--rounds=3",
            "--rounds: there is no such flag (did you mean --total_rounds?);"
            " --helpfull lists them.",
        ),
        (
            "--batchsize=3",
            "--batchsize: there is no such flag (did you mean --batch_size?);"
            " --helpfull lists them.",
        ),
        (
            "--lr=3",
            "--lr: there is no such flag (did you mean --client_learning_rate?);"
            " --helpfull lists them.",
        ),
        ("--batch_size=x", "--batch_size=x: it must be a whole number."),
        ("--overwrite=perhaps", "--overwrite=perhaps: it must be true or false."),
        ("--seed=", "--seed=: it must be a whole number."),
        (
            "--score_at_rounds=5,x",
            "--score_at_rounds=5,x: it must be whole numbers joined by commas.",
        ),
        ("--nooverwrite=3", "--nooverwrite=3 does not take an argument"),
        (
            f"--batch_size={'9' * 5000}",
            f"--batch_size={'9' * 199}...: it must be a whole number.",
        ),
        (
            "word",
            "word is not a flag, such as --process=fedavg; --helpfull lists them.",
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2(argument, line):
    result = parse(argument)
    assert result.returncode == 2
    assert result.stderr == f"bin/run: {line}\n"


def test_help_has_the_key_flags_and_helpfull_all():
    text = parse("--help").stdout
    heads = re.findall(r"^  --(?:\[no\])?(\w+):", text, re.MULTILINE)
    assert sorted(heads) == ["output_dir", "process"]
    assert text.startswith("bin/run --process=NAME\n\nTrains.\n")
    assert all(name in text for name in catalogue.names())
    for arguments in (["--helpfull"], ["--process=man", "--helpfull"]):
        heads = re.findall(
            r"^  --(?:\[no\])?(\w+):", parse(*arguments).stdout, re.MULTILINE
        )
        own = {"verbosity", "method", "helpfull"}  # And -h,--help.
        assert sorted(heads) == sorted({each.name for each in config.listed()} | own)


def test_messages_name_the_command_as_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/env/bin/tff-reg", "run"])
    result = parse("--proces=fedavg")
    assert result.stderr.startswith("tff-reg run: --proces: there is no such flag")
    assert "bin/" not in parse("--help").stdout
    text = "bin/run, bin/analyze cost, bin/runs, bin/test, runs/bin/bench"
    assert command_line.as_typed(text) == (
        "tff-reg run, tff-reg analyze cost, tff-reg runs, bin/test, runs/bin/bench"
    )
