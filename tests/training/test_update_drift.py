import json

import numpy as np
import pytest

from tests.experiment.own_runs import run_own
from tff_reg import settings, training
from tff_reg.experiment import RunConfig
from tff_reg.lazy import tff
from tff_reg.training import aggregation


def test_drift_follows_from_means(in_process):
    updates = [[[3.0, 4.0], [1.0]], [[0.0, 5.0], [-2.0]], [[0.0, 0.0], [0.0]]]
    updates = [[np.array(part, np.float32) for part in each] for each in updates]
    weights = np.array([1.0, 3.0, 0.0], np.float32)
    kind = tff.types.to_type([(np.float32, [2]), (np.float32, [1])])
    aggregator = tff.aggregators.MeanFactory().create(kind, tff.TensorType(np.float32))
    groups = {"all": [0, 1], "head": [1]}
    process = aggregation.with_drift(aggregator, kind, groups)
    output = process.next(process.initialize(), updates, [*weights])
    shares = weights / weights.sum()
    for name, places in groups.items():
        rows = np.array([np.concatenate([u[i] for i in places]) for u in updates])
        mean, norms = shares @ rows, np.linalg.norm(rows, axis=1)
        length, found = np.linalg.norm(mean), output.measurements["drift"][name]
        cosines = rows @ mean / np.where(norms == 0, 1, norms) / length
        assert found["norm"] == pytest.approx(shares @ norms)
        assert found["cosine"] == pytest.approx(shares @ cosines, rel=1e-5)
        squares = ((rows - mean) ** 2).sum(axis=1)
        divergence = np.sqrt(shares @ squares) / length
        assert found["divergence"] == pytest.approx(divergence, rel=1e-5)


def test_a_small_divergence_does_not_cancel(in_process):
    rng = np.random.default_rng(0)
    mean, apart = (rng.normal(size=1000).astype(np.float32) for _ in range(2))
    apart *= np.float32(1e-4 * np.linalg.norm(mean) / np.linalg.norm(apart))
    kind = tff.types.to_type([(np.float32, [1000])])
    aggregator = tff.aggregators.MeanFactory().create(kind, tff.TensorType(np.float32))
    process = aggregation.with_drift(aggregator, kind, {"all": [0]})
    updates = [[mean + apart], [mean - apart]]
    output = process.next(process.initialize(), updates, [1.0, 1.0])
    found = output.measurements["drift"]["all"]
    assert found["divergence"] == pytest.approx(1e-4, rel=1e-2)


def test_a_run_is_the_same_with_it_and_has_columns_for_blocks(tmp_path):
    given = dict(process="scaffold", total_rounds=2, metrics={}, sample_fn=None)
    folders = [tmp_path / "plain", tmp_path / "measured"]
    plain, measured = (
        run_own(**given, output_dir=folder, drift=folder.name == "measured")
        for folder in folders
    )
    for one, other in zip(plain.weights.trainable, measured.weights.trainable):
        np.testing.assert_array_equal(one, other)
    last = measured.rows[-1]
    whole, *blocks = (last[f"drift/{g}/norm"] for g in ("all", "block1", "classifier"))
    assert max(blocks) < whole <= sum(blocks)
    assert (folders[1] / "drift.png").exists()
    configs = [json.loads((f / "config.json").read_text("utf-8")) for f in folders]
    sent, same = (config["bytes_per_client"] for config in configs)
    assert sent == same and sent[1] > 0


def test_sums_alone_do_not_show_drift():
    with pytest.raises(settings.SettingError, match="is for aggregator=mean, not dp"):
        RunConfig(process="fedavg", drift=True, aggregator="dp").resolved()
    private = training.aggregators.build_model_aggregator("robust", clients_per_round=2)
    with pytest.raises(ValueError, match="measures_drift needs the plain mean"):
        given = dict(model_aggregator=private, measures_drift=True)
        training.build("fedavg", lambda: None, **given)
