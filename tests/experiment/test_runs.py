"""A run from its config, as notebooks and services start it."""

import pathlib
import types

import numpy as np
import pytest

from tests.experiment.finished import Notes
from tff_reg import experiment, runtime, settings, tasks
from tff_reg.experiment.report import trained
from tff_reg.experiment.rounds import description, progress, runs

SMALL = dict(
    process="fedprox",
    model="cnn",
    num_clients=4,
    clients_per_round=2,
    local_epochs=1,
    partition="iid",
    scale="0.5",
)


def check(config, tasks_=tasks):
    """Checks as a command does before it starts; returns what is resolved."""
    checked = runs.CheckedRun(config, tasks_)
    checked.check_ready()
    return checked.config


def finished(config):
    return runs.CheckedRun(config).refresh_summary()


class Ends(experiment.Callback):
    """Writes a file at the end of the run."""

    def on_end(self, run):
        (run.directory.path / "mine.txt").write_text(str(run.rounds_done))


class Signals:
    """Keeps what an `Interruption` is told."""

    def __init__(self):
        self.ends = []

    def before_exit(self, end):
        self.ends.append(end)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run of a round, continued to two; what it told."""
    config = experiment.RunConfig(
        **SMALL,
        total_rounds=2,
        output_dir=str(tmp_path_factory.mktemp("ran") / "{process}-{seed}"),
    )
    before, first, then, rows = runtime.describe(), Notes(), Notes(), []
    told = Signals()
    runs.CheckedRun(config).run(progress=first, stop=told)
    config = experiment.RunConfig.of({**config.given(), "total_rounds": 4})
    return types.SimpleNamespace(
        before=before,
        first=first,
        then=then,
        told=told,
        rows=rows,
        result=experiment.run(
            config, progress=then, on_round=rows.append, callbacks=[Ends()]
        ),
        config=config.resolved(),
    )


def test_a_config_is_all_that_a_run_needs(ran):
    assert ran.result.summary["rounds"] == 2
    assert ran.result.summary["process"] == "fedprox"
    assert ran.config.output_dir.endswith("/fedprox-0")
    stored = experiment.RunDirectory(ran.config.output_dir).config
    assert experiment.ResolvedConfig.load(stored) == ran.config
    assert stored["fedprox_strength"] == 1e-4 and len(stored["class_names"]) == 10
    # The runtime is the run's own.
    assert runtime.describe() == ran.before


def test_what_is_about_to_run_is_said_and_it_goes_on_where_it_was(ran):
    assert ran.first.lines[0].startswith("Clients run in process")
    assert "process  fedprox (strength 0.0001)" in ran.first.lines
    assert any("scale=0.5" in line for line in ran.first.lines)
    assert ran.then.lines[-1] == "Resuming after round 1 of 2."
    assert [row["round_num"] for row in ran.rows] == [1, 2]
    assert ran.rows == ran.result.rows
    assert pathlib.Path(ran.config.output_dir, "mine.txt").read_text() == "2"


def test_a_signal_ends_runtime_and_progress(ran):
    assert ran.told.ends == [runtime.shutdown, ran.first.close]


def test_a_finished_run_gives_its_summary_at_once(ran):
    found = finished(ran.config)
    assert found == ran.result.summary
    more = experiment.RunConfig.of({**SMALL, "total_rounds": 6, "output_dir": "x"})
    assert finished(more.resolved()) is None
    fewer = {**SMALL, "total_rounds": 2, "output_dir": ran.config.output_dir}
    for ask in (lambda config: finished(config.resolved()), experiment.run):
        with pytest.raises(
            experiment.DirectoryError, match="has done 2 rounds already"
        ):
            ask(experiment.RunConfig.of(fewer))
    stored = experiment.RunDirectory(ran.config.output_dir).config
    assert stored["total_rounds"] == 2
    anew = {**SMALL, "total_rounds": 4, "output_dir": ran.config.output_dir}
    anew = experiment.RunConfig.of({**anew, "overwrite": True})
    assert finished(anew.resolved()) is None


def test_tasks_may_be_ones_own(tmp_path):
    built = []

    def build(task, **of_task):
        built.append((task, of_task))
        return tasks.build("digits", **of_task)

    own = types.SimpleNamespace(
        names=lambda: ["mine"],
        defaults=lambda name: tasks.defaults("digits"),
        check_data=lambda name, data_dir: None,
        build=build,
    )
    asked = experiment.RunConfig(process="fedprox", task="mine", scale="tiny")
    config = check(asked, own)
    training = runs.CheckedRun(config, own).prepare(progress.Silence())
    ((name, of_task),) = built
    assert name == "mine" and of_task["num_clients"] == 4
    assert training.total_rounds == 1 and training.settings["task"] == "mine"
    with pytest.raises(settings.SettingError, match="task=digits: .*one of mine"):
        check(experiment.RunConfig(process="fedavg", task="digits"), own)


@pytest.mark.parametrize(
    "asked, error, setting",
    [
        ({"require_gpu": True}, runtime.NoGpuError("There is none."), "require_gpu"),
        (
            {"runtime": "ray", "ray_address": "a:1"},
            runtime.WorkerError("a:1 does not answer."),
            "ray_address",
        ),
    ],
)
def test_a_machine_that_cannot_is_refused_with_the_setting(
    monkeypatch, tmp_path, asked, error, setting
):
    def running(kind, **options):
        raise error

    monkeypatch.setattr(runtime, "running", running)
    asked = {"process": "fedavg", "output_dir": str(tmp_path / "run"), **asked}
    with pytest.raises(settings.SettingError) as caught:
        experiment.run(experiment.RunConfig(**asked))
    assert caught.value.args == (setting, asked[setting], str(error))
    assert not (tmp_path / "run").exists()


def test_batches_that_no_client_can_fill_are_refused(tmp_path):
    config = experiment.RunConfig(
        **SMALL, drop_remainder=True, batch_size=500, output_dir=str(tmp_path)
    )
    with pytest.raises(settings.SettingError, match="nobody would train"):
        experiment.run(config)


def test_a_run_on_skewed_clients_resumes_to_the_same_numbers(tmp_path):
    skews = dict(imbalance_factor=20, feature_noise=0.2, rotations=(0, 90))
    given = {**SMALL, **skews, "label_noise": 0.2, "client_test_share": 0.2}
    results = []
    for name, rounds in (("whole", [4]), ("parts", [2, 4])):
        for total in rounds:
            where = str(tmp_path / name)
            config = experiment.RunConfig(**given, output_dir=where, total_rounds=total)
            result = experiment.run(config, progress=Notes())
        left_out = {"round_seconds", "peak_megabytes"}
        results.append([{n: row[n] for n in {*row} - left_out} for row in result.rows])
    assert results[0] == results[1]
    row, task = result.rows[-1], runs.build_task(config.resolved())
    sizes = np.bincount(task.train_labels[np.concatenate(task.partition)])
    shots = np.digitize(sizes, [20, 101])[task.test_arrays()[1]]
    names = ("few_shot", "medium_shot")
    found = [row[f"evaluation/{name}/accuracy"] for name in names]
    average = np.average(found, weights=np.bincount(shots))
    assert average == pytest.approx(row["evaluation/accuracy"])
    assert result.summary["accuracy_of_subsets"] == dict(
        zip(reversed(names), found[::-1])
    )
    assert "few_shot" in "".join(description.result(result.summary, tmp_path))
    assert trained.load(where, tasks=tasks).round_num == 2
    with pytest.raises(ValueError, match="digest_of_data|label_noise"):
        other = {**given, "label_noise": 0.3, "output_dir": where, "total_rounds": 4}
        experiment.run(experiment.RunConfig(**other))
