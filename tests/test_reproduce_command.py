"""`bin/reproduce`: every table and figure of the papers, in small; what is refused."""

import json
import re

import pytest

from tests import commands
from tests.experiment import finished
from tests.experiment.finished import read_csv
from tff_reg import experiment, files
from tff_reg.analysis import figures
from tff_reg.commands import recipes as recipes_command, reproduce
from tff_reg.experiment.config import identity as identity_lib
from tff_reg.experiment.series import reproduction
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import artifacts

ALL = artifacts.artifacts()
# What the papers number, but for what shows no results: FedAlign's Fig. 2 and FedMLB's
# Fig. 1 are of the method.
NUMBERED = {
    "fedalign": ([1, 2, 3, 4, 5, 6, 7], [1]),
    "fedmlb": ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [2, 3, 4, 5, 6, 7, 8, 9]),
    "man": ([1, 2, 3], [1, 2, 3, 4]),
    "univarfl": ([1, 2], [1]),
    "fl_simulator": ([1], []),
    "fedsmoo": ([1], []),
    "fedinit": ([1], []),
    "asd": ([2], []),
    "fedrcl": ([1], []),
    "fedexp": ([1], []),
}


def call(*arguments):
    return commands.call(reproduce.main, *arguments, executor=commands.InThisProcess())


def test_every_table_and_figure_that_shows_results_is_there():
    assert [each.name for each in ALL] == [
        f"{paper}/{kind}{number}"
        for paper, (of_tables, of_figures) in NUMBERED.items()
        for kind, numbers in (("table", of_tables), ("figure", of_figures))
        for number in numbers
    ]


def test_every_recipe_is_in_its_table():
    named = {
        recipe
        for artifact in ALL
        if "table" in artifact.name
        for cell in artifact.cells
        for recipe in cell.recipes
    }
    assert named == {recipe.name for recipe in recipes.recipes()}


def test_published_numbers_stand_beside_what_they_are():
    def published(name, row, column):
        (cell,) = (
            cell
            for cell in artifacts.artifact(name).cells
            if (cell.row, cell.column) == (row, column)
        )
        return dict(zip(cell.quantities, cell.published))

    assert published("man/table1", "FedDC + MAN", "CIFAR-100, delta = 0.6") == {
        "all_clients": "55.40 ± 0.30",
        "rounds@0.5": "129",
    }
    for row, clients, number in (
        ("FedAvg", 100, "41.88"),
        ("FedMLB L->G", 500, "32.03"),
    ):
        of_cell = published("fedmlb/table4", row, f"{clients} clients")
        assert of_cell["ema@500"] == number
    assert published("fedmlb/table10", "FedDyn", "500 clients, Tiny-ImageNet") == {
        "ema@500": "26.42",
        "ema@1000": "31.80",
        "rounds@0.26": "485",
        "rounds@0.32": "1000+",
    }
    assert published("fedalign/table7", "MOON", "ImageNet-200, C = 16") == {
        "accuracy": "61.1 ± 0.2",
        "gflops": "54.4",
        "params": "19.96",
    }
    simulator = "fl_simulator/table1", "FedGamma"
    assert published(*simulator, "200 clients, Dir-0.1") == {"best": "80.09"}
    assert published(*simulator, "Time / round") == {"seconds": "30.13"}
    assert published("fedexp/table1", "FedAvg", "CIFAR-10") == {"accuracy": None}
    assert published("fedmlb/table6", "4 paths", "Average accuracy") == {
        "ema": "53.69 ± 1.43"
    }
    four = artifacts.artifact("fedmlb/table6").cells[3]
    assert len(four.recipes) == 5


def test_the_same_run_of_several_tables_is_one():
    assert artifacts.canonical("fedmlb/table2/fedavg") == "fedmlb/table1/fedavg"
    assert artifacts.canonical("man/table2/feddc") == ("man/table1/feddc"), (
        "Table 2 is measured on the runs of Table 1."
    )


