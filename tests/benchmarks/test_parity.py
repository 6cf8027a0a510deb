"""Other libraries' methods beside ours: what is compared, and when it is explained."""

import itertools

import numpy as np
import pytest

from benchmarks import parity
from benchmarks.shared import subject
from benchmarks.simulators import formulas

PROBLEM = parity.problems()["even"]


def _rounds(name, **settings):
    found = getattr(formulas, name)(PROBLEM, **settings)
    return list(itertools.islice(found, formulas.ROUNDS))


def test_tffs_methods_are_equal_or_explained():
    rows = {row["pair"]: row for row in parity.measure(parity._chosen(["tff"]))}
    results = {pair: row["result"] for pair, row in rows.items()}
    assert results == {
        "tff-fedavg": "equal",
        "tff-fedprox": parity.DEPARTS,
        "tff-fedavgm": "equal",
        "tff-fedadam": parity.OTHER,
        "tff-fedyogi": parity.OTHER,
        "tff-fedadagrad": parity.OTHER,
    }
    # TFF's proximal term has the other sign: far from ours, near the formula.
    assert rows["tff-fedprox"]["rounds_1"] > 0.1
    for row in rows.values():
        assert row["theirs_from_formula"] < 1e-5
        assert row["ours_from_formula"] < 1e-5


def _pair(sign, here=None):
    return parity.Pair({"sign": sign}, here or {}, finding="It has another sign.")


@pytest.mark.parametrize(
    "theirs, pair, result",
    [
        ({"mu": 0.5}, parity.Pair(), "equal"),
        ({"mu": 0.5, "sign": -1.0}, _pair(-1.0), parity.DEPARTS),
        ({"mu": 0.5, "sign": -1.0}, parity.Pair(), "differs"),
        ({"mu": 0.5, "sign": -1.0}, _pair(-0.9), "differs"),
        # Ours would not be the paper's.
        ({"mu": 0.5, "sign": -1.0}, _pair(-1.0, {"sign": 0.9}), "differs"),
        # A departure that a newer version does not make any more.
        ({"mu": 0.5}, _pair(-1.0), "equal"),
    ],
)
def test_a_difference_is_explained_by_an_equal_formula_only(theirs, pair, result):
    method = parity.METHODS["fedprox"]
    ours = _rounds("fedprox", mu=0.5)
    row = parity.row_of(pair, method, PROBLEM, _rounds("fedprox", **theirs), ours)
    assert row["result"] == result
    assert (row["rounds_3"] < parity.TOLERANCE) == (result == "equal")


def test_a_difference_without_a_formula_stays_unexplained():
    method = parity.METHODS["moon"]
    ours = _rounds("fedavg")
    theirs = [[w + 0.01 for w in weights] for weights in ours]
    row = parity.row_of(parity.Pair(), method, PROBLEM, theirs, ours)
    assert row["result"] == "differs" and row["ours_from_formula"] is None


def test_a_round_that_is_missing_is_no_equality():
    ours = _rounds("fedavg")
    method = parity.METHODS["fedavg"]
    row = parity.row_of(parity.Pair(), method, PROBLEM, ours[:2], ours)
    assert row["result"] == "differs"


def test_a_step_of_fedavg_is_the_gradients():
    """One client of one batch, against central differences of the loss."""
    problem = PROBLEM._replace(
        images=[PROBLEM.images[0][:8]], labels=[PROBLEM.labels[0][:8]], epochs=1
    )
    x, y = problem.images[0], problem.labels[0]

    def loss(weights):
        logits = np.maximum(x @ weights[0] + weights[1], 0) @ weights[2] + weights[3]
        chosen = logits[np.arange(8), y]
        return np.mean(np.log(np.exp(logits).sum(1)) - chosen)

    start = [w.astype(np.float64) for w in problem.weights]
    moved = next(formulas.fedavg(problem))
    for index, position in ((0, (20, 3)), (1, 5), (2, (4, 7)), (3, 2)):
        losses = []
        for step in (1e-5, -1e-5):
            weights = [w.copy() for w in start]
            weights[index][position] += step
            losses.append(loss(weights))
        slope = (losses[0] - losses[1]) / 2e-5
        change = (moved[index] - start[index])[position]
        assert change == pytest.approx(-problem.learning_rate * slope, abs=1e-8)


def test_the_table_has_findings_and_what_was_not_compared():
    about = {"version": "9.1", "method": "FedProx"}
    numbers = {"rounds_1": 0.5, "rounds_3": 0.4, "theirs_from_formula": 1e-6}
    rows = [
        {"pair": "tff-fedprox", **about, **numbers, "result": parity.DEPARTS},
        {"pair": "pfl-fedprox", **about, **numbers, "result": "differs"},
        {"pair": "fluke-fedprox", **about, "result": "not measured: no network"},
    ]
    text = "\n".join(parity.table(rows))
    assert "TFF 9.1, FedProx: Eq. 2 of Li et al. (2020)" in text
    assert "`bin/bench parity --only=tff-fedprox`" in text
    assert "pfl-research 9.1, FedProx: nothing that is known here" in text
    assert "not measured: no network" in text and "fluke 9.1, FedProx:" not in text
    assert "FL-bench: it is no package" in text


def test_every_pair_has_a_method_and_its_departures_a_sentence():
    for name, pair in parity.PAIRS.items():
        library, _, method = name.partition("-")
        assert library in parity.LIBRARIES and method in parity.METHODS
        assert bool(pair.there or pair.here) == bool(pair.finding), name


def test_refusal_of_an_unknown_pair():
    with pytest.raises(subject.RefusedError, match="--only=fluke-fedpox: choose some"):
        parity._chosen(["tff", "fluke-fedpox"])
    assert parity._chosen(["pfl-scaffold"]) == ["pfl-scaffold"]
    assert len(parity._chosen([])) == len(parity.PAIRS)
