import numpy as np
import pytest

from tff_reg.training import schedules


def test_constant_is_one_always():
    assert schedules.constant()(17) == 1.0


def test_exponential_is_a_power_of_the_round():
    schedule = schedules.exponential(0.998)
    np.testing.assert_allclose(
        [schedule(r) for r in (0, 1, 500)], [1.0, 0.998, 0.998**500], rtol=1e-12
    )


def test_cosine_falls_from_one_to_its_last_round_and_stays():
    schedule = schedules.cosine(10)
    last = 0.5 * (1 + np.cos(0.9 * np.pi))
    np.testing.assert_allclose(
        [schedule(r) for r in (0, 5, 9, 10, 12)], [1.0, 0.5, last, last, last]
    )


@pytest.mark.parametrize("decay", [0.0, 1.1, -0.5, float("nan")])
def test_raises_on_a_decay_out_of_range(decay):
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\]"):
        schedules.exponential(decay)


def test_raises_on_a_cosine_of_no_rounds():
    with pytest.raises(ValueError, match="at least one round"):
        schedules.cosine(0)
