import dataclasses
import subprocess
import sys

import pytest

from tff_reg.methods import catalogue


def test_names_are_the_methods():
    assert {"fedavg", "fedprox", "fedalign", "man"} <= set(catalogue.names())


def test_needs_no_tensorflow():
    script = (
        "import sys; from tff_reg.processes import catalog;"
        "catalogue.strengths(); catalogue.build('fedalign', {});"
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
    assert catalogue.parse(process) == parts


@pytest.mark.parametrize(
    "process, message",
    [
        ("fedalgin", "Unknown process 'fedalgin'. Did you mean 'fedalign'"),
        ("man+", "Unknown process ''"),
        ("man+man", "names 'man' twice"),
    ],
)
def test_raises_on_what_is_no_process(process, message):
    with pytest.raises(
        catalogue.UnknownProcessError, match=message.replace("?", r"\?")
    ):
        catalogue.parse(process)


def test_settings_are_those_of_the_first_method():
    assert catalogue.settings("fedavg+man") == catalogue.settings("man")
    assert catalogue.settings("man+fedalign") == catalogue.settings("man")
    assert catalogue.settings("fedalign+man").max_gradient_norm == 10.0
    assert catalogue.settings("fedprox").max_gradient_norm is None
    paper = catalogue.settings("fedalign")
    assert (paper.num_clients, paper.local_epochs, paper.total_rounds) == (16, 20, 25)


def test_strength_fields_are_flags_with_defaults():
    fields = {f.flag: f for f in catalogue.strengths()}
    assert fields["fedprox_strength"].default == 1e-4
    assert fields["fedalign_lipschitz_scaling"].type is str
    assert fields["fedalign_stop_gradients"].type is bool
    assert fields["fedalign_power_iterations"].type is int
    assert [f.flag for f in catalogue.strengths("man")] == [
        "man_strength",
        "man_scaling",
    ]
    assert catalogue.strengths("fedavg") == []


def test_strengths_reach_their_methods():
    first, second = catalogue.build(
        "man+fedprox", {"man_strength": 0.3, "fedprox_strength": 0.7}
    ).regularizers
    assert dataclasses.asdict(first) == dict(strength=0.7)
    assert second.strength == 0.3 and second.scaling == "code"
    with pytest.raises(ValueError, match="man_strength is not a setting of .*fedprox"):
        catalogue.build("fedprox", {"man_strength": 0.3})
