"""Every method and 40 recipes give the numbers of the ledger."""

import pytest

from tests import ledger


def test_every_run_has_a_row_of_its_own():
    if found := ledger.differences():
        pytest.fail(ledger.report(found), pytrace=False)


def test_no_two_rows_are_of_the_same_run():
    rows = ledger.read().values()
    losses = [tuple(row[each] for each in ledger.LOSSES) for row in rows]
    assert len({*losses}) == len(losses)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(number, marks=pytest.mark.xdist_group(f"ledger {number}"))
        for number in range(ledger.GROUPS)
    ],
)
def test_the_numbers_are_those_of_the_ledger(group):
    rows, made = ledger.read(), ledger.made(group)
    found = {
        name: ledger.changes(rows[name], row)
        for name, row in made.items()
        if name in rows
    }
    if changed := [f"{name}: {', '.join(c)}" for name, c in found.items() if c]:
        pytest.fail(ledger.report(changed), pytrace=False)
