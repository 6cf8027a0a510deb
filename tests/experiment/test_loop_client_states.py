"""Runs of a method whose clients remember: their states, also after a resume."""

import numpy as np
import pytest

from tests.experiment.finished import Notes, results
from tests.experiment.stopping import StopHere, StopsAfter
from tff_reg import experiment, tasks, training
from tff_reg.experiment.rounds import process_state

pytestmark = pytest.mark.usefixtures("in_process")


class Remembering:
    """MOON, whose clients keep their last model, on the digits."""

    def __init__(self):
        self.task = tasks.build(
            "digits",
            model="cnn",
            projector="moon",
            partition="dirichlet_balanced",
            concentration=0.5,
            num_clients=6,
            seed=0,
        )
        settings = training.ProcessSettings.of("moon", num_clients=6, local_epochs=1)
        self.process = training.build_from_settings(
            "moon",
            self.task.model_fn,
            settings,
            {"moon_strength": 5.0},
            client_preprocess_fn=self.task.augment_fn,
            example_dtype="uint8",
        )

    def run(self, output_dir=None, **arguments):
        defaults = dict(
            total_rounds=4,
            clients_per_round=3,
            output_dir=output_dir,
            settings={"process": "moon", "task": "digits"},
            progress=Notes(),
        )
        return experiment.train(
            self.process, self.task.client_data, **{**defaults, **arguments}
        )


@pytest.fixture(scope="module")
def moon():
    return Remembering()


def kept_states(directory):
    """The bytes of client states and of checkpoints' states."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.glob("checkpoints/*.npz")
    }


def test_moon_continues_with_what_its_clients_remember(moon, tmp_path, no_pictures):
    period = dict(rounds_per_checkpoint=3)
    whole = moon.run(tmp_path / "unbroken", **period)
    with pytest.raises(StopHere):
        moon.run(tmp_path / "broken", progress=StopsAfter(3), **period)
    notes = Notes()
    moon.run(tmp_path / "broken", progress=notes, **period)
    assert notes.lines == ["Resuming after round 3 of 4."]
    assert results(tmp_path / "broken") == results(tmp_path / "unbroken")
    kept = kept_states(tmp_path / "unbroken")
    assert kept_states(tmp_path / "broken") == kept
    assert len(kept) > 3
    # And in memory.
    in_memory = moon.run()
    for a, b in zip(in_memory.weights.trainable, whole.weights.trainable):
        np.testing.assert_array_equal(a, b)
    assert whole.all_clients_weights is None
    assert not (tmp_path / "unbroken" / "final_all_clients_weights.npz").exists()


def test_a_round_loads_the_states_of_its_cohort_only(
    moon, tmp_path, no_pictures, monkeypatch
):
    loaded = []
    read = process_state.read_state

    def read_state(path, like):
        if isinstance(like, dict):  # The server has a tuple.
            loaded.append(path)
        return read(path, like)

    monkeypatch.setattr(process_state, "read_state", read_state)
    moon.run(tmp_path / "a", total_rounds=1)
    assert not loaded  # All came for the first time.
    moon.run(tmp_path / "a", total_rounds=4)
    assert 0 < len(loaded) <= 3 * 3
