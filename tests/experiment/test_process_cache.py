"""Processes that an earlier run has built: the same numbers, and when they are used."""

import os

import pytest

from tff_reg import experiment, runtime, tasks, training
from tff_reg.experiment.config import provenance
from tff_reg.experiment.rounds import process_cache, runs
from tff_reg.experiment.rounds.checked import CheckedRun
from tff_reg.lazy import np, tf

SMALL = dict(
    model="cnn",
    num_clients=4,
    clients_per_round=2,
    local_epochs=1,
    partition="iid",
    scale="0.5",
    total_rounds=2,
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of the test's own, which is not there yet."""
    monkeypatch.setenv(process_cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def built(monkeypatch):
    """The settings of the processes that were built, in order."""
    found = []

    def build(config, *arguments, **more):
        found.append(config)
        return original(config, *arguments, **more)

    original = runs.build_process
    monkeypatch.setattr(runs, "build_process", build)
    return found


def run(**settings):
    """The bytes of the state that a run ends in."""
    config = experiment.RunConfig.of({**SMALL, **settings}).resolved()
    with runtime.running("in_process", devices="CPU:0"):
        result = runs.prepare(config).run()
    return [np.asarray(each).tobytes() for each in tf.nest.flatten(result.state)]


def key(process="fedavg", **settings):
    config = experiment.RunConfig.of(
        {**SMALL, "process": process, **settings}
    ).resolved()
    checked = CheckedRun(config, writes=False)
    return process_cache._key(checked, runs.build_task(config))


@pytest.mark.parametrize(
    "process",
    [
        "fedavg",
        "feddyn",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("moon", "fedgkd", "fedacg+man", "freeze", "fedetf")
        ),
    ],
)
def test_a_run_with_another_seed_ends_in_the_bytes_of_one_that_builds_its_own(
    process, folder, built, tmp_path, monkeypatch
):
    run(process=process, seed=0, output_dir=str(tmp_path / "first"))
    after = run(process=process, seed=1, output_dir=str(tmp_path / "second"))
    number = len(built)
    monkeypatch.setenv(process_cache.VARIABLE, str(tmp_path / "nothing"))
    anew = run(process=process, seed=1, output_dir=str(tmp_path / "third"))
    assert after == anew and len(built) == number + 1
    # What is drawn from the seed is a part of these networks.
    assert number == (2 if process in ("freeze", "fedetf") else 1)
    assert len(list(folder.iterdir())) == number


def test_what_a_process_can_be_asked_is_kept_with_it(tmp_path):
    config = experiment.RunConfig.of({**SMALL, "process": "feddyn"}).resolved()
    checked, task = CheckedRun(config, writes=False), runs.build_task(config)
    first, second = (
        process_cache.process(checked, task, lambda: runs.build_process(config, task))
        for _ in range(2)
    )
    assert isinstance(second, training.StatefulLearningProcess)
    for name in (*process_cache._PARTS, *process_cache._STATEFUL_PARTS):
        kept, own = getattr(second, name), getattr(first, name)
        assert kept is not own
        assert str(kept.type_signature) == str(own.type_signature), name
    assert type(second.model_fn()) is type(first.model_fn())
    state = second.initialize()
    assert type(state).__name__ == "LearningAlgorithmState"
    hparams = second.get_hparams(state)
    hparams["client_work"]["learning_rate"] = 0.5
    changed = second.get_hparams(second.set_hparams(state, hparams))
    assert changed["client_work"]["learning_rate"] == 0.5


@pytest.mark.parametrize(
    "same",
    [
        dict(seed=5),
        dict(total_rounds=7),
        dict(output_dir="elsewhere"),
        dict(clients_in_parallel=3),
    ],
)
def test_what_does_not_change_a_process_does_not_change_its_name(same):
    assert key(**same) == key()


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ({}, dict(process="fedprox")),
        ({}, dict(client_learning_rate=0.5)),
        ({}, dict(num_clients=8)),
        ({}, dict(model="resnet8")),
        ({}, dict(batch_size=7)),
        ({}, dict(aggregator="robust")),
        ({}, dict(pixel_mean=(0.5,), pixel_std=(0.25,))),
        (dict(process="fedprox"), dict(fedprox_strength=0.5)),
        (dict(process="freeze"), dict(seed=5)),
        (dict(learning_rate_schedule="cosine"), dict(total_rounds=7)),
    ],
)
def test_what_changes_a_process_changes_its_name(base, other):
    assert key(**{**base, **other}) != key(**base)


def test_a_change_of_the_code_changes_the_name(monkeypatch, tmp_path):
    before = key()
    source = tmp_path / "one.py"
    source.write_text("x = 1\n")
    sources = [*provenance.source_files(), source]
    monkeypatch.setattr(provenance, "source_files", lambda: sources)
    assert key() != before


def test_a_file_that_cannot_be_read_is_made_anew(folder, built, tmp_path):
    first = run(process="fedavg", output_dir=str(tmp_path / "first"))
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    again = run(process="fedavg", output_dir=str(tmp_path / "again"))
    assert again == first and len(built) == 2
    run(process="fedavg", output_dir=str(tmp_path / "third"))
    assert len(built) == 2


def test_a_folder_that_cannot_be_written_to_does_not_matter(
    tmp_path, monkeypatch, built
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(process_cache.VARIABLE, str(tmp_path / "file" / "kept"))
    run(process="fedavg", output_dir=str(tmp_path / "first"))
    assert len(built) == 1


def test_those_used_last_are_kept_and_other_files_left_alone(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(process_cache, "_KEPT", 2)
    folder.mkdir()
    for number in range(3):
        path = folder / f"old{number}{process_cache._SUFFIX}"
        path.write_bytes(b"")
        os.utime(path, (number, number))
    (folder / "mine").write_text("mine")
    os.utime(folder / "mine", (0, 0))
    run(process="fedavg", output_dir=str(tmp_path / "run"))
    names = {path.name for path in folder.iterdir()}
    assert {"mine", f"old2{process_cache._SUFFIX}"} < names and len(names) == 3


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", ["secure", "robust", "compressed"])
def test_processes_with_other_aggregators_are_kept(aggregator, folder, built, tmp_path):
    for seed in (0, 1):
        directory = str(tmp_path / str(seed))
        run(process="fedavg", aggregator=aggregator, seed=seed, output_dir=directory)
    assert len(built) == len(list(folder.iterdir())) == 1


def test_what_cannot_be_kept_is_built_again(folder, built, tmp_path):
    # The classes of its event are made when it is built.
    private = dict(aggregator="dp", dp_clipping="fixed", dp_clip_norm=0.1, norm="group")
    run(process="fedavg", **private, output_dir=str(tmp_path / "run"))
    assert len(built) == 1 and not folder.exists()


def test_processes_of_other_peoples_tasks_are_not_kept(folder, tmp_path):
    class Tasks:
        """Other people's."""

        def __getattr__(self, name):
            return getattr(tasks, name)

    config = experiment.RunConfig.of(
        {**SMALL, "process": "fedavg", "output_dir": str(tmp_path / "run")}
    )
    runs.prepare(config.resolved(), tasks=Tasks())
    assert not folder.exists()
