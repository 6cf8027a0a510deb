import asyncio
import json
import pathlib
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import commands
from tests.experiment import finished
from tests.experiment.finished import Notes, Wrapped, results
from tff_reg import curves, data, experiment, runtime, tasks, training
from tff_reg.data import digests
from tff_reg.experiment.rounds import (
    client_states,
    loop,
    metrics,
    progress,
    state_file,
    summary as summary_lib,
)


@pytest.fixture(scope="module", autouse=True)
def in_process():
    """Not TFF's own default, whose worker may outlive the tests."""
    with runtime.running("in_process"):
        yield


class StopHere(Exception):
    """Stands for the end of the process."""


class StopsAfter(progress.Progress):
    """Ends the run after a given round's row was written."""

    def __init__(self, last_round):
        self._last_round = last_round

    def after_round(self, round_num, row):
        if round_num == self._last_round:
            raise StopHere


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
    assert tuple(header.split(",")[:6]) == metrics.FIRST_COLUMNS
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


@pytest.mark.parametrize(
    "accuracies, rounds_per_checkpoint, total_rounds, best",
    [
        # The first of the best, and not again after the resume.
        ([0.5, 0.75, 0.75, 0.25], 1, 4, 1),
        # The third round is not in the checkpoint, and is not asked for again.
        ([0.5, 0.25, 0.75], 2, 2, 0),
    ],
)
def test_the_model_of_the_best_round_that_was_done_is_kept(
    run, tmp_path, accuracies, rounds_per_checkpoint, total_rounds, best
):
    seen = []

    def evaluate(weights):
        seen.append([np.array(w) for w in weights.trainable])
        return {"loss": 1.0, "accuracy": [*accuracies, 0.5][len(seen) - 1]}

    arguments = dict(keep_best=True, evaluate=evaluate)
    arguments["rounds_per_checkpoint"] = rounds_per_checkpoint
    with pytest.raises(StopHere):
        run(tmp_path / "a", total_rounds=4, progress=StopsAfter(3), **arguments)
    run(tmp_path / "a", total_rounds=total_rounds, **arguments)
    newest = tmp_path / "a" / "checkpoints" / f"round_{total_rounds:06d}"
    for path in (tmp_path / "a", newest):
        with np.load(path / "best_weights.npz") as stored:
            kept = [stored[name] for name in stored.files]
        tf.nest.map_structure(np.testing.assert_array_equal, kept, seen[best])
    assert not np.array_equal(seen[best][0], seen[2][0])
    run(tmp_path / "a", total_rounds=1, evaluate=evaluate, overwrite=True)
    assert not (tmp_path / "a" / "best_weights.npz").exists()


@pytest.mark.parametrize("name", ["final_weights.npz", "best_weights.npz"])
def test_damaged_weights_of_a_finished_run_are_written_again(run, tmp_path, name):
    run(tmp_path / "a", total_rounds=2, keep_best=True)
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    wanted = {"total_rounds": 2}
    directory = experiment.RunDirectory(tmp_path / "a")
    assert summary_lib.of_finished_run(directory, wanted) is not None
    path.write_bytes(whole[:100])
    assert summary_lib.of_finished_run(directory, wanted) is None
    notes = Notes()
    run(tmp_path / "a", total_rounds=2, keep_best=True, progress=notes)
    assert notes.lines == [
        "Resuming after round 2 of 2.",
        f"{name} is damaged: it is written again.",
    ]
    assert path.read_bytes() == whole
    # Who deletes weights to save room has a finished run still.
    (tmp_path / "a" / "final_weights.npz").unlink()
    assert summary_lib.of_finished_run(directory, wanted) is not None


def test_ctrl_c_in_a_round_comes_out_and_the_run_continues(run, tiny_process, tmp_path):
    run(tmp_path / "unbroken")
    outputs = []

    def interrupt(output):
        outputs.append(output)
        if len(outputs) == 4:
            signal.raise_signal(signal.SIGINT)
        return output

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", process=Wrapped(tiny_process, after=interrupt))
    notes = Notes()
    run(tmp_path / "a", progress=notes)
    assert notes.lines == ["Resuming after round 3 of 6."]
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


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


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_what_on_round_raises_ends_the_run_and_no_round_is_lost(
    run, tiny_data, tmp_path, error
):
    run(tmp_path / "unbroken")

    def stop(row):
        if row["round_num"] == 3:
            raise error

    tiny_data.asked.clear()
    with pytest.raises(error):
        run(tmp_path / "a", rounds_per_checkpoint=5, on_round=stop)
    run(tmp_path / "a", rounds_per_checkpoint=5)
    assert len(tiny_data.asked) == 6 * 3
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


