"""Robust means: NumPy's numbers, clients alike, those that did not train left out."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_reg import models, training
from tff_reg.training import aggregation, aggregators, robust_means

TYPE = tff.types.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [3, 2]), b=[tff.TensorType(np.float32, [])]
    )
)
WEIGHTS = [1.0, 7.0, 2.0, 1.0, 1.0, 3.0, 1.0]


def _values(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        collections.OrderedDict(
            a=rng.normal(size=(3, 2)).astype(np.float32),
            b=[np.float32(rng.normal())],
        )
        for _ in range(count)
    ]


def _median(rows, **_):
    return np.median(rows, axis=0)


def _trimmed_mean(rows, malicious, **_):
    ordered = np.sort(rows, axis=0)
    return np.mean(ordered[malicious : len(rows) - malicious], axis=0)


def _krum(rows, malicious, selected):
    scores = []
    for row in rows:
        others = sorted(((row - other) ** 2).sum() for other in rows)[1:]
        scores.append(sum(others[: len(rows) - malicious - 2]))
    return rows[np.argsort(scores)[:selected]].mean(axis=0)


CASES = {
    "median": (dict(), _median),
    "trimmed_mean": (dict(malicious_share=0.3), _trimmed_mean),
    "krum": (dict(malicious_share=0.3), _krum),
    "krum, 3": (dict(malicious_share=0.3, krum_selected=3), _krum),
}


def _process(case, value_type=TYPE):
    given, numpy_one = CASES[case]
    factory = aggregators.build_model_aggregator(
        case.partition(",")[0], clients_per_round=8, **given
    )
    process = aggregation.build_update_aggregator(factory, value_type)
    return process, numpy_one, given.get("krum_selected", 1)


def _aggregated(process, values, weights):
    result = process.next(process.initialize(), values, weights).result
    return np.array([*np.ravel(result["a"]), *result["b"]])


@pytest.mark.parametrize("count, malicious", [(7, 3), (6, 2)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", ["in_process", "two_at_a_time", "tff"])
def test_it_is_numpys_over_the_clients_that_trained(
    where, case, count, malicious, contexts
):
    values, idle = _values(count), _values(2, seed=1)
    rows = np.array([[*np.ravel(v["a"]), *v["b"]] for v in values])
    process, numpy_one, selected = _process(case)
    both = [idle[0], *values, idle[1]], [0.0, *WEIGHTS[:count], 0.0]
    with contexts(where):
        found = _aggregated(process, *both)
    expected = numpy_one(rows, malicious=malicious, selected=selected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.any(np.abs(expected - np.mean(rows, axis=0)) > 0.05)


@pytest.mark.parametrize("case", CASES)
def test_one_client_is_itself_and_of_nobody_comes_zero(case, contexts):
    process, _, _ = _process(case)
    (value,) = _values(1)
    with contexts("in_process"):
        found = _aggregated(process, [value], [2.0])
        nobody = _aggregated(process, [value], [0.0])
    np.testing.assert_allclose(found, [*np.ravel(value["a"]), *value["b"]], rtol=1e-6)
    assert not np.any(nobody)


def _model_fn():
    return models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=3)()


def test_what_weighs_clients_or_needs_exact_sums_is_refused():
    factory = robust_means.RobustMeanFactory("median")
    for name, why in [("feddisco", "takes them alike"), ("fednova", "exact sums")]:
        with pytest.raises(ValueError, match=why):
            training.build(
                name,
                _model_fn,
                model_aggregator=factory,
                num_clients=4,
                client_weighting="uniform",
            )
    with pytest.raises(TypeError, match="of floats"):
        factory.create(tff.TensorType(np.int32), tff.TensorType(np.float32))
