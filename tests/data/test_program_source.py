"""The data source of programs draws what a run draws, and goes on where it was."""

import collections
import copy
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import data
from tff_reg.data import client_data as client_data_lib, program_source, sampling

SIZES = (3, 5, 0, 4, 5)


def _client_data(sizes=SIZES, first=0):
    """Clients whose examples are numbers, so that they can be told apart."""
    total = first + sum(sizes)
    x = np.arange(total, dtype=np.float32).reshape(total, 1)
    ends = first + np.cumsum(sizes)
    partition = [np.arange(end - size, end) for size, end in zip(sizes, ends)]
    return client_data_lib.ArrayClientData(x, np.arange(total), partition)


def _source(seed=7, **arguments):
    return data.SeededDataSource(_client_data(**arguments), seed=seed)


def _elements(datasets):
    return [
        {name: value.tolist() for name, value in element.items()}
        for dataset in datasets
        for element in dataset.as_numpy_iterator()
    ]


def test_rounds_are_those_of_a_run():
    clients, iterator = _client_data(), _source().iterator()
    for round_num in (1, 2, 3):
        cohort = data.sample_clients(clients.client_ids, 2, seed=7, round_num=round_num)
        expected = [
            clients.whole_client_dataset(name, data.client_key(7, round_num, name))
            for name in cohort
        ]
        assert _elements(iterator.select(2)) == _elements(expected)


def test_iterators_begin_at_round_1_and_copies_are_independent():
    source = _source()
    first, second = source.iterator(), source.iterator()
    round_1 = _elements(first.select(3))
    copied = copy.deepcopy(first)
    round_2 = _elements(first.select(3))
    assert round_1 != round_2
    assert _elements(second.select(3)) == round_1
    assert _elements(copied.select(3)) == round_2


def test_an_iterator_resumes_from_its_bytes():
    iterator = _source().iterator()
    iterator.select(2)
    stored = iterator.to_bytes()
    assert stored == copy.deepcopy(iterator).to_bytes()
    assert len(stored) < 200
    resumed = type(_source().iterator()).from_bytes(stored)
    for k in (2, 5, None):
        assert _elements(resumed.select(k)) == _elements(iterator.select(k))


def test_the_type_is_that_of_all_clients():
    source = _source()
    expected = collections.OrderedDict(
        x=tf.TensorSpec([None, 1], tf.float32),
        y=tf.TensorSpec([None], tf.int32),
        key=tf.TensorSpec([2], tf.int64),
    )
    element = tff.types.tensorflow_to_type(expected)
    assert source.federated_type == tff.FederatedType(
        tff.SequenceType(element), tff.CLIENTS
    )
    assert source.iterator().federated_type == source.federated_type


@pytest.mark.parametrize("k", [0, 6])
def test_an_impossible_cohort_is_refused_and_no_round_passes(k):
    iterator = _source().iterator()
    before = iterator.to_bytes()
    with pytest.raises(sampling.SamplingError, match=f"Cannot draw {k} .* from 5"):
        iterator.select(k)
    assert iterator.to_bytes() == before


def _labelled(*labels):
    """A source of a client with these labels."""
    x = np.zeros((len(labels), 1), np.float32)
    partition = [np.arange(len(labels))]
    clients = client_data_lib.ArrayClientData(x, np.array(labels), partition)
    return data.SeededDataSource(clients, seed=7)


@pytest.mark.parametrize(
    "source, other, message",
    [
        (_source(), _source(seed=8), "begun with seed 7, and the seed is now 8"),
        (_source(), _source(sizes=SIZES[:-1]), "begun with other clients"),
        (_labelled(0, 1, 0, 1), _labelled(1, 0, 1, 0), "with other examples: "),
    ],
)
def test_bytes_of_another_source_are_refused(source, other, message):
    stored = source.iterator().to_bytes()
    resume = type(other.iterator()).from_bytes
    with pytest.raises(program_source.DataSourceError, match=message):
        resume(stored)


@pytest.mark.parametrize("stored", [b"", b"{}", json.dumps({"seed": 7}).encode()])
def test_bytes_of_something_else_are_refused(stored):
    with pytest.raises(program_source.DataSourceError, match="not of a SeededData"):
        type(_source().iterator()).from_bytes(stored)
