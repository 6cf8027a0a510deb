"""Random sums of methods: the sensible ones run, the others are refused, none crashes."""

import dataclasses
import itertools

import numpy as np
import pytest

from tff_reg import models
from tff_reg import processes
from tff_reg import runtime
from tff_reg.processes import catalog
from tests import random_clients

CORRECTIONS = {"scaffold", "feddyn", "feddc", "fedspeed"}
RULES = {"fedsam", "fedasam"}
SERVERS = {"fedavgm", "fedadam"}
# These set the model themselves.
OWN_SERVER = {"feddyn", "feddc", "fedspeed"}
TERMS = sorted(set(catalog.names()) - CORRECTIONS - RULES - SERVERS - {"fedavg"})

def _makes_sense(names):
    names = set(names)
    return (
        len(names & CORRECTIONS) <= 1
        and len(names & RULES) + ("fedspeed" in names) <= 1
        and len(names & SERVERS) + bool(names & OWN_SERVER) <= 1
        and not {"fedntd", "mixup"} <= names
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_sum_is_either_refused_with_a_sentence_or_has_settings(size):
    for names in itertools.combinations(catalog.names(), size):
        process = "+".join(names)
        if _makes_sense(names):
            assert set(catalog.parse(process)) == set(names) - {"fedavg"}
            catalog.settings(process)
            catalog.build_parts(process, {})
            continue
        with pytest.raises(catalog.UnknownProcessError, match="leave one") as caught:
            catalog.parse(process)
        assert "\n" not in str(caught.value)


def _random_sum(seed):
    """One to four parts of different kinds, in any order."""
    rng = np.random.default_rng(seed)
    names = list(rng.choice(TERMS, rng.integers(1, 3), replace=False))
    for kind in (RULES, CORRECTIONS, SERVERS):
        if rng.random() < 0.6:
            names.append(rng.choice(sorted(kind)))
    rng.shuffle(names)
    return [str(name) for name in names]


def _draw_sums(count):
    drawn = (_random_sum(seed) for seed in itertools.count())
    return list(itertools.islice(filter(_makes_sense, drawn), count))


def _two_rounds(process, dtype):
    state = process.initialize()
    clients = random_clients.clients((5, 7), dtype=dtype)
    if isinstance(process, processes.StatefulLearningProcess):
        client_states = [process.initial_client_state(state)] * 2
        for _ in range(2):
            output = process.next(state, clients, client_states)
            state, client_states = output.state, output.client_states
    else:
        for _ in range(2):
            state = process.next(state, clients).state
    return process.get_model_weights(state)


@pytest.mark.parametrize("names", _draw_sums(6), ids="+".join)
def test_a_random_sum_gives_the_same_in_both_runtimes(names):
    name = "+".join(names)
    settings = dataclasses.replace(
        catalog.settings(name),
        batch_size=4,
        local_epochs=1,
        num_clients=3,
        client_learning_rate=0.01,
    )
    # TFF's own server optimisers with momentum take float32 alone.
    dtype = "float32" if SERVERS & set(names) else "float64"
    model_fn = models.build_model_fn(
        "resnet8",
        image_shape=(4, 4, 1),
        num_classes=3,
        dtype=dtype,
        projector=settings.projector,
    )
    process = processes.build_from_settings(
        name, model_fn, settings, {}, mean_examples=6.0
    )
    with runtime.running("in_process"):
        ours = _two_rounds(process, dtype)
        again = _two_rounds(process, dtype)
    with runtime.running("native"):
        native = _two_rounds(process, dtype)
    tolerance = 1e-8 if dtype == "float64" else 1e-3
    for first, second, other in zip(ours.trainable, again.trainable, native.trainable):
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, other, rtol=tolerance, atol=tolerance)
