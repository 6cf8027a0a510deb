"""How rounds scale in Ray: the parts that can be wrong without being slow."""

import pytest

from benchmarks import scale
from benchmarks.shared import subject
from tff_reg.runtime import ray_cluster


def test_the_tables_show_ratios_what_a_client_costs_and_the_growth():
    lines = scale.table(
        [
            {
                "model": "cnn",
                "in_process_seconds_median": 0.5,
                "ray_seconds_median": 0.55,
                "ratio": 1.1,
                "rounds": 3,
            },
            {
                "actors": 2,
                "clients_per_round": 100,
                "seconds_median": 0.25,
                "driver_mb": 700,
            },
            {"rounds": 300, "grown_mb": 1.5},
        ]
    )
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == ["cnn", "0.500 s", "0.550 s", "1.10"]
    assert cells[6] == ["2", "100", "0.250", "2.5", "700"]
    assert lines[-1] == "300 rounds of 10 clients: the driver has grown by 1.5 MB."


def test_without_ray_it_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(subject.RefusedError, match="^Ray is not installed: bin/run"):
        scale.SUBJECT.run(None)


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_a_round_in_ray_is_compared_with_one_in_process():
    row = scale.ratio("cnn", 1, print)
    assert 0.2 < row["ratio"] < 20
