"""Keys: the same everywhere, different for different purposes."""

import numpy as np
import tensorflow as tf

from tff_reg.data import keys


def test_client_key_is_two_int64_and_fixed_for_good():
    key = keys.client_key(3, 17, "client_0004")
    assert key.dtype == np.int64 and key.shape == (2,)
    # A change of these numbers changes every recorded result.
    assert key.tolist() == [-4970384453049134167, -3430817352026502600]


def test_client_keys_differ_in_each_argument():
    found = {
        tuple(keys.client_key(seed, round_num, client_id))
        for seed in (0, 1, 11, 2**32, 2**32 + 1, keys.LARGEST_SEED)
        for round_num in (0, 1, 11)
        for client_id in ("", "1", "11", "a", '1", 1')
    }
    assert len(found) == 6 * 3 * 5


def test_driver_generators_differ_by_purpose_and_parts():
    draws = {
        keys.driver_generator(*arguments).random()
        for arguments in [("a",), ("a", 1), ("b", 1), ("a", "1"), ("a", 1, 1)]
    }
    assert len(draws) == 5
    again = keys.driver_generator("a", 1).random()
    assert again == keys.driver_generator("a", 1).random()


def test_epoch_order_is_a_permutation_that_depends_on_key_and_epoch():
    key, other = keys.client_key(0, 0, "a"), keys.client_key(0, 0, "b")
    orders = [
        keys.epoch_order(*arguments, 50).numpy()
        for arguments in [(key, 0), (key, 1), (other, 0), (other, 1)]
    ]
    for order in orders:
        assert order.dtype == np.int32
        assert sorted(order) == list(range(50))
    assert len({tuple(order) for order in orders}) == 4


def test_graph_and_eager_mode_agree_with_sizes_and_epochs_as_tensors():
    key = keys.client_key(0, 0, "a")

    @tf.function
    def in_graph(key, epoch, count):
        return keys.epoch_order(key, epoch, count), keys.step_key(key, epoch)

    order, step = in_graph(tf.constant(key), tf.constant(3), tf.constant(9))
    assert np.array_equal(order, keys.epoch_order(key, 3, 9))
    assert np.array_equal(step, keys.step_key(key, 3))


def test_step_keys_and_epoch_keys_are_all_different_int64():
    key = keys.client_key(0, 0, "a")
    found = [keys.fold_in(key, n) for n in range(50)]
    found += [keys.step_key(key, n) for n in range(50)]
    assert {one.dtype for one in found} == {tf.int64}
    assert len({tuple(one.numpy()) for one in found}) == 100
    # The first word alone carries all of the key's randomness from then on.
    draws = {float(tf.random.stateless_uniform([], one, alg="philox")) for one in found}
    assert len(draws) == 100
