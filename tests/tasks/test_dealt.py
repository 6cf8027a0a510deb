"""Long tails of training examples."""

import numpy as np
import pytest

from tests.tasks.test_reduced_data import numbered_data
from tff_reg import settings
from tff_reg.experiment.config import task_settings
from tff_reg.tasks import dealt


def with_tail(num_classes, count, factor, **given):
    given |= dict(task="digits", num_clients=2, imbalance_factor=factor)
    data = numbered_data(num_classes, 1, count)
    return dealt.deal(data, task_settings.TaskSettings(**given))


@pytest.mark.parametrize(
    # The sizes of CIFAR-10-LT and CIFAR-100-LT.
    "num_classes, factor, total",
    [(10, 100, 12_406), (10, 10, 20_431), (100, 100, 10_847), (100, 10, 19_573)],
)
def test_the_sizes_are_those_of_cifar_lt(num_classes, factor, total):
    found = with_tail(num_classes, 50_000, factor)
    data, parts = found.data, found.positions
    sizes = np.bincount(data.y_train)
    assert sizes.sum() == total == sum(map(len, parts))
    assert sizes[0] == 50_000 // num_classes == factor * sizes[-1]
    assert np.array_equal(data.x_train[:, 0, 0, 0] % 2, data.y_train % 2)


def test_a_tail_without_examples_is_refused_but_in_a_small_run():
    with pytest.raises(settings.SettingError, match="=11.0: the last class .* most 10"):
        with_tail(10, 100, 11.0)
    data = with_tail(10, 100, 11.0, scale="0.5").data
    assert np.bincount(data.y_train).tolist()[-2:] == [1, 1]
