"""What can be set of a run, and from what a run takes each value."""

import dataclasses
import json
import types

import pytest

from tff_reg import settings, tasks
from tff_reg.experiment.config import (
    run_config as config,
)
from tff_reg.methods import catalogue


def resolve(**requested):
    return config.RunConfig.of({"process": "fedalign", **requested}).resolved()


def resolve_on_a_task_with(overrides, **requested):
    """Resolves on a task that replaces some of the papers' settings."""
    defaults = types.SimpleNamespace(
        model="cnn",
        norm="group",
        augmentation="none",
        image_size=None,
        num_train_examples=100,
        is_own=False,
        num_domains=0,
        num_classes=None,
        kind="images",
        image_shape=None,
        options=(),
        override_values=lambda: overrides,
    )
    own = types.SimpleNamespace(names=lambda: ["t"], defaults=lambda name: defaults)
    asked = config.RunConfig.of({"process": "fedalign", "task": "t", **requested})
    return asked.resolved(own)


def test_what_nobody_gives_is_as_in_the_paper():
    values = resolve().dump()
    paper = catalogue.settings("fedalign")
    overridden = tasks.defaults("digits").override_values()
    for name, value in {**paper, **overridden}.items():
        assert values[name] == value, name
    assert values["fedalign_strength"] == 0.45
    assert values["task"] == "digits" and values["seed"] == 0
    assert values["output_dir"] == "runs/fedalign-digits-seed0"


def test_the_user_goes_before_the_task_and_the_task_before_the_paper():
    overrides = {"local_epochs": 3, "batch_size": 7}
    values = resolve_on_a_task_with(overrides, batch_size=9)
    assert values.local_epochs == 3
    assert values.batch_size == 9
    assert values.client_momentum == 0.9
    assert values.model == "cnn" and values.norm == "group"


RECIPES = {
    "paper/table1/man": {
        "process": "man",
        "task": "cifar10",
        "man_strength": 0.3,
        "num_clients": 40,
        "clients_per_round": 20,
        "partition": "dirichlet_balanced",
        "concentration": 0.6,
        "client_momentum": 0.5,
        "client_nesterov": True,
        "learning_rate_schedule": "exponential",
        "learning_rate_decay": 0.9,
        "server_momentum": 0.7,
        "model": "resnet20",
        "norm": "group",
        "output_dir": "runs/paper-seed{seed}",
    },
    "wrong": {"process": "man", "batch_size": 0},
}


def resolve_recipe(name="paper/table1/man", **requested):
    own = types.SimpleNamespace(
        names=tasks.names,
        defaults=tasks.defaults,
        recipes=types.SimpleNamespace(settings=lambda name, process="": RECIPES[name]),
    )
    return config.RunConfig.of({"recipe": name, **requested}).resolved(own)


def test_the_user_goes_before_the_recipe_and_the_recipe_before_task_and_paper():
    values = resolve_recipe(num_clients=50, seed=3, man_strength=None).dump()
    own = {**RECIPES["paper/table1/man"], "num_clients": 50, "seed": 3}
    own["output_dir"] = "runs/paper-seed3"
    assert {name: values[name] for name in own} == own
    assert values["augmentation"] == tasks.defaults("cifar10").augmentation
    assert "recipe" not in values
    assert values["settings_from"] == "the recipe paper/table1/man"
    # What the recipe does not say is nobody's, not the paper's of the method.
    assert catalogue.settings("man")["client_sampling"] == "independent"
    assert values["client_sampling"] == "fixed"


@pytest.mark.parametrize(
    "requested, name, left",
    [
        ({"process": "fedprox"}, "man_strength", None),
        ({"partition": "iid"}, "concentration", None),
        ({"num_clients": 8}, "clients_per_round", 8),
        ({"participation": 0.1}, "clients_per_round", 4),
        ({"learning_rate_schedule": "cosine"}, "learning_rate_decay", None),
    ],
)
def test_what_of_a_recipe_makes_no_sense_beside_the_users_falls_away(
    requested, name, left
):
    values = resolve_recipe(**requested).dump()
    assert values.get(name) == left
    assert values["num_clients"] == requested.get("num_clients", 40)


def test_a_recipe_is_no_excuse_for_what_the_user_gives():
    for requested, words in (
        ({"process": "fedprox", "man_strength": 0.1}, "man is not part of"),
        (
            {"partition": "iid", "concentration": 0.1},
            "shards_dirichlet or quantity, not iid",
        ),
        ({"name": "wrong"}, "batch_size=0: it must be at least 1"),
    ):
        with pytest.raises(settings.SettingError, match=words):
            resolve_recipe(**requested)


