import math

import dp_accounting
import pytest
from dp_accounting import rdp

from tff_reg import settings
from tff_reg.experiment import RunConfig
from tff_reg.experiment.rounds import metrics, privacy, summary


def _resolve(**given):
    return RunConfig.of(given).resolved()


def _epsilon(**changed):
    values = dict(
        noise_multiplier=4.0,
        delta=1e-5,
        rounds=20,
        clients_per_round=10,
        num_clients=100,
    )
    return privacy.epsilon(**{**values, **changed})


def _gaussian(sigma, rounds, delta):
    """By the conversion of Renyi divergences, of a Gaussian of sensitivity 1."""
    orders = rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    return min(
        rounds * order / (2 * sigma**2)
        + math.log1p(-1 / order)
        - math.log(delta * order) / (order - 1)
        for order in orders
        if order > 1.01
    )


def test_without_sampling_it_is_the_gaussian_of_half_the_noise():
    expected = _gaussian(4.0 / 2, 20, 1e-5)
    assert _epsilon(clients_per_round=100) == pytest.approx(expected, rel=1e-6)
    assert _epsilon(remembers=True) == pytest.approx(expected, rel=1e-6)


def test_a_second_upload_counts_as_one_sum_of_less_noise():
    expected = _gaussian(4.0 / 2 / math.sqrt(2), 20, 1e-5)
    found = _epsilon(remembers=True, sums_per_round=2)
    assert found == pytest.approx(expected, rel=1e-6)


def test_sampling_without_replacement_is_that_of_dp_accounting():
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 10, dp_accounting.GaussianDpEvent(2.0)
    )
    for _ in range(3):
        accountant.compose(event)
    found = _epsilon(rounds=3)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert _epsilon() < _epsilon(remembers=True) / 2


def test_no_noise_gives_no_guarantee():
    assert _epsilon(noise_multiplier=0.0) == math.inf


@pytest.mark.parametrize(
    "process, remembers, uploads",
    [
        ("fedalign+man", False, False),
        ("fedgkd", False, False),
        ("moon", True, False),
        ("fedper", True, False),
        ("scaffold+fedprox", True, True),
        # The mean of all clients' models is an upload.
        ("feddyn", True, True),
    ],
)
def test_knows_what_leaves_the_clients(process, remembers, uploads):
    values = _resolve(process=process, aggregator="dp", clients_per_round=16)
    found = privacy.summarize(values.dump(), 1)
    assert (found["sampling"] == "not counted") == remembers
    assert found["noisy_sums_per_round"] == 1 + uploads


def test_a_summary_has_the_epsilon_of_the_rounds_that_were_trained():
    values = _resolve(
        process="scaffold",
        aggregator="dp",
        num_clients=100,
        clients_per_round=20,
        dp_noise_multiplier=1.5,
    )
    assert values.client_weighting == "uniform"
    table = metrics.MetricsTable()
    for number in (1, 2, 3):
        table.append({metrics.ROUND: number, metrics.SECONDS: 1.0})
    found = summary.summarize(table, values.dump())
    expected = _gaussian(1.5 / 2 / math.sqrt(2), 3, 1e-5)
    assert found["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-5)
    assert found["privacy"]["sampling"] == "not counted"
    lines = privacy.in_words(found["privacy"])
    assert f"epsilon {expected:.4g} at delta 1e-05" in lines[0]
    assert "have a memory, so epsilon counts every client in every" in lines[1]
    assert "uploads of scaffold" in lines[2] and len(lines) == 3
    plain = {**values.dump(), "aggregator": "mean"}
    assert "privacy" not in summary.summarize(table, plain)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(aggregator="loudest"), "aggregator=loudest: there is no such aggregator"),
        (
            dict(aggregator="dp", client_weighting="num_examples"),
            "client_weighting=num_examples: aggregator=dp takes clients alike",
        ),
        (
            dict(aggregator="dp", clients_per_round=5),
            "dp_noise_multiplier=1.0: adaptive clipping can have less than a tenth of",
        ),
    ],
)
def test_refuses_what_makes_no_aggregator(given, message):
    with pytest.raises(settings.SettingError) as error:
        _resolve(process="fedprox", **given)
    assert str(error.value).startswith(message)
