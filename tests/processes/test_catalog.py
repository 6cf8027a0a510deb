import dataclasses
import subprocess
import sys

import pytest

from tff_reg import settings
from tff_reg.experiment import config
from tff_reg.processes import catalog


def test_names_are_the_methods():
    assert {"fedavg", "fedprox", "fedalign", "man"} <= set(catalog.names())


def test_needs_no_tensorflow():
    script = (
        "import sys; from tff_reg.processes import catalog;"
        "catalog.strength_fields(); catalog.build_parts('fedalign', {});"
        "assert not {'tensorflow', 'tensorflow_federated', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "process, parts",
    [
        ("fedavg", ()),
        ("FedProx", ("fedprox",)),
        ("fedavg+man", ("man",)),
        ("man + fedalign", ("fedalign", "man")),
    ],
)
def test_parses_sums(process, parts):
    assert catalog.parse(process) == parts


@pytest.mark.parametrize(
    "process, message",
    [
        ("fedalgin", "Unknown process 'fedalgin'. Did you mean 'fedalign'"),
        ("man+", "Unknown process ''"),
        ("man+man", "names 'man' twice"),
    ],
)
def test_raises_on_what_is_no_process(process, message):
    with pytest.raises(catalog.UnknownProcessError, match=message.replace("?", r"\?")):
        catalog.parse(process)


def test_settings_are_those_of_the_first_method():
    assert catalog.settings("fedavg+man") == catalog.settings("man")
    assert catalog.settings("man+fedalign") == catalog.settings("man")
    assert catalog.settings("fedalign+man")["max_gradient_norm"] == 10.0
    assert "max_gradient_norm" not in catalog.settings("fedprox")
    paper = catalog.settings("fedalign")
    numbers = [paper[n] for n in ("num_clients", "local_epochs", "total_rounds")]
    assert numbers == [16, 20, 25]


def test_what_methods_bring_goes_before_the_paper_and_the_first_before_others():
    assert catalog.settings("fedprox+moon")["projector"] == "moon"
    assert catalog.settings("univarfl+moon")["projector"] == "univarfl"
    brought = catalog.settings("man+scaffold+fedadam")
    assert brought["client_weighting"] == "uniform" and brought["same_local_steps"]
    assert brought["client_learning_rate"] == 0.01 and brought["batch_size"] == 50
    catalog.settings("man")["batch_size"] = 1
    assert catalog.settings("man")["batch_size"] == 50


def test_papers_give_settings_that_there_are():
    known = {each.name: each for each in settings.settings_of(config.RunConfig)}
    for name in catalog.names():
        for setting, value in catalog.settings(name).items():
            known[setting].check(value)


def test_strength_fields_are_flags_with_defaults():
    fields = {f.flag: f for f in catalog.strength_fields()}
    assert fields["fedprox_strength"].default == 1e-4
    assert fields["fedalign_lipschitz_scaling"].type is str
    assert fields["fedalign_stop_gradients"].type is bool
    assert fields["fedalign_power_iterations"].type is int
    assert [f.flag for f in catalog.strength_fields("man")] == [
        "man_strength",
        "man_scaling",
    ]
    assert catalog.strength_fields("fedavg") == []


def test_strengths_reach_their_methods():
    first, second = catalog.build_parts(
        "man+fedprox", {"man_strength": 0.3, "fedprox_strength": 0.7}
    ).regularizers
    assert dataclasses.asdict(first) == dict(strength=0.7)
    assert second.strength == 0.3 and second.scaling == "code"
    with pytest.raises(ValueError, match="man_strength is not a setting of .*fedprox"):
        catalog.build_parts("fedprox", {"man_strength": 0.3})
