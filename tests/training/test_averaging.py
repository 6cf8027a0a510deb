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


def _received(num_models, values, looks_ahead=False):
    """What a client receives in each round, and the last state."""
    inner = tff.learning.templates.build_broadcast_process(WEIGHTS_TYPE)
    received_type = tff.types.to_type(
        collections.OrderedDict(model=WEIGHTS_TYPE, averaged=WEIGHTS_TYPE.trainable)
    )
    process = averaging.build_averaging_distributor(
        inner, received_type, num_models, looks_ahead
    )

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
        if looks_ahead:
            ahead = tff.learning.models.ModelWeights([weights.trainable[0] + 9], [0.0])
            weights = (ahead, weights)
        state, (at_client,) = next_fn(state, weights, [0])
        received.append(at_client)
    return received, state


@pytest.mark.parametrize(
    "num_models, values, means",
    [
        (3, [1, 4, 7, 1, 4], [1, 2.5, 4, 4, 4]),
        # A round that leaves the model as it is does not count.
        (3, [1, 4, 4, 4, 7], [1, 2.5, 2.5, 2.5, 4]),
        (1, [3, 5], [3, 5]),
    ],
)
def test_sends_the_model_and_the_mean_of_the_last_models(num_models, values, means):
    received, state = _received(num_models, values)
    assert [float(r["model"].trainable[0][0]) for r in received] == values
    assert [float(r["averaged"][0][1]) for r in received] == means
    assert state[1]["count"] == num_models


def test_the_mean_is_of_the_models_not_of_the_broadcasts():
    received, _ = _received(2, [1, 3], looks_ahead=True)
    assert [float(r["model"].trainable[0][0]) for r in received] == [10, 12]
    assert [float(r["averaged"][0][0]) for r in received] == [1, 2]
