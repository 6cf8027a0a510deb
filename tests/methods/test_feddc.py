from tests.methods import one_weight
from tff_reg import methods

FEDDC = methods.FedDC(strength=0.4)  # alpha_i is 0.4 / 4.


def test_everything_is_added_before_the_clipping():
    one_weight.assert_adds(FEDDC.correct, 0.1 * (3 - (1 - 0.5)) - 0.25 + 2 / 4)
    one_weight.assert_adds(FEDDC.correct_clipped, 0.0)


def test_a_client_remembers_its_drift_and_its_share_of_the_common_gradient():
    finished = FEDDC.finish(one_weight.local())
    memories, uploads = finished.memory, finished.upload
    assert memories["h"] == [0.5 + 3 - 1]
    change = -2 / 4 + (1 - 3) / 0.8
    one_weight.assert_value(memories["s"], 0.25 + change)
    assert list(uploads) == ["s"]
    one_weight.assert_value(uploads["s"], 4 * change)
