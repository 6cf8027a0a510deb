import pytest

from tests.methods import linear
from tff_reg import methods

pytestmark = pytest.mark.usefixtures("in_process")


def test_is_scaffold_and_fedsam_to_the_bit():
    data_sets = [linear.whole(*linear.examples(seed)) for seed in range(2)]
    gamma = linear.build(methods.FedGAMMA(radius=0.1))
    both = linear.build(methods.FedSAM(radius=0.1), methods.SCAFFOLD())
    weights = linear.weights_of(gamma, gamma.initialize())
    results = []
    for process in (gamma, both):
        state = linear.started(process, weights)
        state, client_states = linear.run(process, state, data_sets, 2)
        results.append([linear.weights_of(process, state), *client_states])
    linear.assert_close(*results, 0.0)