@pytest.mark.parametrize("rounds_per_checkpoint", [1, 4])
@pytest.mark.parametrize("stopped_after", [1, 3, 5])
def test_a_stopped_run_continues_from_its_checkpoint_to_the_same_bytes(
    run, tiny_data, tmp_path, stopped_after, rounds_per_checkpoint
):
    settings = dict(
        rounds_per_checkpoint=rounds_per_checkpoint, rounds_per_evaluation=2
    )
    run(tmp_path / "unbroken", **settings)
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(stopped_after), **settings)
    assert not (tmp_path / "a" / "summary.json").exists()
    tiny_data.asked.clear()
    notes = Notes()
    run(tmp_path / "a", progress=notes, **settings)
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")
    kept = stopped_after // rounds_per_checkpoint * rounds_per_checkpoint
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


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(run, tmp_path):
    run(tmp_path / "unbroken")
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(4))
    state = tmp_path / "a" / "checkpoints" / "round_000004" / "server_state.npz"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(bytes(content))
    notes = Notes()
    run(tmp_path / "a", progress=notes)
    assert len(notes.lines) == 2
    assert notes.lines[0].startswith("The checkpoint of round 4 is damaged")
    assert notes.lines[1] == "Resuming after round 3 of 6."
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


def test_without_any_whole_checkpoint_it_starts_anew(run, tmp_path):
    run(tmp_path / "unbroken")
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(2))
    for manifest in (tmp_path / "a" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{")
    run(tmp_path / "a")
    assert results(tmp_path / "a") == results(tmp_path / "unbroken")


@pytest.mark.parametrize("first", [1, 3, 5])
def test_a_round_evaluated_for_being_the_last_is_not_when_it_is_no_more(
    run, tmp_path, first
):
    evaluated = []

    def evaluate(weights):
        # Every evaluation is better than all before it.
        evaluated.append(1)
        return {"loss": 1.0, "accuracy": len(evaluated) / 100}

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
    begun = files("a", first)
    assert begun[0][first - 1]["evaluation/accuracy"] != ""
    # As it goes on, up to a round that is not evaluated: the best is what it was.
    with pytest.raises(StopHere):
        run(
            tmp_path / "a",
            rounds_per_evaluation=2,
            keep_best=True,
            evaluate=lambda weights: {"loss": 1.0, "accuracy": 0.0},
            progress=StopsAfter(first + 1),
        )
    table = finished.rows(tmp_path / "a" / "metrics.csv")
    last = table[first - 1]
    assert last["evaluation/loss"] == last["evaluation/accuracy"] == ""
    assert table[: first - 1] == at_once[0][: first - 1]
    best = tmp_path / "a" / "best_weights.npz"
    assert best.read_bytes() != begun[-1][pathlib.Path(best.name)]


def test_three_rounds_and_four_more_are_seven_at_once(run, tiny_data, tmp_path):
    for folder, totals in (("whole", (7,)), ("a", (3, 7))):
        for rounds in totals:
            tiny_data.asked.clear()
            run(
                tmp_path / folder,
                total_rounds=rounds,
                rounds_per_evaluation=2,
                keep_best=True,
            )
    assert len(tiny_data.asked) == 4 * 3
    assert results(tmp_path / "a") == results(tmp_path / "whole")


def test_two_runs_with_one_seed_are_equal_and_with_another_are_not(run, tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b")
    run(tmp_path / "c", seed=1)
    first, second, other = (results(tmp_path / name) for name in "abc")
    assert first == second
    assert first[0] != other[0] and first[2] != other[2]


def test_other_settings_in_the_same_directory_are_refused_by_name(run, tmp_path):
    run(tmp_path / "a", total_rounds=1)
    with pytest.raises(experiment.DirectoryError) as caught:
        run(tmp_path / "a", total_rounds=1, clients_per_round=2)
    message = str(caught.value)
    assert message.startswith(f"output_dir={tmp_path}/a: it has a run with ")
    assert "run with clients_per_round=3, not 2; give another" in message
    assert "\n" not in message
    result = run(tmp_path / "a", total_rounds=1, clients_per_round=2, overwrite=True)
    assert result.summary["clients_per_round"] == 2


def test_another_process_in_the_same_directory_is_refused(run, tiny_model, tmp_path):
    def build(rate):
        optimizer = tff.learning.optimizers.build_sgdm(rate)
        return tff.learning.algorithms.build_weighted_fed_avg(tiny_model, optimizer)

    run(tmp_path, process=build(0.1), total_rounds=1)
    with pytest.raises(experiment.DirectoryError) as caught:
        run(tmp_path, process=build(1e-9), total_rounds=1)
    assert "is of other computations (another process" in str(caught.value)
    assert "\n" not in str(caught.value)
    # The same, built anew, is no other.
    assert len(run(tmp_path, process=build(0.1), total_rounds=2).rows) == 2


def test_trains_where_a_programs_context_is_installed(run, tiny_process, tiny_data):
    arguments = dict(total_rounds=2, clients_per_round=3, progress=Notes())

    def train():
        return run(evaluate=None, total_rounds=2)

    async def inside():
        asynchronous = experiment.train_async(tiny_process, tiny_data, **arguments)
        return [train(), await asynchronous]

    expected = train().rows
    with tff.framework.get_context_stack().install(runtime.program_context()):
        for result in [train(), *asyncio.run(inside())]:
            for row, wanted in zip(result.rows, expected, strict=True):
                assert {**row, "round_seconds": 0} == {**wanted, "round_seconds": 0}


_PROCESS = """
from tff_reg import quiet, runtime, training
quiet.silence()
from tests.experiment.conftest import tiny_model_fn
from tff_reg.experiment.rounds import process_digest
with runtime.running("in_process"):
    for name, passes in (("fedprox", 1),) * {first} + (("fedavg", 1), ("fedavg", 2)):
        data = training.WholeClientData(batch_size=4, local_epochs=passes)
        built = training.build(name, tiny_model_fn, client_data=data)
        digest = process_digest.of(built, built.initialize())
        print("of", name, passes, digest)
"""


def test_a_processs_digest_is_the_same_in_another_python_process():
    def digests(first):
        code = _PROCESS.format(first=first)
        done = commands.python(code, PYTHONHASHSEED=str(first))
        return [line for line in done.stdout.splitlines() if line.startswith("of ")]

    # What was traced before, and how sets are ordered, is no part of it.
    one, other = digests(0), digests(1)
    assert len(other) == 3 and other[1:] == one
    assert one[0].split()[-1] != one[1].split()[-1]


def test_fewer_rounds_than_done_are_refused_and_nothing_is_changed(run, tmp_path):
    with pytest.raises(StopHere):
        run(tmp_path / "a", progress=StopsAfter(4))
    with pytest.raises(experiment.DirectoryError, match="has done 4 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    run(tmp_path / "a")
    before = {
        path: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()
    }
    with pytest.raises(experiment.DirectoryError, match="has done 6 rounds already"):
        run(tmp_path / "a", total_rounds=3)
    assert {path: path.read_bytes() for path in before} == before
    # As many are read back.
    assert run(tmp_path / "a").summary["rounds"] == 6


def test_more_rounds_of_a_cosine_schedule_are_refused(run, tmp_path):
    cosine = {"learning_rate_schedule": "cosine"}
    run(tmp_path / "a", total_rounds=2, settings=cosine)
    with pytest.raises(experiment.DirectoryError, match="cosine"):
        run(tmp_path / "a", total_rounds=3, settings=cosine)


def test_a_state_of_another_process_is_refused(run, tmp_path, tiny_model):
    run(tmp_path / "a", total_rounds=1)
    other = tff.learning.algorithms.build_weighted_fed_avg(
        tiny_model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )
    # It is no computation of TFF's, and has no digest.
    with pytest.raises(experiment.StateMismatchError, match="another process"):
        run(tmp_path / "a", total_rounds=2, process=Wrapped(other))


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
        for path in directory.glob("c*/**/*.*")
        if path.suffix == ".npz" or path.name == "client_states.json"
    }


@pytest.mark.parametrize("rounds_per_checkpoint", [1, 3])
def test_moon_continues_with_what_its_clients_remember(
    moon, tmp_path, no_pictures, rounds_per_checkpoint
):
    period = dict(rounds_per_checkpoint=rounds_per_checkpoint)
    whole = moon.run(tmp_path / "unbroken", **period)
    with pytest.raises(StopHere):
        moon.run(tmp_path / "broken", progress=StopsAfter(3), **period)
    notes = Notes()
    moon.run(tmp_path / "broken", progress=notes, **period)
    assert notes.lines == ["Resuming after round 3 of 4."]
    assert results(tmp_path / "broken") == results(tmp_path / "unbroken")
    kept = kept_states(tmp_path / "unbroken")
    assert kept_states(tmp_path / "broken") == kept
    assert any(path.parts[0] == "client_states" for path in kept)
    # And in memory.
    in_memory = moon.run()
    for a, b in zip(in_memory.weights.trainable, whole.weights.trainable):
        np.testing.assert_array_equal(a, b)
    assert whole.all_clients_weights is None
    assert not (tmp_path / "unbroken" / "final_all_clients_weights.npz").exists()


def test_an_older_index_that_is_damaged_does_not_block_a_resume(
    moon, tmp_path, no_pictures
):
    moon.run(tmp_path / "unbroken")
    with pytest.raises(StopHere):
        moon.run(tmp_path / "broken", progress=StopsAfter(3))
    older = tmp_path / "broken" / "checkpoints" / "round_000002"
    (older / "client_states.json").write_text("{")
    notes = Notes()
    moon.run(tmp_path / "broken", progress=notes)
    assert notes.lines == [
        "The checkpoint of round 2 is damaged (client_states.json has changed since it"
        " was written): it is deleted.",
        "Resuming after round 3 of 4.",
    ]
    assert results(tmp_path / "broken") == results(tmp_path / "unbroken")


def test_a_client_state_that_is_damaged_meanwhile_ends_the_round(moon, tmp_path):
    with pytest.raises(StopHere):
        moon.run(tmp_path / "a", progress=StopsAfter(3))

    def damage(row):
        for path in (tmp_path / "a" / "client_states").iterdir():
            path.write_bytes(b"")

    with pytest.raises(experiment.TrainingError, match="Round 4 failed: DamagedError"):
        moon.run(tmp_path / "a", on_round=damage)


def test_what_moons_clients_remember_is_used(moon, monkeypatch):
    whole = moon.run(total_rounds=3)
    # As if every client came for the first time.
    monkeypatch.setattr(
        client_states.ClientStates, "store", lambda self, *arguments: None
    )
    forgetful = moon.run(total_rounds=3)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(forgetful.weights.trainable, whole.weights.trainable)
    )


def test_a_round_loads_the_states_of_its_cohort_only(
    moon, tmp_path, no_pictures, monkeypatch
):
    loaded = []

    def read_state(path, like):
        loaded.append(path)
        return state_file.read_state(path, like)

    monkeypatch.setattr(
        client_states, "state_file", types.SimpleNamespace(**vars(state_file))
    )
    monkeypatch.setattr(client_states.state_file, "read_state", read_state)
    moon.run(tmp_path / "a", total_rounds=1)
    assert not loaded  # All came for the first time.
    moon.run(tmp_path / "a", total_rounds=4)
    assert 0 < len(loaded) <= 3 * 3


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


def test_a_directory_in_use_is_refused(run, tmp_path):
    first = experiment.RunDirectory(tmp_path / "a")
    first.begin({})
    with pytest.raises(experiment.DirectoryError, match="another process"):
        run(tmp_path / "a")
    first.close()
    run(tmp_path / "a", total_rounds=1)


def test_runs_inside_a_running_event_loop_and_without_a_directory(run):
    async def in_a_notebook():
        return run(total_rounds=2)

    result = asyncio.run(in_a_notebook())
    assert [row["round_num"] for row in result.rows] == [1, 2]


def made_by(monkeypatch, commit, **versions):
    """What is run from now on is of a commit."""
    own = {"git_commit": commit, "versions": {"tff_reg": "1", **versions}}
    monkeypatch.setattr(loop.provenance, "describe", lambda config: own)


def test_who_made_the_rounds_before_is_kept_by_their_numbers(
    run, tmp_path, monkeypatch
):
    def recorded():
        config = json.loads((tmp_path / "a" / "config.json").read_text())
        before = config.get("made_before", [])
        return config["git_commit"], [(e["rounds"], e["git_commit"]) for e in before]

    made_by(monkeypatch, "first")
    with pytest.raises(StopHere):
        run(tmp_path / "a", rounds_per_checkpoint=2, progress=StopsAfter(3))
    assert recorded() == ("first", [])
    # Its third round is lost, and done again.
    made_by(monkeypatch, "second")
    with pytest.raises(StopHere):
        run(tmp_path / "a", rounds_per_checkpoint=2, progress=StopsAfter(4))
    assert recorded() == ("second", [([1, 2], "first")])
    run(tmp_path / "a")
    assert recorded() == ("second", [([1, 2], "first")])
    # Who only reads it back has made nothing of it.
    made_by(monkeypatch, "third")
    run(tmp_path / "a")
    assert recorded() == ("second", [([1, 2], "first")])
    run(tmp_path / "a", total_rounds=7)
    assert recorded() == ("third", [([1, 2], "first"), ([3, 6], "second")])


def test_a_run_that_other_code_began_goes_on_and_says_so(run, tmp_path, monkeypatch):
    old = {"tensorflow": "2.12.0", "tensorflow_federated": "0.87.0"}
    with monkeypatch.context() as context:
        made_by(context, "first", **old)
        run(tmp_path / "a", total_rounds=1)
    for rounds in (2, 3):
        notes = Notes()
        run(tmp_path / "a", total_rounds=rounds, progress=notes)
        (said,) = [line for line in notes.lines if line.startswith("It was made by")]
        assert "TensorFlow 2.12.0" in said
    notes = Notes()
    run(tmp_path / "b", total_rounds=1)
    run(tmp_path / "b", total_rounds=2, progress=notes)
    assert not [line for line in notes.lines if "made by" in line]


def test_a_run_on_other_data_is_another_where_the_data_have_digests(
    run, tiny_data, tmp_path
):
    run(tmp_path / "a", total_rounds=1)
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "b"}
    # Begun without, by an older version or on data that have none.
    run(tmp_path / "a", total_rounds=2)
    tiny_data.digests = {digests.EXAMPLES: "a", digests.SPLIT: "c"}
    with pytest.raises(experiment.DirectoryError, match="another split of the examp"):
        run(tmp_path / "a", total_rounds=3)
    tiny_data.digests = {digests.EXAMPLES: "d", digests.SPLIT: "b"}
    with pytest.raises(experiment.DirectoryError, match="of other training examples"):
        run(tmp_path / "a", total_rounds=3)


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
    # Runs that an older version began have no such columns.
    assert not any("not_finite" in name for name in result.rows[0])
    assert ",nan," in (tmp_path / "a" / "metrics.csv").read_text()
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["final_training_loss"] is None
    assert result.rows[0]["client_work/rejected_clients"] == 2


def test_a_round_without_accepted_clients_has_no_loss(run, tiny_process):
    def reject_all(output):
        train = output.metrics["client_work"]["train"]
        train.update(
            loss=np.float32(0),
            num_examples=np.int32(0),
            rejected_clients=np.int32(3),
        )
        return output

    notes = Notes()
    process = Wrapped(tiny_process, after=reject_all)
    result = run(process=process, total_rounds=1, progress=notes)
    assert np.isnan(result.rows[0]["training/loss"])
    assert result.summary["final_training_loss"] is None
    assert any("3 of 3 clients" in line for line in notes.lines)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (dict(total_rounds=0), ValueError, "total_rounds is 0"),
        (dict(rounds_per_evaluation=0), ValueError, "rounds_per_evaluation is 0"),
        (dict(clients_per_round=11), ValueError, "only 10 clients"),
        (dict(client_sampling="some"), ValueError, "client_sampling is 'some'"),
        (dict(process=[]), TypeError, "^process is a list, but must be like"),
        (dict(client_data=[]), TypeError, "^client_data is a list, but must be like"),
    ],
)
def test_what_makes_no_run_is_refused(run, wrong, error, words):
    with pytest.raises(error, match=words):
        run(**wrong)


def test_the_picture_has_what_was_measured(tmp_path, run, monkeypatch):
    drawn = {}

    def keep(path, curves_drawn, **_):
        drawn.update({each.name: list(each.rounds) for each in curves_drawn})

    monkeypatch.setattr(curves, "write_curves", keep)
    run(tmp_path, total_rounds=3, rounds_per_evaluation=2)
    assert drawn == {"test": [2, 3], "training, clients' mean": [1, 2, 3]}