@pytest.mark.parametrize(
    "requested, name, value",
    [
        ({}, "norm", "batch"),
        ({"num_clients": 30, "participation": 0.1}, "clients_per_round", 3),
        ({"task": "pacs"}, "image_size", 64),
        # One that cannot have the task's norm has its own.
        ({"model": "feddyn_cnn"}, "norm", "none"),
        # What the user asks for is refused where the model is made, not replaced.
        ({"model": "feddyn_cnn", "norm": "group"}, "norm", "group"),
        # Of fewer clients than the paper samples, all take part.
        ({"num_clients": 5}, "clients_per_round", 5),
        ({"partition": "iid"}, "concentration", None),
        ({"client_momentum": 0.0}, "client_nesterov", False),
        # Of data whose size only they say, there may be enough.
        ({"task": "arrays", "num_clients": 10**6}, "num_clients", 10**6),
        ({}, "max_gradient_norm", 10.0),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm", None),
    ],
)
def test_what_is_not_given_follows_from_the_rest(requested, name, value):
    assert getattr(resolve(**requested), name) == value


def test_every_setting_is_one_field_with_a_help_under_a_heading():
    listed = config.listed()
    names = [each.name for each in listed]
    assert len(names) == len(set(names))
    own = {f.name for f in dataclasses.fields(config.RunConfig)}
    own -= {"hyperparameters", "settings_from"}
    assert own == {s.name for s in listed if s.group != config.HYPERPARAMETERS}
    assert all(each.help and each.group for each in listed)
    groups = list(dict.fromkeys(each.group for each in listed))
    assert len(groups) == 8 and groups[-1] == config.HYPERPARAMETERS
    assert names[0] == "process"
    hyperparameters = [field.flag for field in catalogue.hyperparameters("man")]
    listed_last = [s.name for s in config.listed("man")][-len(hyperparameters) :]
    assert listed_last == hyperparameters


def test_a_config_comes_back_from_its_file():
    for requested in (
        {"process": "fedalign+man", "man_strength": 1, "targets": (0.5,)},
        {"scale": "tiny", "task": "pacs", "client_momentum": 0.0},
        {"runtime": "ray", "ray_address": "a:1", "aggregator": "robust"},
    ):
        found = resolve(**requested)
        stored = json.loads(json.dumps(found.dump()))
        assert config.ResolvedConfig.load({**stored, "versions": {}}) == found


def test_a_file_without_a_process_is_no_runs():
    with pytest.raises(settings.SettingError, match="process: it is missing"):
        config.ResolvedConfig.load({"total_rounds": 3})


