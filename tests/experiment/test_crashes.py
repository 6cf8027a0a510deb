"""A crash at every single step of every write, and what the next run makes of it."""

import os
import pathlib
import shutil
import types

import numpy as np
import pytest

from tests.experiment.finished import results
from tff_reg import curves, experiment
from tff_reg.experiment.config import identity
from tff_reg.experiment.rounds import callbacks, checkpoints, progress


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


class Disk:
    """Counts what changes the disk and lets nothing through after a given count.

    What is written at the moment of death is half-written.
    """

    def __init__(self, monkeypatch):
        self.count = 0
        self.last = None
        patch = monkeypatch.setattr
        patch(os, "replace", self._guard(os.replace))
        patch(os, "fsync", self._guard(os.fsync))
        patch(pathlib.Path, "unlink", self._guard(pathlib.Path.unlink))
        patch(pathlib.Path, "mkdir", self._guard(pathlib.Path.mkdir))
        patch(shutil, "rmtree", self._guard(shutil.rmtree, self._half_rmtree))
        patch(
            pathlib.Path,
            "write_bytes",
            self._guard(pathlib.Path.write_bytes, self._half_write),
        )
        patch(np, "savez", self._guard(np.savez, self._half_savez))

    def _guard(self, function, dying=None):
        def guarded(*args, **kwargs):
            self.count += 1
            if self.last is not None and self.count >= self.last:
                if dying is not None and self.count == self.last:
                    dying(function, *args, **kwargs)
                raise Killed
            return function(*args, **kwargs)

        return guarded

    @staticmethod
    def _half_write(function, path, content):
        function(path, content[: len(content) // 2])

    @staticmethod
    def _half_savez(function, file, **arrays):
        file.write(b"PK\x03\x04 half of an archive")

    @staticmethod
    def _half_rmtree(function, path):
        files = [each for each in pathlib.Path(path).rglob("*") if each.is_file()]
        os.remove(files[0])


class Remembering:
    """A learning process without TFF: its state is a walk that the data steer.

    Its clients add to what they drew before.
    """

    def initialize(self):
        return {"weights": [np.zeros(3)], "round": 0}

    def initial_client_state(self, state):
        return {"drawn": np.zeros(3)}

    def next(self, state, datasets, client_states):
        weights = state["weights"][0] * 0.9
        for key in datasets:
            weights = weights + np.random.default_rng(np.abs(key)).normal(size=3)
        drawn = [s["drawn"] + np.abs(k).sum() for s, k in zip(client_states, datasets)]
        metrics = {"client_work": {"train": {"loss": weights[0], "accuracy": 0.5}}}
        return types.SimpleNamespace(
            state={"weights": [weights + sum(drawn)], "round": state["round"] + 1},
            client_states=[{"drawn": each} for each in drawn],
            metrics=metrics,
        )

    def get_model_weights(self, state):
        return types.SimpleNamespace(trainable=state["weights"], non_trainable=[])

    def get_all_clients_weights(self, state):
        weights = [-state["weights"][0]]
        return types.SimpleNamespace(trainable=weights, non_trainable=[])


class Clients:
    client_ids = ["a", "b", "c"]

    def whole_client_dataset(self, client_id, key):
        return key


@pytest.fixture
def run(monkeypatch):
    # So few that old ones are deleted in these short runs, too.
    defaults = checkpoints.CheckpointStore.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "keep", 2)
    # None of these matters here, and all are slow.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(identity, "machine", dict)
    monkeypatch.setattr(callbacks.TensorBoard, "on_start", lambda self, run: None)
    monkeypatch.setattr(
        curves, "write_curves", lambda path, *_, **__: path.write_bytes(b"plot")
    )

    def run_in(directory, **arguments):
        return experiment.train(
            Remembering(),
            Clients(),
            total_rounds=arguments.pop("total_rounds", 3),
            clients_per_round=2,
            evaluate=lambda weights: {"loss": 1.0, "accuracy": weights.trainable[0][1]},
            output_dir=directory,
            progress=progress.Silence(),
            keep_best=True,
            **arguments,
        )

    return run_in


def crash_everywhere(run, monkeypatch, tmp_path, rounds_before=0, **arguments):
    """Runs with a crash at the first, the second, ... step until there is none.

    Args:
      run: The fixture.
      monkeypatch: The fixture.
      tmp_path: Where the runs are.
      rounds_before: How many rounds a run before has left in the directory.
      **arguments: Of the run that crashes.

    Returns:
      How many steps there are.
    """
    run(tmp_path / "unbroken", total_rounds=3)
    if rounds_before:
        run(tmp_path / "before", total_rounds=rounds_before)
    expected = results(tmp_path / "unbroken")
    step = 0
    while True:
        step += 1
        directory = tmp_path / f"crash_{step}"
        if rounds_before:
            shutil.copytree(tmp_path / "before", directory)
        with monkeypatch.context() as patched:
            disk = Disk(patched)
            disk.last = step
            try:
                run(directory, **arguments)
                crashed = False
            except Killed:
                crashed = True
        if crashed or arguments:
            run(directory)
        assert results(directory) == expected, f"crashed at step {step}"
        assert not list(directory.rglob(".tmp-tff_reg-*"))
        shutil.rmtree(directory)
        if not crashed:
            return step


@pytest.mark.parametrize(
    "arguments, least",
    [
        ({}, 60),
        (dict(rounds_before=2, rounds_per_checkpoint=2), 20),
        # As long as the first two together.
        pytest.param(dict(rounds_before=2, overwrite=True), 60, marks=pytest.mark.slow),
    ],
    ids=["a run", "a continued run", "an overwriting run"],
)
def test_a_crash_at_any_step_changes_nothing(
    run, monkeypatch, tmp_path, arguments, least
):
    steps = crash_everywhere(run, monkeypatch, tmp_path, **arguments)
    assert steps > least  # It did look at them all.
