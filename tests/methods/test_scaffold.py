import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import linear
from tff_reg import methods
from tff_reg.methods import all_clients

pytestmark = pytest.mark.usefixtures("in_process")

SCAFFOLD = methods.SCAFFOLD()


def test_with_identical_clients_it_is_fedavg():
    data_sets = [linear.whole(*linear.examples(0))] * 3
    scaffold = linear.build(SCAFFOLD)
    fedavg = linear.build(all_clients.AllClients())
    start = scaffold.initialize()
    initial = linear.weights_of(scaffold, start)
    ours, client_states = linear.run(scaffold, start, data_sets, 4)
    plain, _ = linear.run(fedavg, linear.started(fedavg, initial), data_sets, 4)
    # The control variates are not 0, but cancel.
    assert np.abs(ours.finalizer["memory"]["scaffold/s"][0]).max() > 1e-3
    common = ours.finalizer["memory"]["scaffold/s"]
    linear.assert_close(client_states[0]["scaffold/s"], common)
    linear.assert_close(
        linear.weights_of(scaffold, ours), linear.weights_of(fedavg, plain)
    )


def test_goes_with_a_server_optimizer():
    data_sets = [linear.whole(*linear.examples(seed)) for seed in range(2)]
    half_step = tff.learning.optimizers.build_sgdm(0.5)
    whole = linear.build(SCAFFOLD)
    half = linear.build(SCAFFOLD, server_optimizer_fn=half_step)
    start = whole.initialize()
    initial = linear.weights_of(whole, start)
    there, _ = linear.run(whole, start, data_sets, 1)
    halfway, _ = linear.run(half, linear.started(half, initial), data_sets, 1)
    expected = [
        (first + last) / 2
        for first, last in zip(initial, linear.weights_of(whole, there))
    ]
    linear.assert_close(linear.weights_of(half, halfway), expected)
