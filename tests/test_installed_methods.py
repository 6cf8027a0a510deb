"""A method from an installed package works as ours do, without a change here."""

import json

import pytest

from tests import commands, documents
from tff_reg.commands import compare, run

SMALL = [
    "--model=cnn",
    "--num_clients=4",
    "--clients_per_round=2",
    "--partition=iid",
    "--local_epochs=1",
    "--anchor_strength=0.25",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Calls commands where the package is installed."""
    folder = tmp_path_factory.mktemp("installed") / "packages"
    documents.install_tutorials_method(folder)
    with commands.calling(run.main, folder) as call:
        yield call


def test_help_has_its_flags(installed):
    told = installed("--process=anchor", "--helpfull")
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert "  --anchor_strength: Factor of the distance. [0.5]" in lines
    assert "  --anchor_power: Of the distance: 1, 2 [2]" in lines


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--anchor_strength=-1", "--anchor_strength=-1.0: it must be at least 0."),
        ("--anchor_power=3", "--anchor_power=3: there is no such"),
    ],
)
def test_its_strengths_are_checked(installed, tmp_path, flag, words):
    directory = f"--output_dir={tmp_path / 'run'}"
    done = installed("--process=anchor", flag, directory)
    assert words in commands.refusal(done)
    assert not list(tmp_path.iterdir())


def test_a_combination_with_ours_runs_resumes_and_is_compared(installed, tmp_path):
    folder = tmp_path / "man+anchor-seed0"
    arguments = ["--process=man+anchor", *SMALL, f"--output_dir={folder}"]
    for rounds in (1, 2):
        done = installed(*arguments, f"--total_rounds={rounds}")
        assert done.returncode == 0, done.stderr
    assert "Resuming after round 1 of 2." in done.stdout
    config = json.loads((folder / "config.json").read_text())
    assert config["anchor_strength"] == 0.25 and config["anchor_power"] == 2
    # MAN's paper comes first.
    assert config["client_learning_rate"] == 0.1
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    assert "training/anchor/term" in header and "training/man/term" in header
    assert len(rows) == 2
    compared = commands.call(
        compare.main,
        *("--processes=man+anchor", *SMALL, "--total_rounds=2", "--settings_of=each"),
        f"--output_dir={tmp_path}",
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "finished before" in compared.stdout
    assert "man+anchor" in (tmp_path / "table.md").read_text()
