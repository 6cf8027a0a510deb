"""Methods by themselves have the settings of the recipes that are of the same evidence.

The bases are one, `methods.papers`; here are rows: hyperparameters, what a method
brings.
"""

import pytest

from tff_reg import experiment, tasks
from tff_reg.experiment.config import identity as identity_lib
from tff_reg.methods import catalogue, papers

# A recipe of each method whose default settings are a table's.
ROWS = {
    "fedavg": "fedalign/table2/fedavg",
    "fedprox": "fedalign/table2/fedprox",
    "moon": "fedalign/table2/moon",
    "mixup": "fedalign/table2/mixup",
    "stochdepth": "fedalign/table2/stochdepth",
    "gradaug": "fedalign/table2/gradaug",
    "fedalign": "fedalign/table5/fedalign",
    "fedmlb": "fedmlb/table1/fedmlb",
    "kd": "fedmlb/table2/fedavg+kd",
    "fitnet": "fedmlb/table2/fedavg+fitnet",
    "fedgkd": "fedmlb/table2/fedgkd",
    "fedntd": "fedmlb/table2/fedls-ntd",
    "fedavgm": "fedmlb/table1/fedavgm",
    "fedadam": "fedmlb/table1/fedadam",
    "man": "man/table1/fedavg+man",
    "fedsam": "man/table1/fedsam",
    "fedasam": "man/table1/fedasam",
    "feddyn": "man/table1/feddyn",
    "feddc": "man/table1/feddc",
    "fedspeed": "man/table1/fedspeed",
    "freeze": "univarfl/table1/freeze",
    "univarfl": "univarfl/table1/univarfl",
}
# What is of the data set, or of what a table reports.
OF_TABLES = {
    "task",
    "model",
    "norm",
    "augmentation",
    "pixel_mean",
    "pixel_std",
    "drop_remainder",
    "keep_best",
    "averages_all_clients",
}
# FedNTD's own are its authors', who leave the cross-entropy whole.
OF_AUTHORS = {"fedntd": {"fedntd_strength", "fedntd_cross_entropy"}}


@pytest.mark.parametrize("name", ROWS)
def test_default_settings_equal_the_papers_recipe(name):
    recipe = experiment.RunConfig(recipe=ROWS[name]).resolved()
    assert recipe.process == name
    alone = experiment.RunConfig(process=name).resolved()
    but = OF_TABLES | OF_AUTHORS.get(name, set())
    assert identity_lib.differences(alone.dump(), recipe.dump(), but) == []


def test_every_method_names_the_source_of_its_settings():
    for name, method in catalogue.methods().items():
        assert isinstance(method.paper_settings, papers.Settings), name
        assert catalogue.settings_from(name) == method.paper_settings.source
    # Others than those tables' settings, and whose code they are of.
    of_tables = {catalogue.settings_from(name) for name in ROWS}
    others = {
        name: catalogue.settings_from(name).split("'")[0]
        for name in catalogue.names()
        if catalogue.settings_from(name) not in of_tables
    }
    assert others == {
        "feddecorr": "FedDecorr",
        "fedetf": "FedETF",
        "fedsol": "FedSOL",
        "fednova": "FedNova",
        "fedacg": "FedACG",
        "fedrcl": "FedRCL",
        "fedvls": "FedVLS",
        **dict.fromkeys(("fedinit", "fedsmoo", "fedwmsam"), "FL-Simulator"),
        "fednar": "FedNAR",
        **dict.fromkeys(("fedswa", "fedmoswa"), "FedSWA"),
        "fedgloss": "FedGloSS",
        "fedexp": "FedExP",
    }


def test_defaults_by_hand_where_there_is_no_table():
    def of(name, *settings):
        found = catalogue.settings(name)
        return [found[each] for each in settings]

    rates = ("learning_rate_schedule", "client_learning_rate", "client_momentum")
    clients = ("num_clients", "clients_per_round", "total_rounds", "local_epochs")
    assert of("fedetf", *rates) == ["constant", 0.04, 0.9]
    assert of("fedetf", *clients) == [20, 20, 200, 3]
    assert of("feddecorr", *clients) == [10, 10, 100, 10]
    assert of("feddecorr", "concentration", "client_weight_decay") == [0.05, 1e-5]
    assert of("fedacg", "learning_rate_decay", "partition") == [
        0.995,
        "dirichlet_sequential",
    ]
    assert of("fedsol", "learning_rate_decay", "client_momentum") == [0.99, 0.9]
    assert of("fednova", "client_learning_rate") == [0.02]
    assert of("fedvls", *rates) == ["constant", 0.01, 0.9]
    assert of("fedvls", "batch_size", "client_weight_decay") == [64, 0.0]
    assert of("fedrcl", "client_weighting", "learning_rate_decay") == ["uniform", 0.998]
    # As the paper has it for FedAdam, also for those of its kind.
    for name in ("fedadam", "fedyogi", "fedadagrad"):
        assert of(name, "client_learning_rate") == [0.01]
        assert "client_learning_rate" not in catalogue.required_settings(name)


def test_recipes_and_methods_share_the_papers_settings():
    for name, paper in (
        ("fedalign/table2/fedavg", papers.FEDALIGN),
        ("fedmlb/table1/fedavg", papers.FEDMLB),
        ("man/table1/fedavg", papers.MAN),
        ("univarfl/table1/fedavg", papers.UNIVARFL),
    ):
        recipe = tasks.recipes.settings(name)
        assert {each: recipe[each] for each in paper} == dict(paper)
