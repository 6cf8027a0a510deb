from tests.methods import one_weight
from tff_reg import methods


def test_the_whole_term_can_be_clipped():
    whole = methods.FedDyn(strength=0.4, clipping="whole")
    one_weight.assert_adds(whole.correct, 0.1 * (0.5 - 1 + 3))
    one_weight.assert_adds(whole.correct_clipped, 0.0)
