"""The papers' recipes: all cells of the tables, complete, and found by name.

That they run is seen in tests/tasks/test_recipe_rounds.py, what the command says of
them in tests/test_recipes_command.py.
"""

import numpy as np
import pytest

from tests import commands
from tests.tasks import recipe_settings
from tff_reg import experiment, tasks
from tff_reg.commands import run
from tff_reg.data import partitions
from tff_reg.methods import catalogue
from tff_reg.tasks import recipes
from tff_reg.tasks.recipes import artifacts

ALL = recipes.recipes()


def test_a_recipe_knows_its_cell():
    recipe = recipes.recipe("fedalign/table2/mixup-alpha2.5")
    assert recipe.table.paper.title.endswith("(FedAlign), Mendieta et al., CVPR 2022")
    assert (recipe.table.number, recipe.row, recipe.column) == (
        "2",
        "Mixup",
        "alpha = 2.5",
    )
    assert recipe.published == "55.5 ± 0.4"
    assert recipe.measure == "accuracy in %, mean and deviation of three runs"
    assert "of an epoch follow the authors' code." in recipe.notes[0]
    of_column = recipes.recipe("man/table1/fedavg-tiny-imagenet-iid").measure
    assert of_column.endswith("in brackets the rounds to 28 %")
    for recipe in ALL:
        assert recipe.published and recipe.measure, recipe.name


@pytest.mark.parametrize("paper", sorted({recipe.table.paper.name for recipe in ALL}))
def test_the_settings_of_every_recipe_hold(paper):
    for recipe in ALL:
        if recipe.table.paper.name != paper:
            continue
        values = recipe_settings.resolve(recipe.name, "--seed=2")
        for name, value in recipe.settings.items():
            if name == "max_gradient_norm":
                value = value or None
            if name == "output_dir":
                value = f"runs/{recipe.name}-seed2"
            assert values.given().get(name) == value, (recipe.name, name)
        # Nothing that the paper determines is left to a default.
        settings_of_paper = {"total_rounds", "batch_size", "model", "norm", "partition"}
        assert settings_of_paper <= recipe.settings.keys()
        catalogue.build(values.process, values.hyperparameters)
        # Nothing in it contradicts the rest, which would be refused.
        asked = experiment.RunConfig.of({"seed": 2, **recipe.settings})
        assert asked.resolved() == values, recipe.name


@pytest.mark.parametrize(
    "name, near",
    [
        ("fedalign/table2/mixap", "fedalign/table2/mixup"),
        ("FedMLB/Table2/FedProx", "fedmlb/table2/fedprox or fedmlb/table2/fedprox-500"),
        ("fedalign/table2", "fedalign/table2/fedavg-alpha0.1, "),
    ],
)
def test_raises_on_an_unknown_name_and_says_which_are_near(name, near):
    with pytest.raises(recipes.UnknownRecipeError) as caught:
        recipes.settings(name)
    message = str(caught.value)
    assert message.startswith(f"There is no recipe {name!r} (did you mean {near}")
    assert message.endswith("?); bin/recipes lists them.")


def test_names_match_by_a_part_or_as_in_a_shell():
    def matching(pattern):
        return [recipe.name for recipe in recipes.matching(pattern)]

    names = [recipe.name for recipe in ALL]
    assert matching("") == matching("*") == names
    assert matching("TABLE2/fedprox-p") == [
        "univarfl/table2/fedprox-p0.1",
        "univarfl/table2/fedprox-p0.5",
    ]
    assert matching("fedmlb/table2/fed?rox*") == [
        "fedmlb/table2/fedprox",
        "fedmlb/table2/fedprox-500-clients",
    ]
    # A pattern is of the whole name.
    with pytest.raises(recipes.UnknownRecipeError, match="No recipe's name"):
        recipes.matching("table2/*")


def test_settings_of_some_cells_by_hand():
    sampled = recipes.settings("fedalign/table7/fedalign-imagenet-200-c32x0.125-50")
    assert (sampled["num_clients"], sampled["clients_per_round"]) == (32, 4)
    assert sampled["total_rounds"] == 50 and sampled["model"] == "resnet18_imagenet"
    assert recipes.settings("fedalign/table5/gradaug-n3")["gradaug_strength"] == 1.5
    large = recipes.settings("fedmlb/table10/feddyn+fedmlb-500-clients-tiny-imagenet")
    assert large["num_clients"] == 500 and large["clients_per_round"] == 10
    assert large["batch_size"] == 20 and large["concentration"] == 0.6
    assert large["targets"] == (0.26, 0.32)
    assert recipes.settings("fedmlb/table3/fedmlb-k200")["local_epochs"] == 20
    assert recipes.settings("fedmlb/table6/paths-135")["fedmlb_paths"] == (1, 3, 5)
    cell = recipes.settings("fedmlb/table7/lambda12-lambda20")
    assert cell["fedmlb_cross_entropy"] == 2 and cell["fedmlb_distillation"] == 0
    adam = recipes.settings("fedmlb/table11/fedadam")
    assert adam["client_learning_rate"] == 0.01 and "concentration" not in adam
    tiny = recipes.settings("man/table1/feddc+man-tiny-imagenet-delta0.6")
    assert tiny["man_strength"] == 0.1 and tiny["process"] == "feddc+man"
    assert tiny["man_scaling"] == "paper" and tiny["man_terms"] == "paper"
    assert tiny["clients_per_round"] == 10 and tiny["averages_all_clients"] is True
    assert recipes.settings("man/table2/fedavg+man")["man_strength"] == 0.15
    assert recipes.settings("univarfl/table1/moon-pacs")["partition"] == "domain"
    assert recipes.settings("univarfl/table2/univarfl-p0.1")["clients_per_round"] == 1


