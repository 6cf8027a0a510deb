"""A program with our evaluation manager can be killed anywhere, and ends the same."""

import asyncio
import concurrent.futures
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.experiment import finished
from tff_reg import data, models, runtime, training
from tff_reg.experiment.rounds import evaluation, programs

ROUNDS = 3
STATE = "program_state"


class Killed(SystemExit):
    """Ends the event loop on the spot, as no Exception would."""


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    with runtime.running("in_process"):
        yield


class Program:
    """Three rounds of FedAvg, each model evaluated."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(24, 4, 4, 1)).astype(np.float32)
        self.y = rng.integers(0, 3, 24)
        self.clients = data.ArrayClientData(
            self.x, self.y, np.split(np.arange(24), [8, 15])
        )
        self.model_fn = models.build_model_fn(
            "cnn", image_shape=(4, 4, 1), num_classes=3, norm="batch"
        )
        self.process = training.build(
            "fedavg", self.model_fn, client_data=training.WholeClientData(batch_size=4)
        )
        self.evaluation = tff.learning.algorithms.build_fed_eval(self.model_fn)
        # Nothing of a killed program is in it, and it has compiled the processes.
        self.context = runtime.program_context()

    def run(self, directory, seed=3):
        """Runs it, or what is left; returns the models released and the metrics."""
        released = tff.program.MemoryReleaseManager()
        metrics_file = directory / "evaluation.csv"
        test_source = data.SeededDataSource(
            self.clients,
            seed=0,
            client_dataset_fn=lambda name, key: tf.data.Dataset.from_tensor_slices(
                self.clients.client_examples(name)
            ).batch(5),
        )
        # Of a killed program nothing is left; here a thread may still write a file.
        with concurrent.futures.ThreadPoolExecutor() as executor:

            async def main():
                asyncio.get_running_loop().set_default_executor(executor)
                manager = programs.EvaluationManager(
                    self.evaluation,
                    test_source,
                    cohort_size=3,
                    metrics_manager=tff.program.GroupingReleaseManager(
                        [tff.program.CSVFileReleaseManager(metrics_file), released]
                    ),
                    root_dir=directory / "evaluation",
                )
                await tff.learning.programs.train_model(
                    train_process=self.process,
                    train_data_source=data.SeededDataSource(self.clients, seed=seed),
                    train_per_round_clients=2,
                    train_total_rounds=ROUNDS,
                    program_state_manager=tff.program.FileProgramStateManager(
                        directory / STATE, prefix=""
                    ),
                    model_output_manager=released,
                    evaluation_manager=manager,
                    evaluation_periodicity=1,
                )

            with tff.framework.get_context_stack().install(self.context):
                asyncio.run(main())
        return released.values(), finished.read_csv(metrics_file)


@pytest.fixture(scope="module")
def program():
    return Program()


@pytest.fixture(scope="module")
def unbroken(program, tmp_path_factory):
    return program.run(tmp_path_factory.mktemp("unbroken"))


def _weights(program, released):
    state = released[f"training_checkpoint_round_{ROUNDS}"]
    return program.process.get_model_weights(state)


def test_the_metrics_are_those_of_the_model_on_all_examples(program, unbroken):
    released, rows = unbroken
    assert [row["key"] for row in rows] == ["1", "2", "3"]
    central = evaluation.CentralEvaluation(program.model_fn, program.x, program.y)
    expected = central(_weights(program, released))
    assert released[ROUNDS]["model_metrics"]["num_examples"] == 24
    for name, value in expected.items():
        assert released[ROUNDS]["model_metrics"][name] == pytest.approx(value, 1e-5)
        assert float(rows[-1][f"model_metrics/{name}"]) == pytest.approx(value, 1e-5)
    assert len({row["model_metrics/loss"] for row in rows}) == 3


def _slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "place, is_before",
    [
        # The evaluation has its model, but is not in the list of what is under way.
        _slow(("evaluation_of_train_round_00002", 0), False),
        # It is in the list, and the round is not committed.
        (("eval_manager", 3), False),
        ((STATE, 2), True),
        # The round is committed, and its evaluation is to be finished.
        _slow((STATE, 2), False),
        # It is evaluated, and still in the list.
        _slow(("eval_manager", 4), True),
        # The last round.
        _slow((STATE, ROUNDS), True),
    ],
)
def test_a_killed_program_goes_on_to_the_same_end(
    program, unbroken, tmp_path, monkeypatch, place, is_before
):
    save = tff.program.FileProgramStateManager.save
    killed = []

    async def save_and_die(self, program_state, version):
        is_it = (os.path.basename(self._root_dir), version) == place
        dies = is_it and not killed
        if dies:
            killed.append(place)
        if not (dies and is_before):
            await save(self, program_state, version)
        if dies:
            raise Killed

    monkeypatch.setattr(tff.program.FileProgramStateManager, "save", save_and_die)
    with pytest.raises(Killed):
        program.run(tmp_path)
    released, rows = program.run(tmp_path)
    assert killed and rows == unbroken[1]
    found, expected = [_weights(program, each) for each in (released, unbroken[0])]
    for part in ("trainable", "non_trainable"):
        pairs = zip(getattr(found, part), getattr(expected, part))
        assert all(np.array_equal(a, b) for a, b in pairs)
