"""Random sums of methods: the sensible ones run, the others are refused, none crashes."""

import functools
import itertools

import numpy as np
import pytest

from tff_reg import processes
from tff_reg.processes import catalog
from tests import random_clients
from tests.processes import every_method

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


# Those of every day are in test_every_method.py.
@pytest.mark.slow
@pytest.mark.parametrize("names", _draw_sums(6), ids="+".join)
def test_a_random_sum_gives_the_same_in_both_runtimes(contexts, names):
    name = "+".join(names)
    settings = processes.ProcessSettings.of(
        name, batch_size=4, local_epochs=1, num_clients=3, client_learning_rate=0.01
    )
    projector = catalog.settings(name).get("projector", "none")
    # TFF's own server optimisers with momentum take float32 alone.
    dtype = "float32" if SERVERS & set(names) else "float64"
    model_fn = functools.partial(
        every_method.model_fn, norm="group", dtype=dtype, projector=projector
    )
    process = processes.build_from_settings(
        name, model_fn, settings, {}, mean_examples=6.0
    )
    clients = random_clients.clients((5, 7), dtype=dtype)

    def run(kind):
        with contexts(kind):
            return every_method.run(process, clients, 2)[1]

    ours, again, native = run("in_process"), run("in_process"), run("native")
    tolerance = 1e-8 if dtype == "float64" else 1e-3
    for first, second, other in zip(ours, again, native):
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, other, rtol=tolerance, atol=tolerance)