PLAN_ALL = """
import sys
from tff_reg import experiment, files
from tff_reg.experiment.series import reproduction
from tff_reg.tasks.recipes import artifacts
tiny = experiment.RunConfig(scale="tiny", synthetic_data=True)
for each in artifacts.artifacts():
    made = reproduction.planned(each, tiny, seeds=(0, 1), runs_dir=sys.argv[1])
    assert made.runs, each.name
    for run in made.runs:
        assert run.config.total_rounds == 1 and run.config.num_clients <= 4
        assert run.config.model in ("resnet8", "resnet10", "cnn", "feddyn_cnn",
                                    "man_convnet", "feduv_cnn"), run.config.model
    print(each.name, len(made.runs))
assert not {"tensorflow", "tensorflow_federated"} & sys.modules.keys()
"""


def test_all_of_them_can_be_planned_in_small_without_tensorflow(tmp_path):
    done = commands.python(PLAN_ALL, tmp_path / "runs")
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert list(counts) == [each.name for each in ALL]
    # Two seeds of three rows: in small, 100 and 500 clients are the same.
    assert counts["fedmlb/table4"] == "6"
    assert not (tmp_path / "runs").exists()


def test_the_run_of_every_cell_is_that_of_its_recipe(tmp_path):
    """With all settings, so that no cell shows another's run."""
    for each in ALL:
        made = reproduction.planned(
            each, experiment.RunConfig(), runs_dir=str(tmp_path)
        )
        asked = [(cell, recipe) for cell in each.cells for recipe in cell.recipes]
        assert len(asked) == len(made.trials)
        for (cell, recipe), (row, column, planned) in zip(asked, made.trials):
            settings = {**cell.settings, "recipe": recipe}
            own = experiment.RunConfig.of(settings).resolved()
            where = (each.name, row, column)
            assert (row, column) == (cell.row, cell.column)
            assert planned.config.total_rounds == own.total_rounds, where
            found = identity_lib.differences(planned.config.dump(), own.dump())
            assert found == [], where