@pytest.mark.parametrize(
    "requested, words",
    [
        ({"process": ""}, "process: it is missing; give a method or a comb"),
        ({"process": "fedalign+fedalign"}, "twice"),
        ({"server_optimizer": "adan"}, "did you mean adam"),
        ({"settings_of": "feddin"}, "no such settings of (did you mean feddyn?)"),
        ({"fedalign_width": 1.5}, "fedalign_width=1.5"),
        (
            {"partition": "iid", "concentration": 1.0},
            "shards_dirichlet or quantity, not iid",
        ),
        ({"man_strength": 0.1}, "man is not part of process=fedalign"),
        ({"no_such": 1}, "no_such: there is no such setting"),
        ({"dp_clip_norm": 1.0}, "it is for aggregator=dp, not mean."),
        ({"clients_per_round": 17}, "clients_per_round=17: there are only 16 clients"),
        ({"clients_per_round": 17, "scale": "0.5"}, "there are only 16 clients"),
        ({"num_clients": 5000, "scale": "0.1"}, "has only 1437 training examples"),
        ({"client_nesterov": True, "client_momentum": 0.0}, "client_nesterov=true"),
        (
            {"learning_rate_decay": 0.9},
            "learning_rate_schedule=exponential or step, not const",
        ),
        (
            {"learning_rate_schedule": "exponential"},
            "learning_rate_decay: it is missing",
        ),
        (  # MAN's 0.998 is that of its own schedule.
            {
                "process": "man",
                "learning_rate_schedule": "step",
                "learning_rate_milestones": (5, 8),
            },
            "it is missing; learning_rate_schedule=step needs",
        ),
        (
            {
                "learning_rate_schedule": "listed",
                "client_learning_rates": (0.1, 0.01),
                "client_learning_rate": 0.01,
            },
            "client_learning_rates has the rate of each round",
        ),
        ({"server_epsilon": 0.1}, "server_optimizer=adam, yogi or adagrad, not sgd."),
        ({"pixel_mean": (0.5,)}, "pixel_mean=0.5: give as many numbers"),
        (
            {"target_model": "all_clients"},
            "target_model=all_clients: it needs averages_all",
        ),
        (
            {"aggregator": "dp", "client_sampling": "independent"},
            "client_sampling=independent: aggregator=dp counts on cohorts of one size",
        ),
        ({"runtime": "ray", "devices": ("GPU:0",)}, "for runtime=in_process, not ray."),
        ({"ray_address": "a:1"}, "it is for runtime=ray, not in_process."),
        ({"num_clients": 10**6}, "only 1437 training examples"),
        (
            {"partition": "shards"},
            "it is missing; partition=shards needs it, such as 2.",
        ),
        ({"classes_per_client": 2}, "shards or shards_dirichlet, not dirichlet_unb"),
        ({"partition": "split_file"}, "split_file: it is missing"),
        (
            {"split_file": "f", "partition": "iid"},
            "it is for partition=split_file, not iid",
        ),
        (
            {"partition": "split_file", "split_file": "f", "partition_seed": 1},
            "partition_seed=1: the split is given",
        ),
        ({"partition": "domain"}, "the task digits has no domains"),
        (
            {"partition": "domain", "task": "pacs", "num_clients": 10},
            "the task pacs has 4 domains",
        ),
        ({"test_domains": ("a",)}, "test_domains=a: the task digits has no domains"),
        ({"task": "pacs", "test_domains": (*"abcd",)}, "leaves no domain to train on"),
        (
            {"task": "pacs", "test_domains": ("a",), "client_evaluation": 0},
            "test_domains=a: clients have no examples of these domains",
        ),
        (
            {
                "task": "pacs",
                "test_domains": ("a",),
                "partition": "domain",
                "num_clients": 4,
            },
            "the task pacs has 3 domains to train on",
        ),
        (
            {"partition": "split_file", "split_file": "f", "imbalance_factor": 2},
            "imbalance_factor=2.0: partition=split_file deals out all",
        ),
        ({"imbalance_factor": 0.5}, "imbalance_factor=0.5: it must be at least 1"),
        ({"label_noise": (1.0,)}, "label_noise=1.0: it must be less than 1"),
        ({"rotations": (45,)}, "rotations=45: there is no 45; choose some of 0, 90"),
        ({"hues": (120.0,)}, "hues=120: the task digits has no colours"),
        ({"data_dir": "/d"}, "data_dir=/d: the task digits has no such option"),
        (
            {"partition": "split_file", "split_file": "f", "scale": "0.5"},
            "scale=0.5: partition=split_file deals out all of a data set",
        ),
        (
            {"task": "cifar10", "synthetic_data": True, "data_dir": "d"},
            "data_dir=d: synthetic_data=true takes the place of all data",
        ),
        ({"task": "cifar10", "image_size": 64}, "image_size=64: the task cifar10"),
        ({"task": "pacs", "class_list": "f"}, "class_list=f: the task pacs"),
    ],
)
def test_what_makes_no_run_is_refused_with_the_settings_name(requested, words):
    with pytest.raises(settings.SettingError) as caught:
        resolve(**requested)
    message = str(caught.value)
    assert message.startswith(caught.value.setting) and "\n" not in message
    assert words in message


@pytest.mark.parametrize(
    "hyperparameters", [{}, {"hyperparameters": {"man_strength": 0.2}}]
)
def test_functions_take_hyperparameters_as_keywords(hyperparameters):
    given = dict(process="man+fedprox", fedprox_strength=0.1, **hyperparameters)
    found = config.RunConfig(**config.RunConfig.gathered(given))
    expected = {"fedprox_strength": 0.1, **hyperparameters.get("hyperparameters", {})}
    assert found.hyperparameters == expected


@pytest.mark.parametrize(
    "given, error, message",
    [
        (dict(process=["fedprox"]), ValueError, "process=fedprox: it must be text"),
        (dict(proces="fedprox"), TypeError, r"no setting 'proces' \(did you mean pr"),
        (
            dict(process="fedprox", fedprox_strength=0.1),
            TypeError,
            r"its hyperparameters: give hyperparameters={'fedprox_strength': 0.1}\.",
        ),
    ],
)
def test_what_is_given_otherwise_is_answered_by_how_to_give_it(given, error, message):
    with pytest.raises(error, match=message):
        config.RunConfig(**given)
