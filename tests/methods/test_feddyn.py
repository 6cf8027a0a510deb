from tests.methods import one_weight
from tff_reg import methods

FEDDYN = methods.FedDyn(strength=0.4)  # alpha_i is 0.4 / 4.


def test_the_proximal_term_is_split_around_the_clipping():
    one_weight.assert_adds(FEDDYN.correct, 0.1 * (0.5 - 1))
    one_weight.assert_adds(FEDDYN.correct_clipped, 0.1 * 3)


def test_the_whole_term_can_be_clipped():
    whole = methods.FedDyn(strength=0.4, clipping="whole")
    one_weight.assert_adds(whole.correct, 0.1 * (0.5 - 1 + 3))
    one_weight.assert_adds(whole.correct_clipped, 0.0)


def test_a_client_remembers_how_far_it_drifted():
    finished = FEDDYN.finish(one_weight.local())
    assert finished.memory == {"h": [0.5 + 3 - 1]}
    assert not finished.upload