def test_three_recipes_are_as_their_papers_and_codes_say_in_every_setting():
    # Typed from METHODS.md of the papers, not from the library.
    of_hundred = dict(
        num_clients=100,
        client_sampling="fixed",
        local_epochs=5,
        batch_size=50,
        client_learning_rate=0.1,
        learning_rate_schedule="exponential",
        learning_rate_decay=0.998,
        client_momentum=0.0,
        client_weight_decay=1e-3,
        max_gradient_norm=10.0,
    )
    expected = {
        "fedalign/table2/fedprox-alpha2.5": dict(
            process="fedprox",
            fedprox_strength=1e-4,
            task="cifar100",
            model="resnet56",
            norm="batch",
            augmentation="crop_flip",
            num_clients=16,
            clients_per_round=16,
            total_rounds=25,
            local_epochs=20,
            batch_size=64,
            drop_remainder=True,
            partition="dirichlet_unbalanced",
            concentration=2.5,
            client_learning_rate=0.01,
            learning_rate_schedule="constant",
            client_momentum=0.9,
            client_nesterov=True,
            client_weight_decay=1e-4,
            max_gradient_norm=0.0,
        ),
        "fedmlb/table1/fedmlb-500-clients-tiny-imagenet": dict(
            of_hundred,
            process="fedmlb",
            fedmlb_cross_entropy=1.0,
            fedmlb_distillation=1.0,
            fedmlb_temperature=1.0,
            task="tiny_imagenet",
            model="resnet18",
            norm="group",
            augmentation="rotate_crop_flip",
            num_clients=500,
            clients_per_round=10,
            total_rounds=1000,
            batch_size=20,
            partition="dirichlet_sequential",
            concentration=0.3,
            score_at_rounds=(500, 1000),
            targets=(0.26, 0.32),
        ),
        "man/table1/feddyn+man-tiny-imagenet-delta0.6": dict(
            of_hundred,
            process="feddyn+man",
            feddyn_strength=0.01,
            feddyn_clipping="half",
            man_strength=0.1,
            man_scaling="paper",
            man_terms="paper",
            task="tiny_imagenet",
            model="man_convnet",
            norm="group",
            augmentation="half_crop_flip",
            pixel_mean=(0.485, 0.456, 0.406),
            pixel_std=(0.229, 0.224, 0.225),
            client_sampling="independent",
            clients_per_round=10,
            total_rounds=500,
            partition="dirichlet_balanced",
            concentration=0.6,
            averages_all_clients=True,
            targets=(0.28,),
            target_measure="raw",
            target_model="all_clients",
        ),
    }
    for name, settings in expected.items():
        own = {"output_dir": f"runs/{name}-seed{{seed}}"}
        assert recipes.settings(name) == {**settings, **own}, name


def _has(pattern, **expected):
    """All recipes of a pattern have these settings; None is for none."""
    for recipe in recipes.matching(pattern):
        found = {name: recipe.settings.get(name) for name in expected}
        assert found == expected, recipe.name


def test_mans_recipes_have_the_numbers_of_its_authors_scripts():
    # The radii of the SAM code, by what was run.
    _has("man/table1/fedsam-tiny-imagenet-iid", fedsam_radius=0.03)
    _has("man/table1/fedsam+man-tiny-imagenet-iid", fedsam_radius=0.01)
    _has("man/*/fedspeed*", fedspeed_strength=0.01, fedspeed_radius=0.01)
    _has("man/*/feddyn*", feddyn_strength=0.01, feddyn_clipping="half")
    _has("man/*+man-tiny*", man_strength=0.1, man_scaling="paper", man_terms="paper")
    _has("man/table2/*+man*", man_strength=0.15, man_scaling="code")
    _has("man/*", client_sampling="independent", drop_remainder=None)
    _has("man/*", target_measure="raw", target_model="all_clients")
    _has("man/table1/*-cifar-100-iid", partition="iid_stratified")
    _has("man/table1/*-tiny-imagenet-iid", partition="iid")
    _has("man/table1/*-tiny-imagenet-*", pixel_mean=(0.485, 0.456, 0.406))
    _has("man/table1/*-cifar-100-*", pixel_mean=(0.5071, 0.4867, 0.4408))


