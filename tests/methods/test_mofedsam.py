import numpy as np
import tensorflow as tf

from tests.methods import one_weight
from tff_reg import methods


def test_climbs_along_the_gradient_alone():
    method = methods.MoFedSAM(share=0.1, radius=0.26)
    gradient = [tf.constant([3.0, 4.0], tf.float64), tf.constant(12.0, tf.float64)]
    server = {"direction": [tf.constant([5.0, 5.0], tf.float64)] * 2}
    local = one_weight.local(server_memory=server)
    ascent = one_weight.perturbation(method, local, gradient)
    np.testing.assert_allclose(ascent[0], [0.06, 0.08], rtol=1e-7)
    np.testing.assert_allclose(ascent[1], 0.24, rtol=1e-7)


def test_mixes_as_fedcm_which_it_is_with_radius_0():
    mofedsam = methods.MoFedSAM(share=0.4, radius=0.0)
    local = one_weight.local(server_memory={"direction": [2.0]})
    assert one_weight.perturbation(mofedsam, local, [7.0]) is None
    one_weight.assert_value(mofedsam.correct(local, [7.0]), 0.4 * 7 + 0.6 * 2)
    for hook in ("correct", "finish", "update_memory", "server_memory"):
        ours = getattr(methods.MoFedSAM, hook)
        assert ours is getattr(methods.FedCM, hook)
