"""Every method and 40 recipes give the numbers of the ledger."""

import os

import pytest

from tests import ledger

# TensorFlow 2.14 is not the ledger's.
_LANE = os.environ.get("TFF_REG_LANE", "today")
pytestmark = pytest.mark.skipif(_LANE != "today", reason="a lane without a ledger")

_OLD = {"name": "man", **dict.fromkeys(ledger.LOSSES, "2.5"), "here": "aa", "there": ""}


def test_every_run_has_a_row_and_no_two_the_same():
    if found := ledger.missing():
        pytest.fail(ledger.report(found), pytrace=False)
    rows = ledger.read().values()
    assert all(row["why"] for row in rows)
    losses = [tuple(row[each] for each in ledger.LOSSES) for row in rows]
    assert len({*losses}) == len(losses)


@pytest.mark.parametrize(
    "new, words",
    [
        ({"test_loss_2": "2.50001", "there": "bb"}, []),
        ({"training_loss_1": "2.6"}, ["training_loss_1 2.5 -> 2.6"]),
        ({"test_loss_2": ""}, ["test_loss_2 2.5 -> None"]),
        ({"here": "bb"}, ["digest of the weights aa -> bb"]),
    ],
)
def test_changes_are_told(new, words):
    assert ledger.changes(_OLD, {**_OLD, **new}) == words


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(number, marks=pytest.mark.xdist_group(f"ledger {number}"))
        for number in range(ledger.GROUPS)
    ],
)
def test_runs_give_the_ledgers_numbers(group):
    if found := ledger.differences(ledger.made(group)):
        pytest.fail(ledger.report(found), pytrace=False)
