"""What the scale leaves of a run."""

import pytest

from tff_reg import settings
from tff_reg.experiment import RunConfig
from tff_reg.experiment.config import scale


def resolve(**requested):
    return RunConfig.of({"process": "fedalign", **requested}).resolved()


def test_a_fraction_keeps_the_shape_of_a_run():
    # 25 rounds, 16 clients, 20 epochs; Python rounds 2.5 to 2.
    values = resolve(scale="0.1")
    assert values.total_rounds == 2
    assert values.num_clients == values.clients_per_round == 2
    assert values.local_epochs == 2
    assert values.batch_size == 64
    assert scale.parse("0.1")("train_examples", 1437) == 144


def test_tiny_is_one_round_of_two_clients_with_a_few_steps():
    values = resolve(scale="tiny")
    assert (values.total_rounds, values.local_epochs) == (1, 1)
    assert (values.num_clients, values.clients_per_round) == (4, 2)
    assert values.batch_size == 4
    assert scale.parse("tiny")("train_examples", 50_000) == 48


def test_what_is_given_is_more_than_tiny_says():
    values = resolve(scale="tiny", total_rounds=3, clients_per_round=5)
    assert (values.total_rounds, values.local_epochs) == (3, 1)
    assert (values.num_clients, values.clients_per_round) == (5, 5)


def test_nothing_grows_and_nothing_becomes_zero():
    values = resolve(scale="tiny", num_clients=1, clients_per_round=1, batch_size=2)
    assert (values.num_clients, values.clients_per_round) == (1, 1)
    assert values.batch_size == 2
    values = resolve(scale="0.001")
    for name in ("total_rounds", "num_clients", "clients_per_round", "local_epochs"):
        assert getattr(values, name) == 1, name


def test_the_whole_is_the_run_without_it():
    whole = resolve(scale="1.0").dump()
    assert whole.pop("scale") == "1.0"
    without = resolve().dump()
    assert without.pop("scale") is None
    assert whole == without


def test_clients_of_domains_stay_as_many_as_they_are():
    asked = dict(task="pacs", partition="domain", num_clients=8, clients_per_round=8)
    values = resolve(scale="0.25", **asked)
    assert (values.num_clients, values.clients_per_round) == (8, 2)


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "nan", "small", ""])
def test_refuses_what_is_no_scale(text):
    with pytest.raises(settings.SettingError, match="scale=.*tiny, or a number"):
        resolve(scale=text)


def test_the_directory_may_name_the_seed():
    values = resolve(seed=3, output_dir="runs/{seed}/of-{seed}")
    assert values.output_dir == "runs/3/of-3"
    assert resolve(seed=3).output_dir == "runs/fedalign-digits-seed3"
