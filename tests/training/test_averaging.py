import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_reg import runtime
from tff_reg.training import averaging

WEIGHTS_TYPE = tff.types.to_type(
    tff.learning.models.ModelWeights([tff.TensorType(np.float32, [2])], [np.float32])
)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


def _received(num_models, values):
    """What a client receives in each round, and the last state."""
    inner = tff.learning.templates.build_broadcast_process(WEIGHTS_TYPE)
    received_type = tff.types.to_type(
        collections.OrderedDict(model=WEIGHTS_TYPE, averaged=WEIGHTS_TYPE.trainable)
    )
    process = averaging.build_averaging_distributor(inner, received_type, num_models)

    @tff.federated_computation(
        process.next.type_signature.parameter[0],
        process.next.type_signature.parameter[1],
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    def next_fn(state, weights, _):
        output = process.next(state, weights)
        return output.state, tff.federated_map(
            tff.tensorflow.computation(lambda x: x, received_type), output.result
        )

    state, received = process.initialize(), []
    for value in values:
        weights = tff.learning.models.ModelWeights(
            [np.full(2, value, np.float32)], [np.float32(value)]
        )
        state, (at_client,) = next_fn(state, weights, [0])
        received.append(at_client)
    return received, state


def test_sends_the_model_and_the_mean_of_the_last_ones():
    received, _ = _received(3, [1, 4, 7, 1, 4])
    assert [float(r["model"].trainable[0][0]) for r in received] == [1, 4, 7, 1, 4]
    means = [float(r["averaged"][0][1]) for r in received]
    assert means == [1, 2.5, 4, 4, 4]


def test_with_one_model_the_mean_is_the_model():
    received, state = _received(1, [3, 5])
    assert [float(r["averaged"][0][0]) for r in received] == [3, 5]
    _, history = state
    assert history["earlier"][0].shape == (0, 2)
