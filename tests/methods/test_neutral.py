"""Values with which the later methods are FedAvg.

All others have theirs in tests/training/test_every_method.py.
"""

import numpy as np
import pytest

from tests.methods import linear
from tests.training import every_method
from tff_reg import methods
from tff_reg.models import learning_model

pytestmark = pytest.mark.usefixtures("in_process")

# As many together as go together.
NEUTRAL = [
    (
        methods.ASD(strength=0.0),
        methods.FedUV(strength=0.0),
        methods.FedLC(strength=0.0),
        methods.FedLESAM(radius=0.0),
        methods.FedCM(share=1.0),
        methods.FedACG(strength=0.0, momentum=0.0),
    ),
    (methods.FedRS(factor=1.0), methods.MoFedSAM(share=1.0, radius=0.0)),
    (methods.FedVLS(strength=0.0, prior=False), methods.FedSOL(radius=0.0)),
    (methods.FedSAM(radius=0.0),),
]


def _model_fn():
    return linear.model_fn(loss_fn=learning_model.sparse_cross_entropy)


def _two_rounds(parts, start, data_sets):
    process = linear.build(*parts, make_model=_model_fn, max_gradient_norm=1.0)
    started = linear.started(process, start)
    output, _ = every_method.run(process, data_sets, 2, started)
    return linear.weights_of(process, output.state)


@pytest.mark.parametrize("parts", NEUTRAL, ids=lambda parts: parts[0].name)
def test_neutral_values_are_fedavg(parts):
    rng = np.random.default_rng(2)
    start = [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]
    # The first has no example of the last class.
    features, labels = linear.examples(0)
    data_sets = [linear.whole(features, labels % 2), linear.whole(*linear.examples(1))]
    linear.assert_close(
        _two_rounds(parts, start, data_sets), _two_rounds((), start, data_sets)
    )
