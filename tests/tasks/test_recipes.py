"""The papers' recipes: the files are those described, and complete.

That they run is seen in tests/tasks/test_recipe_rounds.py.
"""

import pathlib

import numpy as np
import pytest

import tasks
from bin import run
from tasks import recipes
from tests import commands
from tests.tasks import recipe_settings
from tff_reg.data import partitions
from tff_reg.experiment import settings
from tff_reg.processes import catalog

ROOT = pathlib.Path(__file__).parents[2]
ALL = recipes.recipes()

FEDALIGN_METHODS = "FedAvg, FedProx, MOON, Mixup, StochDepth, GradAug"
SERVER_METHODS = (
    "FedAvg, FedMLB, FedAvgM, FedAvgM + FedMLB, FedADAM, FedADAM + FedMLB, FedDyn,"
    " FedDyn + FedMLB"
)
LOCAL_METHODS = (
    "FedAvg, FedAvg + KD, FedAvg + FitNet, FedProx, FedLS-NTD, FedGKD, FedMLB"
)
TWO_DATA_SETS = "CIFAR-100; Tiny-ImageNet"
TWO_SIZES = "100 clients; 500 clients"
LAMBDA_1 = "lambda1 = 0, lambda1 = 1, lambda1 = 2, lambda1 = 3"
LAMBDA_2 = "lambda2 = 0; lambda2 = 1; lambda2 = 2; lambda2 = 3"
DELTAS = "delta = 0.3; delta = 0.6"
UNIVARFL_METHODS = "FedAvg, FedProx, MOON, Freeze, UniVarFL"

# Rows and columns as the papers print them: (paper, number, part) to both. Of tables
# whose columns are several numbers of one run, the column is missing.
PRINTED = {
    ("fedalign", 1, ""): (FEDALIGN_METHODS, ""),
    ("fedalign", 2, ""): (
        FEDALIGN_METHODS,
        "alpha = 0.1; alpha = 0.5; alpha = 2.5; homog",
    ),
    ("fedalign", 3, ""): (FEDALIGN_METHODS, "E = 10; E = 20; E = 30"),
    ("fedalign", 4, ""): (
        FEDALIGN_METHODS,
        "C = 16; C = 32; C = 64; C = 64 x 0.25; C = 64 x 0.25 (100)",
    ),
    ("fedalign", 5, ""): (
        "FedAvg, FedProx, MOON, Mixup, StochDepth, GradAug (n = 1), GradAug (n = 2),"
        " GradAug (n = 3), GradAug (n = 4), FedAlign",
        "",
    ),
    ("fedalign", 6, ""): (
        "FedAlign",
        "alpha = 0.1; alpha = 2.5; homog; E = 10; E = 30; C = 32; C = 64;"
        " C = 64 x 0.25; C = 64 x 0.25 (100)",
    ),
    ("fedalign", 7, ""): (
        "FedAvg, FedProx, MOON, Mixup, StochDepth, GradAug (n = 2), GradAug (n = 1),"
        " FedAlign",
        "CIFAR-10, C = 16; CIFAR-10, C = 64 x 0.25 (100); ImageNet-200, C = 16;"
        " ImageNet-200, C = 32 x 0.125 (50)",
    ),
    ("fedmlb", 1, ""): (SERVER_METHODS, TWO_DATA_SETS),
    ("fedmlb", 1, "500 clients"): (SERVER_METHODS, TWO_DATA_SETS),
    ("fedmlb", 2, ""): (LOCAL_METHODS, TWO_SIZES),
    ("fedmlb", 3, ""): (LOCAL_METHODS, "K = 100; K = 200"),
    ("fedmlb", 4, ""): ("FedAvg, FedMLB G->L, FedMLB L->G", TWO_SIZES),
    ("fedmlb", 5, ""): (
        "paths 12345, paths 1234, paths 123, paths 12, paths 1, paths 5, paths 45,"
        " paths 345, paths 2345",
        "",
    ),
    # Each number of paths stands for all choices of as many.
    ("fedmlb", 6, ""): (
        "paths 1, paths 2, paths 3, paths 4, paths 5,"
        " paths 12, paths 13, paths 14, paths 15, paths 23,"
        " paths 24, paths 25, paths 34, paths 35, paths 45,"
        " paths 123, paths 124, paths 125, paths 134, paths 135,"
        " paths 145, paths 234, paths 235, paths 245, paths 345,"
        " paths 1234, paths 1235, paths 1245, paths 1345, paths 2345, paths 12345",
        "",
    ),
    ("fedmlb", 7, ""): (LAMBDA_1, LAMBDA_2),
    ("fedmlb", 8, ""): (
        "Dir(0.3), Dir(0.6)",
        "tau = 0.75; tau = 1; tau = 1.5; tau = 2; tau = 3; tau = 5",
    ),
    ("fedmlb", 9, ""): (
        "VGG-9, MobileNet, ShuffleNet, SqueezeNet, ResNet-18",
        "FedAvg; FedLS-NTD; FedGKD; FedMLB",
    ),
    ("fedmlb", 10, ""): (SERVER_METHODS, TWO_DATA_SETS),
    ("fedmlb", 10, "500 clients"): (SERVER_METHODS, TWO_DATA_SETS),
    ("fedmlb", 11, ""): (
        SERVER_METHODS.replace("FedMLB,", "FedAvg + FedMLB,", 1),
        TWO_DATA_SETS,
    ),
    ("fedmlb", 11, "500 clients"): (
        SERVER_METHODS.replace("FedMLB,", "FedAvg + FedMLB,", 1),
        TWO_DATA_SETS,
    ),
    ("man", 1, ""): (
        "FedAvg, FedAvg + MAN, FedSAM, FedSAM + MAN, FedASAM, FedASAM + MAN, FedDyn,"
        " FedDyn + MAN, FedDC, FedDC + MAN, FedSpeed, FedSpeed + MAN",
        "CIFAR-100, delta = 0.3; CIFAR-100, delta = 0.6; CIFAR-100, iid;"
        " Tiny-ImageNet, delta = 0.3; Tiny-ImageNet, delta = 0.6; Tiny-ImageNet, iid",
    ),
    ("man", 2, ""): (
        "FedAvg, FedAvg + MAN, FedSAM, FedSAM + MAN, FedDyn, FedDyn + MAN, FedDC,"
        " FedDC + MAN",
        DELTAS,
    ),
    ("univarfl", 1, ""): (
        UNIVARFL_METHODS,
        "STL-10, alpha = 0.01; STL-10, alpha = 1.0; CIFAR-100, alpha = 0.01;"
        " CIFAR-100, alpha = 1.0; PACS; HAM10000",
    ),
    ("univarfl", 2, ""): (UNIVARFL_METHODS, "p = 0.1; p = 0.5; p = 1.0"),
}


