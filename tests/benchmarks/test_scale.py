"""How rounds scale in Ray: the parts that can be wrong without being slow."""

import pytest

from benchmarks import scale
from benchmarks.shared import subject
from tff_reg.runtime import ray_cluster


def test_without_ray_it_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(subject.RefusedError, match="^Ray is not installed: bin/run"):
        scale.SUBJECT.run(None)


@pytest.mark.slow
@pytest.mark.xdist_group("test_ray")
def test_a_round_in_ray_is_compared_with_one_in_process():
    row = scale.ratio("cnn", 1, print)
    assert 0.2 < row["ratio"] < 20
