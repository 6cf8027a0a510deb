"""What studies say of families of methods, and what is advised for a split."""

import dataclasses
import types

import numpy as np
import pytest

from tff_reg.data import partition_report
from tff_reg.experiment.report import evidence

ROLES = {"drift": ["scaffold", "feddyn"], "server": ["fedacg", "fedavgm"]}


def values_of(**by_method):
    return [
        {"setting": "", "method": name, "seed": str(seed), "last_five": str(value)}
        for name, values in by_method.items()
        for seed, value in enumerate(values)
    ]


def test_a_family_is_the_median_of_its_methods_seed_by_seed():
    base = np.array([0.5, 0.6, 0.4, 0.5, 0.55])
    one, two = base + [0.1, 0.2, 0.1, 0.3, 0.2], base + [0.0, 0.1, 0.1, 0.1, 0.0]
    of = {"scaffold": one, "feddyn": two, "fedacg": (base - 0.1)[:4]}
    rows = values_of(fedavg=base, **of)
    found = evidence.families(rows, ROLES, "last_five")
    # A method without all seeds is left out, and with it its family.
    assert [*found] == [("", "drift")]
    row = found["", "drift"]
    assert row["seeds"] == 5
    assert row["mean"] == pytest.approx(((one + two) / 2 - base).mean())
    assert row["p"] == 2 / 2**5
    # One that fails does not move it far.
    more = {"drift": [*ROLES["drift"], "feddc"]}
    assert not evidence.families(rows, more, "last_five")  # There is none yet.
    rows = values_of(fedavg=base, **of, feddc=base - 0.4)
    row = evidence.families(rows, more, "last_five")["", "drift"]
    assert row["mean"] == pytest.approx((two - base).mean())


def condition(**changed):
    known = dict(label_distance=0.8, size_variation=0.0, participation=0.25)
    return {**known, "local_epochs": 5.0, "work": 1.0, **changed}


ROWS = [
    {
        "study": name,
        "setting": "",
        "title": name,
        "task": "digits",
        "ahead": ahead,
        "behind": "fedsam" if ahead else "",
        "role": role,
        "methods": "2",
        "seeds": "11",
        "mean": mean,
        "low": low,
        "high": "0.2",
        "p_holm": p,
        **{key: str(value) for key, value in condition(**of).items()},
    }
    for name, ahead, of in (
        ("strong", "fedacg, scaffold", {}),
        ("mild", "", {"label_distance": 0.3}),
        ("one epoch", "", {"local_epochs": 1.0}),
        ("stragglers", "", {"work": 0.6}),
    )
    for role, mean, low, p in (
        ("drift", "0.05", "0.01", "0.02"),
        ("loss", "-0.01", "-0.05", "0.4"),
        ("server", "0.07", "", "0.04"),
    )
]


@pytest.mark.parametrize(
    "of, name",
    [
        ({}, "strong"),
        ({"label_distance": 0.5}, "mild"),
        ({"local_epochs": 2.0}, "one epoch"),
        ({"work": 0.7}, "stragglers"),
        ({"participation": 1.0}, "strong"),
    ],
)
def test_advice_is_that_of_the_nearest_condition(of, name):
    own = evidence.Condition(**condition(**of))
    said = "\n".join(evidence.advice(own, ROWS))
    assert f"The nearest condition that was measured: {name} (task " in said
    assert ("It is far from yours" in said) == (of.get("participation") == 1.0)
    server, drift, loss = (
        next(line for line in said.splitlines() if line.startswith(f"| {role}"))
        for role in ("server", "drift", "loss")
    )
    assert said.index(server) < said.index(drift) < said.index(loss)
    assert "+7.0 [+20.0]" in server and "+5.0 [+1.0, +20.0]" in drift
    assert "gains" in drift and "not shown" in loss and "−1.0 [−5.0, +20.0]" in loss
    has_some = name == "strong"
    assert ("--processes=fedavg,fedacg,scaffold --seeds=7" in said) == has_some
    assert ("behind it, the largest loss first: fedsam." in said) == has_some
    flags = ["--data_dir=my data.npz", "--partition=iid"]
    *_, command = evidence.advice(own, ROWS, flags)
    assert (
        "scaffold '--data_dir=my data.npz' --partition=iid --seeds=7" in command
    ) == (has_some)
    late = evidence.advice(own, ROWS, is_late_or_attacked=True)
    (line,) = [each for each in late if each not in said.splitlines()]
    assert "no client is late or attacks" in line
    assert ("of which they do 60%" in said) == (name == "stragglers")
    assert (
        "one by one, the largest gain first: no method; behind it" in said
    ) != has_some


def test_a_loss_is_shown_as_one():
    row = {"p_holm": "0.05", "mean": "-0.1"}
    assert evidence.verdict(row) == evidence.LOSES
    assert evidence.verdict({**row, "p_holm": "0.051"}) == evidence.OPEN
    assert evidence.verdict({**row, "p_holm": ""}) == evidence.OPEN


def test_a_condition_is_that_of_the_split():
    labels = np.array([0] * 6 + [1] * 2)
    parts, names = [np.arange(6), np.arange(6, 8)], ["a", "b"]
    held = partition_report.report(labels, parts, class_names=names, client_ids=names)
    config = types.SimpleNamespace(
        client_sampling="fixed",
        clients_per_round=1,
        dropout=0.0,
        straggler_share=0.0,
        straggler_epochs=(),
        local_epochs=5,
        local_steps=None,
        batch_size=2,
    )
    found = evidence.Condition.of(held, config)
    # Of the labels 3/4 are 0: the clients differ from that by 1/4 and 3/4, of which
    # samples of 6 and 2 have 0.14 and 0.24 by chance.
    assert found.label_distance == pytest.approx(
        (6 * (0.25 - 0.1410) / (1 - 0.1410) + 2 * (0.75 - 0.2443) / (1 - 0.2443)) / 8,
        abs=1e-3,
    )
    assert dataclasses.astuple(found)[1:] == (0.5, 0.5, 5.0, 1.0)
    config.dropout = 0.5
    assert evidence.Condition.of(held, config).participation == 0.25
    config.straggler_share, config.straggler_epochs = 0.5, (1.0, 3.0)
    assert evidence.Condition.of(held, config).work == pytest.approx(0.7)
    config.straggler_share, config.straggler_epochs = 0.0, ()
    config.local_steps = 4  # Of 2 examples, of a mean of 4.
    assert evidence.Condition.of(held, config).local_epochs == 2.0


def test_chance_is_no_skew():
    random = np.random.default_rng(0)
    for classes, clients, size in ((100, 100, 40), (10, 200, 7), (2, 4, 1000)):
        labels = random.integers(classes, size=clients * size)
        parts = np.split(np.arange(labels.size), clients)
        held = partition_report.report(
            labels,
            parts,
            class_names=[str(n) for n in range(classes)],
            client_ids=[str(n) for n in range(clients)],
        )
        assert evidence._label_distance(held) < 0.1
        parts = np.split(np.argsort(labels, kind="stable"), clients)
        held = dataclasses.replace(
            held,
            counts=np.array([np.bincount(labels[p], minlength=classes) for p in parts]),
        )
        assert evidence._label_distance(held) > (0.75 if classes > 2 else 0.4)