def test_the_files_are_those_that_the_description_makes():
    expected = {recipe.path: recipes.render(recipe) for recipe in ALL}
    found = {
        path.relative_to(recipes.ROOT).as_posix(): path.read_text("utf-8")
        for path in recipes.ROOT.rglob("*.flags")
    }
    assert len(expected) == len(ALL)
    assert f"{len(ALL)} in all" in (ROOT / "README.md").read_text("utf-8")
    assert found == expected, "bin/launch -m tasks.recipes writes them anew"


def test_writing_makes_the_files_and_deletes_those_that_are_no_longer_described(
    tmp_path,
):
    old = tmp_path / "man" / "table1" / "old.flags"
    old.parent.mkdir(parents=True)
    old.write_text("--process=man\n")
    assert recipes.write(tmp_path) == len(ALL)
    assert len(list(tmp_path.rglob("*.flags"))) == len(ALL) and not old.exists()


def test_every_row_and_column_of_every_table_has_its_recipe():
    described = {}
    for recipe in ALL:
        key = (recipe.table.paper.name, recipe.table.number, recipe.table.part)
        described.setdefault(key, []).append((recipe.row, recipe.column))
    assert described.keys() == PRINTED.keys()
    for key, (rows, columns) in PRINTED.items():
        rows = [row.strip() for row in rows.split(",")]
        columns = [column.strip() for column in columns.split(";")]
        if columns == [""]:
            columns = [described[key][0][1]]
        printed = [(row, column) for row in rows for column in columns]
        assert described[key] == printed, key


def test_a_file_says_what_it_is():
    text = (recipes.ROOT / "fedalign/table2/mixup-alpha2.5.flags").read_text("utf-8")
    comment = " ".join(
        line.lstrip("# ") for line in text.splitlines() if line.startswith("#")
    )
    assert "(FedAlign), Mendieta et al., CVPR 2022. Table 2:" in comment
    assert "Row Mixup, column alpha = 2.5. Published: 55.5 ± 0.4 (accuracy" in comment
    assert "weight decay are the authors' code's." in comment
    for recipe in ALL:
        assert recipe.published, recipe.path


