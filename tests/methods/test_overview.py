"""What documents say of all methods together."""

import itertools

from tff_reg.methods import catalogue, overview


def test_combinations_exclude_exactly_the_alternatives():
    head, *rows = overview.combinations()
    names = [cell.strip("`") for cell in head[1:]]
    assert names == [name for name in catalogue.names() if name != "fedavg"]
    # In each row, the place of each method.
    alternatives = [
        {
            name.strip("`"): place
            for place, together in enumerate(row["one of"].split(", "))
            for name in together.split(" + ")
        }
        for row in overview.alternatives()
    ]
    for (one, row), (other, cell) in itertools.product(
        zip(names, rows), enumerate(names)
    ):
        expected = one != cell and not any(
            {one, cell} <= {*each} and each[one] != each[cell] for each in alternatives
        )
        assert (row[1 + other] == "+") == expected, (one, cell)
