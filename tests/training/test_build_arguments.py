"""Arguments of `training.build` that would have no effect."""

import pytest

from tests.training.test_composition import CNN_FN
from tff_reg import training


@pytest.mark.parametrize(
    "given, words",
    [
        ({"local_epochs": 2}, "local_epochs is the client data's"),
        ({"learning_rate_decay": 0.5}, "learning_rate_decay: it is for"),
        (
            {"client_optimizer_fn": training.build_sgd(0.1), "client_momentum": 0.9},
            "client_optimizer_fn replaces client_momentum",
        ),
        (
            {"num_clients": 9, "population": training.Population(2)},
            "population replaces num_clients",
        ),
        ({"learning_rate_schedule": "cosine"}, "cosine' needs total_rounds"),
    ],
)
def test_settings_of_a_process_without_effect_are_refused(given, words):
    with pytest.raises(TypeError, match=words):
        training.build("fedavg", CNN_FN, **given)


def test_the_weighting_is_one_of_tffs():
    with pytest.raises(TypeError, match="client_weighting is 'uniform'; give tff"):
        training.build_regularized(
            CNN_FN, [], training.build_sgd(0.1), client_weighting="uniform"
        )
