"""Runs that were stopped or get more rounds: what goes on, and to which bytes."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.experiment import finished
from tests.experiment.finished import Notes, results
from tests.experiment.stopping import StopHere, StopsAfter
from tff_reg.experiment.rounds import directory, loop

pytestmark = pytest.mark.usefixtures("in_process")


def test_the_model_of_the_best_round_that_was_done_is_kept(run, tmp_path):
    seen = []

    def evaluate(weights):
        # The second is the first of the best, also after the resume.
        seen.append([np.array(w) for w in weights.trainable])
        return {"loss": 1.0, "accuracy": [0.5, 0.75, 0.75, 0.25, 0.5][len(seen) - 1]}

    arguments = dict(total_rounds=4, keep_best=True, evaluate=evaluate)
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(3), **arguments)
    run(tmp_path / "a", **arguments)
    newest = directory.RunDirectory(tmp_path / "a").checkpoints.latest()
    name = "best_weights.npz"
    for path in (tmp_path / "a" / name, newest.part(name)):
        with np.load(path) as stored:
            kept = [stored[name] for name in stored.files]
        tf.nest.map_structure(np.testing.assert_array_equal, kept, seen[1])
    assert not np.array_equal(seen[1][0], seen[2][0])
    run(tmp_path / "a", total_rounds=1, evaluate=evaluate, overwrite=True)
    assert not (tmp_path / "a" / "best_weights.npz").exists()


def test_what_on_round_raises_ends_the_run_and_no_round_is_lost(
    run, tiny_data, tmp_path
):
    run(tmp_path / "unbroken")

    def stop(row):
        if row["round_num"] == 3:
            raise KeyboardInterrupt

    tiny_data.asked.clear()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", rounds_per_checkpoint=5, on_round=stop)
    run(tmp_path / "a", rounds_per_checkpoint=5)
    assert len(tiny_data.asked) == 6 * 3
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


@pytest.mark.parametrize("stopped_after, kept", [(1, 0), (5, 4)])
def test_a_stopped_run_continues_from_its_checkpoint_to_the_same_bytes(
    run, tiny_data, tmp_path, stopped_after, kept
):
    settings = dict(rounds_per_checkpoint=4, rounds_per_evaluation=2)
    run(tmp_path / "unbroken", **settings)
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(stopped_after), **settings)
    assert not (tmp_path / "a" / "summary.json").exists()
    tiny_data.asked.clear()
    notes = Notes()
    run(tmp_path / "a", progress=notes, **settings)
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")
    assert len(tiny_data.asked) == (6 - kept) * 3
    assert notes.lines == [f"Resuming after round {kept} of 6."] * bool(kept)
    # Events have every round once.
    (path,) = (tmp_path / "a").glob("events.out.tfevents.*")
    steps = [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "training/loss"
    ]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_round_evaluated_for_being_the_last_is_not_when_it_is_no_more(run, tmp_path):
    evaluated = []

    def evaluate(weights):
        # The second evaluation is better than the first, and than all after it.
        evaluated.append(1)
        return {"loss": 1.0, "accuracy": [0.0, 0.1, 0.2, 0.0][min(len(evaluated), 3)]}

    def files(folder, rounds):
        evaluated.clear()
        run(
            tmp_path / folder,
            total_rounds=rounds,
            rounds_per_evaluation=2,
            keep_best=True,
            evaluate=evaluate,
        )
        return results(tmp_path / folder)

    at_once = files("whole", 6)
    begun = files("a", 3)
    assert begun[0][2]["evaluation/accuracy"] != ""
    # As it goes on, up to a round that is not evaluated: the best is what it was.
    with pytest.raises(StopHere):
        run(
            tmp_path / "a",
            rounds_per_evaluation=2,
            keep_best=True,
            evaluate=evaluate,
            progress=StopsAfter(4),
        )
    table = finished.rows(tmp_path / "a" / "metrics.csv")
    assert table[2]["evaluation/loss"] == table[2]["evaluation/accuracy"] == ""
    assert table[:2] == at_once[0][:2]
    best = tmp_path / "a" / "best_weights.npz"
    assert best.read_bytes() != begun[-1][pathlib.Path(best.name)]


def test_code_that_goes_on_with_a_run_is_recorded_and_says_so(
    run, tmp_path, monkeypatch
):
    def made_by(code):
        monkeypatch.setattr(loop.identity, "code", lambda *_, **__: {"tff_reg": code})

    def run_on(total_rounds):
        notes = Notes()
        run(tmp_path / "a", total_rounds=total_rounds, progress=notes)
        config = json.loads((tmp_path / "a" / "config.json").read_text())
        said = [line for line in notes.lines if line.startswith("It was made by")]
        return [each["tff_reg"] for each in config["code"]], said

    made_by("first")
    assert run_on(1) == (["first"], [])
    assert run_on(2) == (["first"], [])
    made_by("second")
    line = "It was made by other code: tff_reg first (now second)."
    # Who only reads it back has made nothing of it.
    assert run_on(2) == (["first"], [line])
    assert run_on(3) == (["first", "second"], [line])
