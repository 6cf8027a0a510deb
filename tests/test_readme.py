"""The README's Python examples run as they are printed."""

import collections
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tests import random_clients
from tff_reg import methods, models, runtime, settings, training

README = pathlib.Path(__file__).parent.parent / "README.md"


def _example(containing):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    (block,) = [block for block in blocks if containing in block]
    return block


def test_a_run_from_python_is_one(capsys, monkeypatch, tmp_path):
    code = _example("experiment.RunConfig(")
    assert "total_rounds=5" in code
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code.replace("total_rounds=5", 'scale="tiny"'), names)
    assert names["result"].summary["rounds"] == 1
    assert capsys.readouterr().out.endswith("%\n")
    recorded = json.loads((tmp_path / "runs/from_python/config.json").read_text())
    assert recorded["process"] == "fedalign+man" and recorded["man_strength"] == 0.1


def test_the_library_in_ten_lines_trains():
    code = _example("training.build(")
    assert "range(25)" in code
    rng = np.random.default_rng(0)

    def my_client_dataset(client, round_num):
        return tf.data.Dataset.from_tensors(
            collections.OrderedDict(
                x=rng.normal(size=(20, 8, 8, 1)).astype(np.float32),
                y=rng.integers(0, 10, 20).astype(np.int32),
                key=np.array([client, round_num], np.int64),
            )
        )

    names = dict(my_client_dataset=my_client_dataset, my_clients=range(2))
    try:
        exec(code.replace("range(25)", "range(2)"), names)
    finally:
        runtime.shutdown()
    train = names["output"].metrics["client_work"]["train"]
    assert train["num_examples"] == 40
    assert np.isfinite(train["loss"])
    assert train["fedalign/term"] > 0


def test_a_method_of_ones_own_trains_in_a_sum():
    names = {}
    exec(_example("class Anchor("), names)
    anchor = names["Anchor"]
    with pytest.raises(settings.SettingError) as refused:
        anchor(-1.0)
    assert f"`{refused.value}`" in README.read_text("utf-8")
    process = training.build_regularized(
        models.build_model_fn("cnn", image_shape=(4, 4, 1), num_classes=3),
        [anchor(0.1), methods.MAN(0.1)],
        training.build_sgd(0.1),
        client_data=training.WholeClientData(batch_size=4),
    )
    with runtime.running("in_process"):
        output = process.next(process.initialize(), random_clients.clients((8, 5)))
    train = output.metrics["client_work"]["train"]
    for term in ("anchor", "man"):
        assert train[f"{term}/term"] > 0
        assert 0 < train[f"{term}/share"] < 1