@pytest.mark.parametrize("paper", ["fedalign", "fedmlb", "man", "univarfl"])
def test_every_file_is_read_and_its_settings_hold(paper):
    for recipe in ALL:
        if recipe.table.paper.name != paper:
            continue
        values = recipe_settings.resolve(recipe, "--seed=2")
        for name, value in recipe.flags.items():
            if name == "max_gradient_norm":
                value = value or None
            assert values[name] == value, (recipe.path, name)
        directory = f"runs/{recipe.path.removesuffix('.flags')}-seed2"
        assert values["output_dir"] == directory
        # Nothing that the paper determines is left to a default.
        settings_of_paper = {"total_rounds", "batch_size", "model", "norm", "partition"}
        assert settings_of_paper <= recipe.flags.keys()
        catalog.build_parts(values["process"], settings.strengths(values))


def test_settings_of_some_cells_by_hand():
    by_path = {recipe.path: recipe for recipe in ALL}

    def flags_of(path):
        return by_path[f"{path}.flags"].flags

    sampled = flags_of("fedalign/table7/fedalign-imagenet-200-c32x0.125-50")
    assert (sampled["num_clients"], sampled["clients_per_round"]) == (32, 4)
    assert sampled["total_rounds"] == 50 and sampled["model"] == "resnet18_imagenet"
    assert flags_of("fedalign/table5/gradaug-n3")["gradaug_strength"] == 1.5
    large = flags_of("fedmlb/table10/feddyn+fedmlb-500-clients-tiny-imagenet")
    assert large["num_clients"] == 500 and large["clients_per_round"] == 10
    assert large["batch_size"] == 20 and large["concentration"] == 0.6
    assert large["target_accuracies"] == "0.26,0.32"
    assert flags_of("fedmlb/table3/fedmlb-k200")["local_epochs"] == 20
    assert flags_of("fedmlb/table6/paths-135")["fedmlb_paths"] == "1,3,5"
    cell = flags_of("fedmlb/table7/lambda12-lambda20")
    assert cell["fedmlb_cross_entropy"] == 2 and cell["fedmlb_distillation"] == 0
    adam = flags_of("fedmlb/table11/fedadam")
    assert adam["client_learning_rate"] == 0.01 and "concentration" not in adam
    tiny = flags_of("man/table1/feddc+man-tiny-imagenet-delta0.6")
    assert tiny["man_strength"] == 0.1 and tiny["process"] == "feddc+man"
    assert tiny["clients_per_round"] == 10 and tiny["averages_all_clients"] is True
    assert flags_of("man/table2/fedavg+man")["man_strength"] == 0.15
    assert flags_of("univarfl/table1/moon-pacs")["partition"] == "domain"
    assert flags_of("univarfl/table2/univarfl-p0.1")["clients_per_round"] == 1


@pytest.mark.slow
def test_the_clients_of_every_recipe_can_be_dealt():
    seen = set()
    for recipe in ALL:
        for values in (recipe_settings.resolve(recipe), recipe_settings.in_small(recipe)):
            names = ("task", "scale", "partition", "concentration", "num_clients")
            key = tuple(values[name] for name in names)
            if key in seen:
                continue
            seen.add(key)
            known = tasks.defaults(values["task"])
            if values["scale"] is None:
                count = known.num_train_examples or 9000
                labels = np.arange(count) % known.num_classes
                domains = np.arange(count) // known.num_classes % 4
                dealt = partitions.partition(
                    values["partition"],
                    labels,
                    values["num_clients"],
                    seed=0,
                    concentration=values["concentration"],
                    domains=domains,
                )
            else:
                dealt = build_task(values).partition
            assert len(dealt) == values["num_clients"], recipe.path
            assert min(map(len, dealt)) >= 10, recipe.path
    assert len(seen) > 40


def build_task(values):
    return tasks.build(
        values["task"],
        partition=values["partition"],
        concentration=values["concentration"],
        num_clients=values["num_clients"],
        seed=0,
        synthetic_data=True,
        scale="tiny",
    )


def test_the_command_takes_a_recipe_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = recipes.ROOT / "univarfl" / "table2" / "fedprox-p0.1.flags"
    done = commands.call(
        run.main,
        f"--flagfile={recipe}",
        "--scale=tiny",
        "--synthetic_data",
        "--seed=4",
    )
    assert done.returncode == 0, done.stderr
    assert "48 training and 24 test examples of random pixels" in done.stdout
    assert "1 of 4 clients a round" in done.stdout
    assert "rounds   1, seed 4, scale tiny" in done.stdout
    directory = tmp_path / "runs" / "univarfl" / "table2" / "fedprox-p0.1-seed4"
    assert (directory / "summary.json").exists()
