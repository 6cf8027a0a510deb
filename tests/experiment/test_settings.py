import dataclasses
import types

import pytest

import tasks
from tff_reg.experiment import settings
from tff_reg.methods import catalogue


def resolve(**requested):
    requested.setdefault("process", "fedalign")
    return settings.resolve(
        requested, task_names=tasks.names(), task_defaults=tasks.defaults
    )


def resolve_on_a_task_with(overrides, **requested):
    """Resolves on a task that replaces some of the papers' settings."""
    defaults = types.SimpleNamespace(
        model="cnn",
        norm="group",
        augmentation="none",
        image_size=None,
        num_train_examples=100,
        num_domains=0,
        options=(),
        override_values=lambda: overrides,
    )
    return settings.resolve(
        {"process": "fedalign", "task": "t", **requested},
        task_names=["t"],
        task_defaults=lambda name: defaults,
    )


def test_what_nobody_gives_is_as_in_the_paper():
    values = resolve()
    paper = dataclasses.asdict(catalogue.settings("fedalign"))
    overridden = tasks.defaults("digits").override_values()
    for name, value in {**paper, **overridden}.items():
        assert values[name] == value, name
    assert values["fedalign_strength"] == 0.45
    assert values["task"] == "digits" and values["seed"] == 0
    assert values["output_dir"] == "runs/fedalign-digits-seed0"


def test_the_user_goes_before_the_task_and_the_task_before_the_paper():
    overrides = {"local_epochs": 3, "batch_size": 7}
    values = resolve_on_a_task_with(overrides, batch_size=9)
    assert values["local_epochs"] == 3
    assert values["batch_size"] == 9
    assert values["client_momentum"] == 0.9
    assert values["model"] == "cnn" and values["norm"] == "group"


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
    return settings.resolve(
        {"recipe": name, **requested},
        task_names=tasks.names(),
        task_defaults=tasks.defaults,
        recipe_settings=RECIPES.__getitem__,
    )


def test_the_user_goes_before_the_recipe_and_the_recipe_before_task_and_paper():
    values = resolve_recipe(num_clients=50, seed=3, man_strength=None)
    own = {**RECIPES["paper/table1/man"], "num_clients": 50, "seed": 3}
    own["output_dir"] = "runs/paper-seed3"
    assert {name: values[name] for name in own} == own
    assert values["augmentation"] == tasks.defaults("cifar10").augmentation
    assert values["batch_size"] == catalogue.settings("man").batch_size
    assert "recipe" not in values
    # As if the user had given all of it.
    assert resolve_recipe() == resolve(**RECIPES["paper/table1/man"])


@pytest.mark.parametrize(
    "requested, name, left",
    [
        ({"process": "fedprox"}, "man_strength", None),
        ({"process": "fedprox+man"}, "man_strength", 0.3),
        ({"partition": "iid"}, "concentration", None),
        ({"num_clients": 8}, "clients_per_round", 8),
        ({"participation": 0.1}, "clients_per_round", 4),
        ({"learning_rate_schedule": "cosine"}, "learning_rate_decay", 1.0),
        ({"client_momentum": 0.0}, "client_nesterov", False),
        ({"server_optimizer": "adam"}, "server_momentum", 0.0),
        ({"model": "feddyn_cnn"}, "norm", "none"),
    ],
)
def test_what_of_a_recipe_makes_no_sense_beside_the_users_falls_away(
    requested, name, left
):
    values = resolve_recipe(**requested)
    assert values.get(name) == left
    assert values["num_clients"] == requested.get("num_clients", 40)


def test_a_recipe_is_no_excuse_for_what_the_user_gives():
    for requested, words in (
        ({"process": "fedprox", "man_strength": 0.1}, "man is not part of"),
        ({"partition": "iid", "concentration": 0.1}, "iid has no concentration"),
        ({"name": "wrong"}, "--batch_size=0: it must be at least 1"),
    ):
        with pytest.raises(settings.SettingError, match=words):
            resolve_recipe(**requested)


def test_raises_on_a_recipe_that_there_is_not():
    for recipe_settings, words in (
        (None, "there are no recipes here."),
        (tasks.recipes.settings, "There is no recipe 'man'"),
    ):
        with pytest.raises(settings.SettingError) as caught:
            settings.resolve(
                {"recipe": "man"},
                task_names=tasks.names(),
                task_defaults=tasks.defaults,
                recipe_settings=recipe_settings,
            )
        assert str(caught.value).startswith(f"--recipe=man: {words}")


def test_a_model_that_cannot_have_the_tasks_norm_has_its_own():
    assert resolve()["norm"] == "batch"
    assert resolve(model="resnet20")["norm"] == "batch"
    assert resolve(model="feddyn_cnn")["norm"] == "none"
    # What the user asks for is refused where the model is made, not replaced.
    assert resolve(model="feddyn_cnn", norm="group")["norm"] == "group"


def test_a_sum_has_the_settings_of_its_first_method_and_all_strengths():
    values = resolve(process="man+FedAlign+fedavg", man_strength=0.3)
    assert values["process"] == "man+fedalign"
    assert values["client_learning_rate"] == 0.1
    assert settings.strengths(values)["man_strength"] == 0.3
    assert settings.strengths(values)["fedalign_width"] == 0.25


def test_participation_becomes_a_number_of_clients():
    values = resolve(num_clients=30, participation=0.1)
    assert values["clients_per_round"] == 3
    assert "participation" not in values
    assert resolve(num_clients=3, participation=0.01)["clients_per_round"] == 1


