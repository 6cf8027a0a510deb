import pytest

from tests.methods import linear
from tff_reg import methods
from tff_reg.methods import catalogue

pytestmark = pytest.mark.usefixtures("in_process")


def test_is_scaffold_and_fedsam_to_the_bit():
    data_sets = [linear.whole(*linear.examples(seed)) for seed in range(2)]
    gamma = linear.build(methods.FedGAMMA(radius=0.1))
    both = linear.build(methods.FedSAM(radius=0.1), methods.Scaffold())
    weights = linear.weights_of(gamma, gamma.initialize())
    results = []
    for process in (gamma, both):
        state = linear.started(process, weights)
        state, client_states = linear.run(process, state, data_sets, 2)
        results.append([linear.weights_of(process, state), *client_states])
    linear.assert_close(*results, 0.0)


def test_has_the_settings_of_the_sum():
    assert catalogue.settings("fedgamma") == catalogue.settings("scaffold+fedsam")
    (radius,) = catalogue.strengths("fedgamma")
    (of_fedsam,) = catalogue.strengths("fedsam")
    assert radius.setting == of_fedsam.setting
