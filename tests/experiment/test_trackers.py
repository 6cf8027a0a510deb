"""Trackers: what they are sent, resuming, failures, and what is refused."""

import importlib
import os
import sys
import types

import pytest

from tests.experiment.finished import Notes
from tff_reg import experiment, runtime, settings
from tff_reg.experiment.rounds import trackers
from tff_reg.lazy import tf


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with runtime.running("in_process"):
        yield


class FakeRun:
    """Notes what W&B is sent; from a round on the network is down."""

    offline = True

    def __init__(self, calls, down_from):
        self._calls, self._down_from = calls, down_from

    def log(self, numbers, step=None):
        if step and step == self._down_from:
            raise ConnectionError("no route\nto the host")
        self._calls.append((step, sorted(numbers)))

    def finish(self):
        self._calls.append("end")


@pytest.fixture
def wandb(monkeypatch):
    """W&B's module, but for its network; `calls` has what it was sent."""
    module = types.SimpleNamespace(calls=[], down_from=None, Settings=dict, Image=str)
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.login = lambda prompt=True, verify=True: False

    def init(**given):
        module.calls.append(given)
        return FakeRun(module.calls, module.down_from)

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return module


def test_every_round_is_logged_once_and_a_resumed_run_goes_on(run, wandb, tmp_path):
    for rounds in (2, 3):
        tracked = trackers.of(["wandb:mine"])
        run(tmp_path / "d" / "a", total_rounds=rounds, callbacks=tracked)
    first, one, two, pictures, end, second, three, *_ = wandb.calls
    assert [one[0], two[0], three[0], end] == [1, 2, 3, "end"]
    assert "training/loss" in one[1] and pictures == (None, ["accuracy"])
    assert first["id"] == second["id"] and first["project"] == "mine"
    assert first["name"] == "a" and first["group"].endswith("-d")
    assert first["config"]["total_rounds"] == 2


def test_a_failure_is_said_once_and_the_run_goes_on(run, wandb):
    wandb.down_from, notes = 2, Notes()
    run(total_rounds=4, callbacks=trackers.of(["wandb:mine"]), progress=notes)
    said = [line for line in notes.lines if "wandb" in line]
    assert said == [
        "wandb failed, and the run goes on without it (ConnectionError: no route)."
    ]
    assert "end" not in wandb.calls


def test_tensorboard_has_the_config_and_the_pictures(run, tmp_path):
    assert trackers.of(["tensorboard"]) == []  # It always is.
    run(tmp_path, total_rounds=1)
    tags = [
        value.tag
        for path in tmp_path.glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]
    assert {"config", "accuracy", "training/loss"} <= {*tags}


# The package itself, where somebody has installed it.
@pytest.mark.parametrize("name", ["wandb:mine", "mlflow:mine"])
def test_the_real_packages_work_offline(run, name, tmp_path, monkeypatch):
    pytest.importorskip(name.partition(":")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notes = Notes()
    for rounds in (1, 2):
        tracked = trackers.of([name])
        run(tmp_path / "a", total_rounds=rounds, callbacks=tracked, progress=notes)
    assert not [line for line in notes.lines if "failed" in line]


def test_what_cannot_be_tracked_is_refused(wandb, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    for text, words in (
        ("comet:x", "give tensorboard, wandb:PROJECT or mlflow:EXPERIMENT"),
        ("wandb", "give tensorboard, wandb:PROJECT"),
        ("wandb:x", "is not installed: .* -m pip install wandb$"),
        ("mlflow:x", "is not installed: .* -m pip install mlflow-skinny alembic$"),
    ):
        with pytest.raises(settings.SettingError, match=words):
            experiment.RunConfig(process="fedavg", track=text)
            trackers.of([text])
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(settings.SettingError, match="no account: wandb login, or set"):
        trackers.of(["wandb:x"])