def test_fewer_clients_than_the_paper_samples_all_take_part():
    assert resolve(num_clients=5)["clients_per_round"] == 5


def test_iid_has_no_concentration_and_no_momentum_no_nesterov():
    assert resolve(partition="iid")["concentration"] is None
    assert resolve(client_momentum=0.0)["client_nesterov"] is False


def test_a_partition_takes_what_it_needs_and_leaves_the_rest():
    values = resolve(partition="shards", classes_per_client=2)
    assert values["classes_per_client"] == 2 and values["concentration"] is None
    values = resolve(partition="split_file", split_file="clients.txt")
    assert values["split_file"] == "clients.txt"
    assert resolve(partition="quantity")["concentration"] == 0.5
    values = resolve(partition="domain", task="pacs", num_clients=8)
    assert values["concentration"] is None


def test_what_a_task_says_of_its_images_is_taken_unless_given():
    values = resolve(task="pacs")
    assert values["image_size"] == 64 and values["augmentation"] == "crop_flip"
    values = resolve(task="pacs", image_size=96, augmentation="none")
    assert values["image_size"] == 96 and values["augmentation"] == "none"
    assert resolve(task="cifar10")["image_size"] is None


def test_a_task_whose_size_only_its_data_say_takes_any_number_of_clients():
    assert resolve(task="arrays", num_clients=10**6)["num_clients"] == 10**6


def test_zero_turns_clipping_off():
    assert resolve()["max_gradient_norm"] == 10.0
    assert resolve(max_gradient_norm=0.0)["max_gradient_norm"] is None


def test_process_settings_are_a_catalog_settings_object():
    values = resolve(batch_size=5)
    found = settings.process_settings(values)
    assert isinstance(found, catalogue.Settings) and found.batch_size == 5


@pytest.mark.parametrize(
    "requested, words",
    [
        ({"process": ""}, "--process is missing"),
        ({"process": "fedalign+fedalign"}, "twice"),
        ({"server_optimizer": "adan"}, "did you mean adam"),
        ({"concentration": 0.0}, "--concentration=0.0: it must be greater than 0"),
        ({"client_momentum": 1.0}, "--client_momentum=1.0: it must be less than 1"),
        ({"participation": 1.5}, "--participation=1.5: it must be at most 1"),
        ({"client_learning_rate": float("inf")}, "finite"),
        ({"fedalign_width": 1.5}, "--fedalign_width=1.5"),
        ({"fedalign_strength": float("nan")}, "--fedalign_strength=nan"),
        ({"man_strength": 0.1}, "man is not part of --process=fedalign"),
        ({"no_such": 1}, "--no_such"),
        ({"client_nesterov": True, "client_momentum": 0.0}, "--client_nesterov=true"),
        ({"learning_rate_decay": 0.9}, "--learning_rate_schedule=exponential"),
        ({"server_epsilon": 0.1}, "--server_epsilon"),
        ({"server_optimizer": "yogi", "server_momentum": 0.9}, "yogi has none"),
        ({"runtime": "native", "devices": "GPU:0"}, "--devices=GPU:0"),
        (
            {"runtime": "remote", "workers": "a:1", "devices": "GPU:0"},
            "--devices=GPU:0: the remote runtime runs on the CPU only",
        ),
        (
            {"runtime": "remote", "workers": "a:1", "require_gpu": True},
            "--require_gpu=true: the remote runtime",
        ),
        ({"workers": "a:1"}, "--workers=a:1: they are for --runtime=remote"),
        ({"runtime": "remote"}, "--workers is missing"),
        ({"runtime": "remote", "workers": "a"}, "--workers=a: a worker must be given"),
        ({"runtime": "remote", "workers": "a:70000"}, "from 1 to 65535"),
        ({"runtime": "remote", "workers": "a:1,a:1"}, "a:1 is named twice"),
        ({"num_clients": 10**6}, "only 1437 training examples"),
        ({"partition": "shards"}, "--classes_per_client is missing"),
        ({"classes_per_client": 2}, "dirichlet_unbalanced has no classes per client"),
        ({"partition": "split_file"}, "--split_file is missing"),
        ({"split_file": "f", "partition": "iid"}, "iid has no split file"),
        ({"partition": "domain"}, "the task digits has no domains"),
        (
            {"partition": "domain", "task": "pacs", "num_clients": 10},
            "the task pacs has 4 domains",
        ),
        ({"data_dir": "/d"}, "--data_dir=/d: the task digits has no such option"),
        ({"task": "cifar10", "image_size": 64}, "--image_size=64: the task cifar10"),
        ({"task": "pacs", "class_list": "f"}, "--class_list=f: the task pacs"),
        ({"augmentation": "crop_flop"}, "did you mean crop_flip"),
    ],
)
def test_what_makes_no_run_is_refused_with_the_flags_name(requested, words):
    with pytest.raises(settings.SettingError) as caught:
        resolve(**requested)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dirichlet_partition_needs_a_concentration():
    with pytest.raises(settings.SettingError, match="--concentration is missing"):
        resolve_on_a_task_with({"concentration": None})


def test_every_setting_of_the_catalog_can_be_set():
    fields = {field.name for field in dataclasses.fields(catalogue.Settings)}
    assert fields <= {option.name for option in settings.OPTIONS}


def test_the_runtimes_are_those_that_there_are():
    from tff_reg import runtime

    assert settings.RUNTIMES == runtime.KINDS