def test_fedmlbs_recipes_have_the_numbers_of_its_groups_code():
    _has("fedmlb/*/fedadam*", server_optimizer="adam", server_learning_rate=0.01)
    betas = {"server_beta1": 0.9, "server_beta2": 0.99, "server_epsilon": 0.001}
    _has("fedmlb/*/fedadam*", **betas)
    _has("fedmlb/*/feddyn*", feddyn_strength=0.1, feddyn_clipping="whole")
    weights = {"fedntd_cross_entropy": 0.7, "fedntd_strength": 0.3}
    _has("fedmlb/*ntd*", **weights, fedntd_temperature=1.0)
    # Of the later code, too: 0.001 ||w - w_g||^2 is mu / 2 of it.
    _has("fedmlb/*fedprox*", fedprox_strength=0.002)
    _has("fedmlb/*fedavgm*", server_momentum=0.4)
    _has("fedmlb/table6/*", fedmlb_divisor="all", pixel_std=(0.2470, 0.2435, 0.2616))
    _has("fedmlb/table10/*", partition="dirichlet_sequential", client_sampling="fixed")
    _has("fedmlb/*tiny-imagenet*", pixel_mean=None, pixel_std=None)


def test_fedaligns_recipes_drop_short_batches_and_have_imagenets_resolutions():
    _has("fedalign/*", drop_remainder=True, batch_size=64)
    _has("fedalign/*/gradaug-n?-cifar*", gradaug_resolutions=None)
    for count in (1, 2):
        recipe = recipes.settings(f"fedalign/table7/gradaug-n{count}-imagenet-200-c16")
        sides = [round(224 * share) for share in recipe["gradaug_resolutions"]]
        assert sides == [224, 192, 160, 128]


def test_univarfls_recipes_use_feduvs_settings_where_unspecified():
    of_all = {"projector": "feduv", "batch_size": 128, "norm": "batch"}
    _has("univarfl/*", **of_all, drop_remainder=True, learning_rate_schedule="cosine")
    _has("univarfl/table2/*", model="feduv_cnn", pixel_mean=(0.5, 0.5, 0.5))
    _has("univarfl/*cifar*", model="resnet18_feduv", augmentation="none")
    _has("univarfl/*/univarfl*", univarfl_variance_kind="sample")


def test_the_newest_recipes_have_the_numbers_of_public_code():
    _has("fl_simulator/*", total_rounds=1000, local_epochs=5, client_learning_rate=0.1)
    _has("fl_simulator/*-200-clients*", num_clients=200, batch_size=25)
    _has("fl_simulator/*-iid", partition="iid", concentration=None)
    _has("fl_simulator/*/fedspeed*", fedspeed_radius=0.1, fedspeed_ascent="clean")
    _has("fl_simulator/*/feddyn*", feddyn_strength=0.1, learning_rate_decay=0.9995)
    _has("asd/*", total_rounds=500, client_weight_decay=1e-3, max_gradient_norm=10.0)
    _has("asd/*+asd*", asd_strength=20.0, asd_uniform=False)
    _has("fedrcl/*", clients_per_round=5, client_weighting="uniform")
    _has("fedexp/*", client_learning_rate=0.01, client_weight_decay=1e-4)
    # Seconds are those of a run of the table.
    canonical = artifacts.canonical("fl_simulator/table1/fedcm-time-round")
    assert canonical == "fl_simulator/table1/fedcm"


@pytest.mark.slow
def test_the_clients_of_every_recipe_can_be_dealt():
    seen = set()
    for recipe in ALL:
        for resolve in (recipe_settings.resolve, recipe_settings.in_small):
            values = resolve(recipe.name)
            names = ("task", "scale", "partition", "concentration", "num_clients")
            key = tuple(getattr(values, name) for name in names)
            if key in seen:
                continue
            seen.add(key)
            known = tasks.defaults(values.task)
            if values.scale is None:
                count = known.num_train_examples or 9000
                labels = np.arange(count) % known.num_classes
                domains = np.arange(count) // known.num_classes % 4
                dealt = partitions.partition(
                    values.partition,
                    labels,
                    values.num_clients,
                    seed=0,
                    concentration=values.concentration,
                    domains=domains,
                )
            else:
                dealt = build_task(values).partition
            assert len(dealt) == values.num_clients, recipe.name
            assert min(map(len, dealt)) >= 10, recipe.name
    assert len(seen) > 40


def build_task(values):
    return tasks.build(
        values.task,
        partition=values.partition,
        concentration=values.concentration,
        num_clients=values.num_clients,
        seed=0,
        synthetic_data=True,
        scale="tiny",
    )


def test_the_command_takes_a_recipe_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = commands.call(
        run.main,
        "--recipe=univarfl/table2/fedprox-p0.1",
        "--scale=tiny",
        "--synthetic_data",
        "--model=cnn",
        "--seed=4",
    )
    assert done.returncode == 0, done.stderr
    assert "48 training and 24 test examples" in done.stdout
    assert "1 of 4 clients a round" in done.stdout
    assert "scale=tiny" in done.stdout
    assert "rounds   1, seed 4" in done.stdout
    directory = tmp_path / "runs" / "univarfl" / "table2" / "fedprox-p0.1-seed4"
    assert (directory / "summary.json").exists()