def in_small(directory):
    return ["--scale=tiny", "--synthetic_data", f"--output_dir={directory}"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """MAN's Table 3, of one run: its directory, and what was printed."""
    directory = tmp_path_factory.mktemp("table") / "d"
    done = call("man/table3", *in_small(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    return directory, done


def test_numbers_stand_beside_the_published_ones(table):
    directory, done = table
    rows = read_csv(directory / "table.csv")
    heads = "row column quantity published here mean deviation seeds round recipes"
    assert [*rows[0]] == heads.split()
    assert [(row["published"], row["here"]) for row in rows] == [
        ("14.71", "14.71"),
        ("0.05715", "0.05715"),
    ]
    text = (directory / "table.md").read_text("utf-8")
    assert text in done.stdout
    assert "At scale tiny" in text and "random images" in text
    assert not (directory / "figure.png").exists()


def test_again_nothing_is_run(table):
    directory, _ = table
    before = (directory / "table.csv").read_bytes()
    with commands.OtherProcess("tensorflow", "tensorflow_federated") as process:
        again = process.call(
            "tff_reg.commands.reproduce", "man/table3", *in_small(directory)
        )
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished before") == 1
    assert (directory / "table.csv").read_bytes() == before


@pytest.mark.slow
def test_a_figure_of_weights_is_analysed_and_drawn(tmp_path):
    directory = tmp_path / "d"
    done = call("man/figure1", *in_small(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv(directory / "table.csv")
    assert [row["published"] for row in rows] == ["51.49", "8744", "43.80", "4397"]
    # Of the model whose accuracy MAN's tables report.
    folder = directory / "man/table1/fedavg+man-seed0/analysis/all_clients"
    made = json.loads((folder / "hessian.json").read_text())
    (found,) = (
        r for r in rows if (r["row"], r["quantity"]) == ("FedAvg + MAN", "trace")
    )
    assert made["of"]["weights"][0] == "all_clients"
    assert float(found["mean"]) == pytest.approx(made["results"]["trace"]["mean"])


def made_of(name, folder, seeds=(0, 1), **kind):
    common = experiment.RunConfig(scale="tiny", synthetic_data=True)
    return reproduction.planned(
        artifacts.artifact(name), common, seeds=seeds, runs_dir=str(folder), **kind
    )


def finish(run, *accuracies, **more):
    finished.finish(run, *accuracies, **more)
    run.is_finished = True


def write(made, folder, **of_files):
    """Writes the table of the runs that have finished."""
    parts = made.sheet.contents(made, (), True, **of_files)
    for _, names, make in parts:
        files.write_only(folder, make(), names)


def test_numbers_are_means_over_seeds_and_over_choices_by_hand(tmp_path):
    made = made_of("fedmlb/table6", tmp_path / "runs")
    for index, planned in enumerate(made.runs):
        finish(planned, [0.01 * index])
    one, two, *_ = made.sheet.numbers(made)
    # Five choices of one path, with seeds 0 and 1: means 0.5, 2.5, 4.5, 6.5, 8.5 %;
    # squares of their deviations from 4.5: 16 + 4 + 0 + 4 + 16 = 40, over 4.
    assert one.mean == pytest.approx(4.5) and one.deviation == pytest.approx(10**0.5)
    assert (one.published, one.here, one.seeds) == ("47.89 ± 3.99", "4.50 ± 3.16", 2)
    assert two.mean == pytest.approx(sum(range(10, 30)) / 20)


def test_a_column_says_the_round_of_shorter_runs(tmp_path):
    common = experiment.RunConfig(synthetic_data=True, total_rounds=4)
    made = reproduction.planned(
        artifacts.artifact("fedmlb/table4"), common, runs_dir=str(tmp_path / "runs")
    )
    finish(made.runs[0], [0.1, 0.2, 0.3, 0.4])
    numbers = made.sheet.numbers(made)
    # 2 of 4 rounds stand for the paper's 500 of 1000: 0.9 x 10 % + 0.1 x 20 %.
    assert (numbers[0].quantity, numbers[0].here) == ("ema@500", "11.00")
    write(made, tmp_path, command="bin/reproduce fedmlb/table4")
    report = (tmp_path / "report.html").read_text("utf-8")
    assert report.count("<table>") == 2 and "<svg" in report
    assert "bin/reproduce fedmlb/table4" in re.sub("<.*?>", "", report)
    head, below = (tmp_path / "table.md").read_text("utf-8").splitlines()[4:8:2]
    assert "EMA after 500 rounds (%)" in head
    assert [each.strip() for each in below.split("|")][3:6:2] == [
        "here, round 2",
        "here, round 4",
    ]


def test_missing_numbers_are_dashes(tmp_path):
    made = made_of("man/table1", tmp_path / "runs", seeds=(0,))
    finish(made.runs[0], [0.2], all_clients=[0.6])
    accuracy, rounds, missing, *_ = made.sheet.numbers(made)
    assert (accuracy.published, accuracy.here) == ("40.90 ± 0.62", "60.00")
    assert (rounds.published, rounds.here, rounds.mean) == ("500+", "1", 1)
    assert (missing.here, missing.mean, missing.seeds) == ("-", None, 0)


def test_what_went_wrong_in_runs_stands_below_as_in_a_comparison(tmp_path):
    made = made_of("fedexp/table1", tmp_path / "runs", seeds=(0,))
    first, second, third, *_ = made.runs
    finish(first, [0.2, 0.3], loss=float("nan"))
    finish(second, [0.2, 0.3, 0.1], patience=1)
    finish(third, [0.2], remarks=["a remark"])
    write(made, tmp_path)
    said = " ".join((tmp_path / "table.md").read_text("utf-8").split())
    assert "FedAvg, CIFAR-10: the last round's numbers not finite." in said
    assert "Runs that may end early ended after 3 rounds." in said
    assert "WARNING: the test set decided when runs end" in said and "A remark." in said


@pytest.mark.parametrize("name", ["fedmlb/figure3", "man/figure2"])
def test_curves_are_drawn_of_finished_runs(name, tmp_path):
    made = made_of(name, tmp_path / "runs", kind=figures.Drawn)
    for index, planned in enumerate(made.runs):
        finish(planned, [0.2 + 0.01 * index], all_clients=[0.3])
    write(made, tmp_path)
    first = (tmp_path / "figure.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    # Fewer runs, another picture; none, none.
    for planned in made.runs[1:]:
        planned.is_finished = False
    write(made, tmp_path)
    assert (tmp_path / "figure.png").read_bytes() != first
    made.runs[0].is_finished = False
    write(made, tmp_path)
    assert not (tmp_path / "figure.png").exists()


def test_flags_go_before_the_recipe_and_strengths_to_their_methods(tmp_path):
    common = experiment.RunConfig.of({"fedprox_strength": 0.5, "local_epochs": 2})
    made = reproduction.planned(
        artifacts.artifact("fedmlb/table2"), common, runs_dir=str(tmp_path)
    )
    hyperparameters = {
        run.config.process: run.config.hyperparameters for run in made.runs
    }
    assert hyperparameters["fedprox"] == {"fedprox_strength": 0.5}
    assert hyperparameters["fedavg"] == {}
    assert {run.config.local_epochs for run in made.runs} == {2}
    small = reproduction.planned(
        artifacts.artifact("fedmlb/table2"),
        experiment.RunConfig(scale="tiny", total_rounds=3, synthetic_data=True),
        runs_dir=str(tmp_path),
    )
    rounds = {(c.total_rounds, c.local_epochs) for c in (r.config for r in small.runs)}
    assert rounds == {(3, 1)}


def test_univarfls_figure_has_its_iid_reference(tmp_path):
    made = made_of("univarfl/figure1", tmp_path, seeds=(0,))
    (reference,) = (run for run in made.runs if run.config.partition == "iid")
    assert reference.config.process == "fedavg"
    assert reference.directory.endswith("fedavg-cifar-100-alpha0.01-iid-seed0")


@pytest.fixture(scope="module")
def no_tensorflow():
    with commands.OtherProcess("tensorflow", "tensorflow_federated") as process:
        yield lambda *arguments: process.call("tff_reg.commands.reproduce", *arguments)


def test_lists_names_runs_and_titles(no_tensorflow):
    done = no_tensorflow("--list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    papers = tuple(NUMBERED)
    listed = [line.split() for line in lines if line.startswith(papers)]
    assert [words[0] for words in listed] == [each.name for each in ALL]
    # 6 methods with 4 splits; 16 cells of MAN's Table 2 are runs of Table 1.
    counts = {words[0]: int(words[1]) for words in listed}
    assert counts["fedalign/table2"] == 24 and counts["man/table2"] == 16
    assert max(map(len, lines)) <= 88
    of_one = no_tensorflow("--list", "univarfl").stdout
    assert "univarfl/table2" in of_one and "man/" not in of_one


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["give one table or figure"]),
        (["fedalign/table1", "man/table1"], ["give one table or figure"]),
        (["fedaling/table1"], ["did you mean fedalign/table1", "--list"]),
        (["--list", "fedavg"], ["'fedavg'"]),
        (["man/table2", "--process=fedavg"], ["--process", "leave it out"]),
        (["man/table2", "--recipe=man/table2/fedavg"], ["--recipe", "leave it out"]),
        (["man/table2", "--output_dir=/proc/x"], ["_dir=/proc/x", "be written to"]),
        (["man/table2", "--runs_dir=/proc/x"], ["--runs_dir=/proc/x", "be written to"]),
    ],
)
def test_refusals(arguments, words, tmp_path, no_tensorflow):
    directory = tmp_path / "d"
    refused = no_tensorflow(f"--output_dir={directory}", *arguments)
    line = commands.refusal(refused, "reproduce")
    assert all(word in line for word in words), line
    assert not directory.exists()


def test_a_table_of_a_file_of_ones_own_stands_beside_its_published_numbers(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert commands.call(recipes_command.main, "--new=mine.toml").returncode == 0
    paper = tmp_path / "mine.toml"
    text = paper.read_text("utf-8")
    paper.write_text(text.replace("| unknown     |", "| 44.3 ± 0.2  |"), "utf-8")
    done = commands.call(
        reproduce.main, "mine.toml/table1", "--scale=tiny", "--total_rounds=1"
    )
    assert done.returncode == 0, done.stderr
    rows = read_csv(tmp_path / "runs/mine/table1/table.csv")
    assert [row["published"] for row in rows] == ["44.3 ± 0.2", "", "44.3 ± 0.2", ""]
    assert all(float(row["mean"]) >= 0 for row in rows)
    assert (tmp_path / "runs/mine/table1/fedprox-seed0/config.json").exists()
    # Refused before anything is run.
    paper = tmp_path / "other.toml"
    paper.write_text(text.replace('["accuracy"]', '["acuracy"]'), "utf-8")
    said = commands.refusal(commands.call(reproduce.main, "other.toml/table1"))
    assert not (tmp_path / "runs/other").exists()
    assert "other.toml, table 1, row FedAvg: There is no quantity 'acuracy'" in said
