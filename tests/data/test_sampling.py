"""Cohorts: stateless, without replacement, from the right distribution."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tff_reg.data import sampling

_IDS = [f"client_{row:04d}" for row in range(20)]


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 20), seed=st.integers(0, 2**40), round_num=st.integers(0, 999)
)
def test_cohort_is_distinct_in_order_and_repeatable(count, seed, round_num):
    cohort = sampling.sample_clients(_IDS, count, seed=seed, round_num=round_num)
    assert len(cohort) == count
    assert cohort == sorted(set(cohort))
    assert cohort == sampling.sample_clients(
        _IDS, count, seed=seed, round_num=round_num
    )


def test_all_clients_take_part_with_full_participation():
    assert sampling.sample_clients(_IDS, 20, seed=0, round_num=3) == _IDS
    cohort = sampling.sample_clients_bernoulli(_IDS, 1.0, seed=0, round_num=0)
    assert cohort == _IDS


@pytest.mark.parametrize(
    "sample",
    [
        lambda seed, round_num: sampling.sample_clients(
            _IDS, 5, seed=seed, round_num=round_num
        ),
        lambda seed, round_num: sampling.sample_clients_bernoulli(
            _IDS, 0.25, seed=seed, round_num=round_num
        ),
    ],
    ids=["fixed", "bernoulli"],
)
def test_rounds_and_seeds_differ_and_every_client_is_equally_likely(sample):
    cohorts = [tuple(sample(1, round_num)) for round_num in range(1600)]
    assert len(set(cohorts)) > 1000
    assert cohorts[:20] != [tuple(sample(2, round_num)) for round_num in range(20)]
    counts = [sum(name in cohort for cohort in cohorts) for name in _IDS]
    # 1600 * 0.25 = 400, standard deviation 17.
    assert min(counts) > 310 and max(counts) < 490


def test_bernoulli_sampling_is_conditioned_on_a_non_empty_cohort():
    names = _IDS[:4]
    chance = 0.15
    found = np.zeros(16)
    rounds = 20_000
    for round_num in range(rounds):
        cohort = sampling.sample_clients_bernoulli(
            names, chance, seed=0, round_num=round_num
        )
        found[sum(1 << names.index(name) for name in cohort)] += 1
    sizes = np.array([bin(subset).count("1") for subset in range(16)])
    expected = chance**sizes * (1 - chance) ** (4 - sizes)
    expected[0] = 0
    expected /= expected.sum()
    assert found[0] == 0
    np.testing.assert_allclose(found / rounds, expected, atol=0.012)


def test_a_sampling_function_is_used_and_checked():
    def every_other(round_num, client_ids):
        return client_ids[round_num % 2 :: 2]

    drawn = sampling.sample_by(every_other, _IDS, round_num=3)
    assert drawn == list(_IDS)[1::2]
    for wrong, words in (
        ("c1", "returned 'c1' in round 2; it must return a list of client ids"),
        (None, "it must return a list"),
        ([], "at least one client, and none twice"),
        ([_IDS[0], _IDS[0]], "none twice"),
        ([7], "but 7 is no client; the clients are"),
    ):
        with pytest.raises(sampling.SamplingError, match=words):
            sampling.sample_by(lambda *_, found=wrong: found, _IDS, round_num=2)


@pytest.mark.parametrize(
    "sample, names, given, words",
    [
        *((sampling.sample_clients, _IDS, count, "1 to 20") for count in (0, -1, 21)),
        (sampling.sample_clients, [], 1, "no clients"),
        *(
            (sampling.sample_clients_bernoulli, _IDS, share, "participation")
            for share in (0.0, -0.1, 1.1, float("nan"), "0.5")
        ),
        (sampling.sample_clients_bernoulli, [], 0.5, "no clients"),
    ],
)
def test_raises_on_an_impossible_cohort(sample, names, given, words):
    with pytest.raises(sampling.SamplingError, match=words):
        sample(names, given, seed=0, round_num=0)


def test_the_mean_size_of_cohorts_is_that_of_all_that_are_not_empty():
    # Of two clients with probability 1/2 each: {0}, {1}, {0, 1}.
    assert sampling.mean_size("independent", 1, 2) == 4 / 3
