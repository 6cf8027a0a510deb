"""Callbacks: when they are called, what they keep, and how they end a run."""

import itertools
import json

import numpy as np
import pytest

from tests.experiment.finished import Notes, results
from tff_reg import experiment, runtime
from tff_reg.experiment import EarlyStopping
from tff_reg.experiment.rounds import metrics, summary as summary_lib


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with runtime.running("in_process"):
        yield


def accuracies(*values):
    """An evaluation that gives these accuracies, one after another, again and again."""
    left = itertools.cycle(values)
    return lambda weights: {"loss": 1.0, "accuracy": next(left)}


# As of a run that holds examples out.
HELD_OUT = {"process": "fedavg", "task": "tiny", "validation_share": 0.1}


class Noting(experiment.Callback):
    """Notes its calls, and keeps how often it was called for a resume."""

    def __init__(self):
        self.calls, self.rounds = [], 0

    def on_start(self, run):
        self.rounds = int(run.kept("rounds.txt") or b"0")
        self.calls.append(("start", run.rounds_done, len(run.rows)))

    def on_round(self, run, row):
        assert run.rows[-1]["round_num"] == row["round_num"] == run.rounds_done
        np.testing.assert_array_equal(len(run.get_weights().trainable), 2)
        self.rounds += 1
        self.calls.append(("round", self.rounds))

    def on_end(self, run):
        self.calls.append(("end", run.rounds_done))

    def keep(self):
        return {"rounds.txt": str(self.rounds).encode()}


class Stopping(experiment.Callback):
    """Ends the run after a round, or fails there or at the end."""

    def __init__(self, last=None, fails_in=None, fails_at_end=False):
        self.last, self.fails_in, self.fails_at_end = last, fails_in, fails_at_end

    def on_round(self, run, row):
        if run.rounds_done == self.fails_in:
            raise LookupError("no connection")
        return "it is time" if run.rounds_done == self.last else None

    def on_end(self, run):
        if self.fails_at_end:
            raise LookupError("no connection")


def test_it_is_called_at_the_start_after_every_round_and_at_the_end(run, tmp_path):
    first, second = Noting(), Noting()
    run(tmp_path, total_rounds=2, callbacks=[first])
    assert first.calls == [("start", 0, 0), ("round", 1), ("round", 2), ("end", 2)]
    # A resume in another process goes on with what was kept.
    run(tmp_path, total_rounds=3, callbacks=[second])
    assert second.calls == [("start", 2, 2), ("round", 3), ("end", 3)]


def test_an_exception_ends_the_run_resumably(run, tmp_path):
    run(tmp_path / "unbroken")
    for failing in (Stopping(fails_in=3), Stopping(fails_at_end=True)):
        with pytest.raises(LookupError):
            run(tmp_path / "a", callbacks=[failing])
        assert not (tmp_path / "a" / "summary.json").exists()
    run(tmp_path / "a")
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


def test_early_stopping_finishes_a_run(run, tiny_data, tmp_path):
    notes = Notes()
    arguments = dict(output_dir=tmp_path, callbacks=[EarlyStopping(2)])
    arguments["evaluate"] = accuracies(0.2, 0.5, 0.4, 0.3, 0.1, 0.1, 0.1)
    arguments["settings"] = HELD_OUT
    result = run(**arguments, progress=notes)
    stopped = {"reason": "no better held-out accuracy in 2 rounds"}
    stopped |= {"by": "EarlyStopping", "total_rounds": 6}
    assert result.summary["stopped_early"] == stopped
    assert result.summary["rounds"] == 4 and result.summary["final_accuracy"] == 0.3
    assert notes.lines[-1] == f"The run ends after round 4: {stopped['reason']}."
    assert json.loads((tmp_path / "summary.json").read_text()) == result.summary
    # It is finished, for 6 rounds and fewer; whoever asks for more goes on.
    directory = experiment.RunDirectory(tmp_path)
    assert directory.is_finished(6) and not directory.is_finished(7)
    wanted = {"total_rounds": 6}
    assert summary_lib.of_finished_run(directory, wanted) == result.summary
    tiny_data.asked.clear()
    assert run(**arguments).summary == result.summary and not tiny_data.asked
    # Not where the run's own patience ended it.
    table = metrics.MetricsTable.parse((tmp_path / "metrics.csv").read_text())
    stays = {"patience": 2, "total_rounds": 9}
    assert not summary_lib.goes_on(result.summary["stopped_early"], table, stays)
    more = run(**{**arguments, "callbacks": []}, total_rounds=7)
    assert more.summary["rounds"] == 7 and "stopped_early" not in more.summary


def test_a_misspelt_hook_is_told(run):
    class Misspelt(experiment.Callback):
        def on_rond(self, run, row):
            pass

    with pytest.raises(TypeError, match=r"on_rond is no hook.*mean on_round\?"):
        run(callbacks=[Misspelt()])


def test_early_stopping_counts_rounds_that_were_tested(run):
    # Every other round is tested, and every test is better.
    improving = run(
        callbacks=[EarlyStopping(2)],
        settings=HELD_OUT,
        rounds_per_evaluation=2,
        evaluate=accuracies(0.1, 0.2, 0.3),
    )
    assert improving.summary["rounds"] == 6


def test_a_run_that_ends_at_its_target_goes_on_for_a_higher_one(run, tmp_path):
    def to(folder, *targets):
        settings = {**HELD_OUT, "target_measure": "raw", "stop_at_target": True}
        settings["targets"] = targets
        stopping = [EarlyStopping(at_target=True)]
        # After a stop in round 3 the evaluation goes on where it was.
        return run(folder, settings=settings, callbacks=stopping, evaluate=evaluate)

    evaluate = accuracies(0.1, 0.5, 0.6, 0.5, 0.7, 0.8)
    first = to(tmp_path / "a", 0.55, 0.2).summary
    assert first["rounds"] == 3 and first["rounds_to_target"] == {"0.55": 3, "0.2": 2}
    assert first["stopped_early"]["reason"] == "it has reached the target accuracy 0.55"
    with pytest.raises(experiment.DirectoryError, match="stop_at_target=0.55"):
        to(tmp_path / "a", 0.3)
    assert to(tmp_path / "a", 0.65).summary["rounds"] == 5
    evaluate = accuracies(0.1, 0.5, 0.6, 0.5, 0.7, 0.8)
    assert to(tmp_path / "b", 0.65).summary["rounds"] == 5
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_the_best_model_may_be_that_of_a_round_evaluated_out_of_turn(run, tmp_path):
    arguments = dict(
        rounds_per_evaluation=2,
        keep_best=True,
        evaluate=accuracies(0.25, 0.5),
        callbacks=[Stopping(last=3)],
    )
    run(tmp_path, **arguments)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best_round"] == 3
    best, final = (
        np.load(tmp_path / f"{name}_weights.npz") for name in ("best", "final")
    )
    for name in final.files:
        np.testing.assert_array_equal(best[name], final[name])
    # It still is when the finished run is called again.
    kept = (tmp_path / "best_weights.npz").read_bytes()
    run(tmp_path, **arguments)
    assert (tmp_path / "best_weights.npz").read_bytes() == kept
