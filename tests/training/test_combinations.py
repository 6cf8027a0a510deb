"""Combinations of methods: sensible ones run, others are refused, none crashes."""

import itertools

import numpy as np
import pytest

from tests.training import every_method
from tff_reg import training
from tff_reg.methods import catalogue, checks, method, words

CLASSES = every_method.CLASSES
# By what only one method of a combination can do, those that do it.
DOING = {
    what: {name for name in CLASSES if what in checks.exclusive_of(CLASSES[name])}
    for what in words.EXCLUSIVE
}
CORRECTIONS = DOING[method.DRIFT]
NEEDING_ONE_LABEL = {
    name for name in CLASSES if method.ONE_LABEL in CLASSES[name].needs
}
UNIFORM = {name for name in CLASSES if method.UNIFORM_WEIGHTING in CLASSES[name].needs}


def test_methods_that_correct_gradients_declare_drift():
    hooks = ("correct", "correct_clipped")
    correcting = {
        name
        for name, each in CLASSES.items()
        if any(method.overrides(each, hook) for hook in hooks)
    }
    # Weight decay and frozen weights correct no drift.
    assert correcting - {"fednar", "fedbabu", "fedrep"} == CORRECTIONS


def test_methods_of_the_server_step_declare_it():
    taking = {
        name
        for name, each in CLASSES.items()
        if not each.adds_to_model
        and (each.server_step or "server_optimizer" in each.required_settings)
    }
    assert DOING[method.SERVER] == taking >= {"feddyn", "fedadam"}


def test_alternatives_do_the_same():
    assert DOING[words.LOGITS] == {"fedlc", "fedrs", "fedetf", "fedvls"}
    assert DOING[method.FEATURES] == {"univarfl", "feduv"}
    heads = {"freeze", "fedetf", "fedbabu", "fedper", "fedrep"}
    assert DOING[method.CLASSIFIER] == heads
    assert DOING[method.RATE] == {"fedswa", "fedmoswa"}
    sharp = {"fedsam", "fedasam", "fedsol", "fedlesam"}
    assert DOING[words.GRADIENT] - CORRECTIONS == {*sharp, "ditto", "pfedme"}
    both = {"fedspeed", "mofedsam", "fedgamma", "fedlesams"}
    both |= {"fedsmoo", "fedgloss", "fedwmsam"}
    assert DOING[words.GRADIENT] & CORRECTIONS == both
    others = {"scaffold", "feddyn", "feddc", "fedcm", "fednova", "fedmoswa"}
    assert both | others == CORRECTIONS


def _makes_sense(names):
    names = set(names)
    return all(len(names & doing) <= 1 for doing in DOING.values()) and not (
        names & NEEDING_ONE_LABEL
        and names & DOING[words.EXAMPLES]
        or names & UNIFORM
        and names & DOING[words.WEIGHTS]
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_combination_is_refused_or_has_settings(size):
    for names in itertools.combinations(catalogue.names(), size):
        process = "+".join(names)
        if _makes_sense(names):
            assert set(catalogue.parse(process)) == set(names) - {"fedavg"}
            catalogue.settings(process, ["projector"])
            catalogue.build(process, {})
            continue
        with pytest.raises(catalogue.UnknownProcessError, match="leave one") as caught:
            catalogue.parse(process)
        assert "\n" not in str(caught.value)


PAIRS = [
    pair
    for pair in itertools.combinations(catalogue.names(), 2)
    if _makes_sense(pair) and "fedavg" not in pair
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    # They share nothing, so more than one process runs them.
    [pytest.param(p, marks=pytest.mark.xdist_group(f"with {p[0]}")) for p in PAIRS],
    ids="+".join,
)
def test_a_pair_has_a_round_with_the_metrics_of_both(contexts, pair):
    name = "+".join(pair)
    process = training.build_from_settings(
        name, every_method.model_fn, every_method.settings(name), {}
    )
    with contexts("in_process"):
        output, weights = every_method.run(process, every_method.clients(), 1)
        start = process.get_model_weights(process.initialize()).trainable
    assert all(np.isfinite(w).all() for w in weights)
    assert any(not np.array_equal(a, b) for a, b in zip(weights, start))
    measured = output.metrics["client_work"]["train"]
    for each in pair:
        own = {name: v for name, v in measured.items() if name.startswith(f"{each}/")}
        assert all(np.isfinite(value) for value in own.values())
        has_term = method.overrides(CLASSES[each], "term")
        assert (f"{each}/term" in own) == (f"{each}/share" in own) == has_term
