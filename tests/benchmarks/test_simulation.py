"""What measurements cost: that each is measured."""

import pytest

from benchmarks import simulation


@pytest.mark.slow  # A minute.
def test_every_measurement_has_its_share_of_a_round():
    rows = simulation.measure(quick=True)
    shares = {row["what"]: row.get("share") for row in rows}
    assert shares["nothing"] == 0 and {"client_evaluation", "drift"} < {*shares}
    assert rows[-1]["what"] == "report.html" and rows[-1]["seconds"] < 5
    assert len(simulation.table(rows)) == 2 + len(rows)
