"""What a run trains, evaluates, reports and writes, and which arguments make none."""

import json

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.experiment import finished
from tests.experiment.finished import Notes, Wrapped, results
from tests.experiment.stopping import StopHere, StopsAfter
from tff_reg import data, experiment, runtime
from tff_reg.experiment.rounds import metrics

pytestmark = pytest.mark.usefixtures("in_process")


def test_trains_evaluates_and_writes_every_file(run, tmp_path, monkeypatch):
    monkeypatch.undo()  # With the picture.
    result = run(tmp_path / "a", rounds_per_evaluation=4)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    events = {name for name in names if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {
        "config.json",
        "metrics.csv",
        "summary.json",
        "accuracy.png",
        "final_weights.npz",
        "checkpoints",
    }
    header = (tmp_path / "a" / "metrics.csv").read_text().splitlines()[0]
    columns = "round_num,training/loss,training/accuracy,evaluation/loss"
    assert header.startswith(f"{columns},evaluation/accuracy,round_seconds,")
    rows = finished.rows(tmp_path / "a" / "metrics.csv")
    assert [row["round_num"] for row in rows] == list("123456")
    # Evaluated in round 4 and in the last.
    assert [row["round_num"] for row in rows if row["evaluation/loss"]] == ["4", "6"]
    assert result.summary["final_accuracy"] > 0.8
    assert result.summary["final_accuracy"] == float(rows[-1]["evaluation/accuracy"])
    assert result.summary["rounds"] == 6
    with np.load(tmp_path / "a" / "final_weights.npz") as weights:
        assert sorted(weights) == ["trainable/0", "trainable/1"]
        np.testing.assert_array_equal(
            weights["trainable/0"], result.weights.trainable[0]
        )
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["process"] == "fedavg" and config["clients_per_round"] == 3
    assert config["versions"]["tensorflow_federated"] == "0.87.0"


def test_cohort_and_keys_are_those_of_seed_and_round(run, tiny_data):
    run(total_rounds=2, seed=5)
    expected = []
    for round_num in (1, 2):
        cohort = data.sample_clients(
            tiny_data.client_ids, 3, seed=5, round_num=round_num
        )
        expected += [
            (name, tuple(data.client_key(5, round_num, name))) for name in cohort
        ]
    assert tiny_data.asked == expected


@pytest.mark.parametrize(
    "name, value, is_right",
    [
        ("num_clients", 3, False),
        ("clients_per_round", 2, False),
        ("total_rounds", 1, False),
        ("total_rounds", 100, True),  # The rest may follow.
        ("num_clients", None, True),
    ],
)
def test_numbers_that_a_process_was_built_for_are_compared(
    run, tiny_process, name, value, is_right
):
    process = finished.Wrapped(tiny_process)
    process.assumed = {name: value}
    if is_right:
        assert run(process=process, total_rounds=2).rows
        return
    with pytest.raises(ValueError, match=f"was built for {name}={value}, and here"):
        run(process=process, total_rounds=2)


def test_cohorts_can_be_drawn_client_by_client(run, tiny_data, tmp_path):
    run(tmp_path / "a", total_rounds=4, seed=5, client_sampling="independent")
    share = 3 / len(tiny_data.client_ids)
    cohorts = [
        data.sample_clients_bernoulli(
            tiny_data.client_ids, share, seed=5, round_num=round_num
        )
        for round_num in (1, 2, 3, 4)
    ]
    assert [name for name, _ in tiny_data.asked] == sum(cohorts, [])
    assert len({len(cohort) for cohort in cohorts}) > 1
    with pytest.raises(experiment.DirectoryError, match="client_sampling=independent"):
        run(tmp_path / "a", total_rounds=4, seed=5)


def test_on_round_is_called_with_every_row_also_with_earlier_ones(run, tmp_path):
    seen = []
    result = run(tmp_path / "a", total_rounds=4, on_round=seen.append)
    assert seen == result.rows
    assert seen[3]["round_num"] == 4 and seen[3]["evaluation/accuracy"] > 0.5
    seen.clear()
    run(tmp_path / "a", total_rounds=6, on_round=seen.append)
    assert [row["round_num"] for row in seen] == [1, 2, 3, 4, 5, 6]
    # Of a finished run there is nothing else to do.
    again = []
    run(tmp_path / "a", total_rounds=6, on_round=again.append)
    assert again == seen


def test_two_runs_with_one_seed_are_equal_and_with_another_are_not(run, tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b")
    run(tmp_path / "c", seed=1)
    first, second, other = (results(tmp_path / name) for name in "abc")
    assert first == second
    assert first[0] != other[0] and first[2] != other[2]


def test_rounds_that_run_again_begin_anew(run, tiny_process, tiny_data):
    """After an exception, too, where nothing was saved."""
    seen = []

    def on_round(row):
        seen.append(row[metrics.ROUND])
        if len(seen) == 2:
            raise StopHere

    silent = experiment.progress.Silence()
    rounds = experiment.Rounds(
        tiny_process, tiny_data, 4, 3, progress=silent, on_round=on_round
    )
    whole = run(total_rounds=4).weights.trainable
    with pytest.raises(StopHere):
        rounds.run()
    for _ in range(2):
        again = rounds.run()
        assert [row[metrics.ROUND] for row in again.rows] == [1, 2, 3, 4]
        assert all(map(np.array_equal, again.weights.trainable, whole))


def test_trains_where_a_programs_context_is_installed(run):
    expected = run(evaluate=None, total_rounds=2).rows
    with tff.framework.get_context_stack().install(runtime.program_context()):
        rows = run(evaluate=None, total_rounds=2).rows
    same = dict(round_seconds=0, peak_megabytes=0)
    for row, wanted in zip(rows, expected, strict=True):
        assert {**row, **same} == {**wanted, **same}


class KeepsTheMean:
    """A process that has, beside its model, one that is half of it."""

    def __init__(self, process):
        self._process = process
        self.initialize, self.next = process.initialize, process.next
        self.get_model_weights = process.get_model_weights

    def get_all_clients_weights(self, state):
        weights = self._process.get_model_weights(state)
        return tff.learning.models.ModelWeights(
            [w / 2 for w in weights.trainable], weights.non_trainable
        )


def test_the_mean_of_all_clients_is_evaluated_with_the_server_model(
    run, tiny_process, tiny_evaluation, tmp_path
):
    process = KeepsTheMean(tiny_process)
    result = run(tmp_path / "a", process=process, rounds_per_evaluation=4)
    # The mean's columns are filled in the same rounds, of which the first is none.
    for row in result.rows:
        due = row["round_num"] in (4, 6)
        for name in ("evaluation", "evaluation_all_clients"):
            assert (row[f"{name}/loss"] is not None) == due
            assert (row[f"{name}/accuracy"] is not None) == due
    expected = tiny_evaluation(process.get_all_clients_weights(result.state))
    last = result.rows[-1]
    assert last["evaluation_all_clients/loss"] == expected["loss"]
    assert last["evaluation_all_clients/loss"] != last["evaluation/loss"]
    assert result.summary["all_clients_accuracy"] == expected["accuracy"]
    with np.load(tmp_path / "a" / "final_all_clients_weights.npz") as mean:
        np.testing.assert_array_equal(
            mean["trainable/0"], result.weights.trainable[0] / 2
        )
    # A run of more rounds has none until it is finished again.
    with pytest.raises(StopHere):
        run(
            tmp_path / "a",
            process=process,
            rounds_per_evaluation=4,
            total_rounds=8,
            progress=StopsAfter(7),
        )
    assert not list((tmp_path / "a").glob("final_*"))
    # Without evaluation there are no columns of it.
    rows = run(process=process, evaluate=None, total_rounds=1).rows
    assert "evaluation_all_clients/loss" not in rows[0]


def fail(given):
    raise RuntimeError("no memory")


def test_a_failing_round_and_a_failing_evaluation_are_named(
    run, tiny_process, tmp_path
):
    for arguments, words in (
        (dict(process=Wrapped(tiny_process, after=fail)), "Round 1 failed"),
        (
            dict(evaluate=fail, rounds_per_evaluation=2),
            "The evaluation after round 2 failed",
        ),
    ):
        with pytest.raises(experiment.TrainingError) as caught:
            run(tmp_path / "a", overwrite=True, **arguments)
        assert str(caught.value) == f"{words}: RuntimeError: no memory"
        assert json.loads((tmp_path / "a" / "config.json").read_text())


def test_a_loss_that_is_not_finite_is_reported_and_recorded(
    run, tiny_process, tmp_path
):
    def spoil(output):
        output.metrics["client_work"]["train"]["loss"] = np.float32("nan")
        output.metrics["client_work"]["train"]["mine/not_finite"] = np.int32(1)
        output.metrics["client_work"]["train"]["other/not_finite"] = np.int32(0)
        output.metrics["client_work"]["rejected_clients"] = np.int32(2)
        return output

    notes = Notes()
    process = Wrapped(tiny_process, after=spoil)
    result = run(tmp_path / "a", process=process, total_rounds=2, progress=notes)
    assert sum("training loss is nan" in line for line in notes.lines) == 1
    assert sum("2 of 3 clients" in line for line in notes.lines) == 2
    assert sum("mine made numbers that are not f" in line for line in notes.lines) == 2
    assert not any("other made" in line for line in notes.lines)
    counts = [result.rows[0][f"training/{m}/not_finite"] for m in ("mine", "other")]
    assert counts == [1, 0]
    assert ",nan," in (tmp_path / "a" / "metrics.csv").read_text()
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["final_training_loss"] is None
    assert result.rows[0]["client_work/rejected_clients"] == 2


@pytest.mark.parametrize("rejected", [3, 0])
def test_a_round_without_accepted_clients_has_no_loss(run, tiny_process, rejected):
    def reject(output):
        train = output.metrics["client_work"]["train"]
        train.update(
            loss=np.float32(0),
            num_examples=np.int32(0),
            rejected_clients=np.int32(rejected),
        )
        output.metrics["server"] = {"fedexp/server_rate": np.float32(0)}
        return output

    notes = Notes()
    process = Wrapped(tiny_process, after=reject)
    result = run(process=process, total_rounds=1, progress=notes)
    for name in ("training/loss", "server/fedexp/server_rate"):
        value = result.rows[0][name]
        # Where nobody trained, nothing was measured.
        assert np.isnan(value) if rejected else value is None
    assert result.summary["final_training_loss"] is None
    assert result.summary["ends_finite"] == (not rejected)
    assert any("3 of 3 clients" in line for line in notes.lines) == bool(rejected)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (dict(total_rounds=0), ValueError, "total_rounds is 0"),
        (dict(rounds_per_evaluation=0), ValueError, "rounds_per_evaluation is 0"),
        (dict(clients_per_round=11), ValueError, "Cannot draw 11 clients"),
        (dict(client_sampling="some"), ValueError, "client_sampling is 'some'"),
    ],
)
def test_what_makes_no_run_is_refused(run, wrong, error, words):
    with pytest.raises(error, match=words):
        run(**wrong)
