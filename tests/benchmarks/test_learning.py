"""The same training here and in PyTorch: what is compared, and how it is shown."""

import json

import numpy as np

from benchmarks import learning


def test_pytorch_gets_the_split_the_initial_weights_and_the_settings(tmp_path):
    config = learning._config("moon", 1, 15, str(tmp_path / "run"))
    learning._write(str(tmp_path / "case.npz"), config)
    with np.load(tmp_path / "case.npz") as case:
        labels = [case[f"labels{index}"] for index in range(16)]
        weights = [name for name in case.files if name.startswith("weight")]
        settings = json.loads(str(case["settings"]))
        assert case["test_images"].shape == (360, 8, 8, 1)
        assert abs(np.concatenate([case[f"images{i}"] for i in range(16)]).mean()) < 0.1
    assert sum(map(len, labels)) == 1437
    # Dir(0.1): no client has all classes.
    assert max(len(set(each)) for each in labels) < 10
    assert len(weights) > 30
    assert settings["momentum"] == 0.9 and settings["max_gradient_norm"] is None
