import concurrent.futures
import os
import select
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from tests.experiment import finished
from tff_reg import experiment, settings, tasks
from tff_reg.experiment.series import batch, jobs, plan as series

TINY = {"num_clients": 4, "total_rounds": 2}


@pytest.mark.parametrize(
    "text, given, seeds",
    [("3", 3, (0, 1, 2)), ("3,", [3], (3,)), ("0,5", (0, 5), (0, 5)), ("1", 1, (0,))],
)
def test_a_number_of_seeds_is_a_count_and_a_list_a_list(text, given, seeds):
    assert series.SEEDS.read(text) == series.SEEDS.of(given) == seeds
    assert series.SEEDS.of(series.SEEDS.read(text)) == seeds


def test_a_sum_of_methods_is_planned_once():
    every = series.process_names(["all"])
    assert series.process_names(["all", "-MOON"]) == [n for n in every if n != "moon"]
    with pytest.raises(ValueError, match="mon"):
        series.process_names(["all", "-mon"])
    with pytest.raises(ValueError, match="local is not among them"):
        series.process_names(["all", "-local"])
    with pytest.raises(ValueError, match="-moon"):
        series.process_names(["fedavg", "-moon"])
    assert series.process_names(["fedprox+man", "man+fedprox"]) == ["fedprox+man"]
    with pytest.raises(settings.SettingError, match="give at least one"):
        series.process_names([])


def plan(folder, processes=("fedavg", "fedprox"), seeds=(0, 1), **requested):
    common = experiment.RunConfig.of({**TINY, "output_dir": str(folder), **requested})
    return series.Study().compare(common, processes=processes, seeds=seeds).runs


def a_series(program, is_watched=False, executor=None):
    executor = executor or jobs.ChildProcesses(is_watched=is_watched)
    return batch.Batch([sys.executable, "-c", program], executor=executor)


def test_every_process_runs_with_every_seed_in_a_directory_of_its_own(tmp_path):
    planned = plan(tmp_path / "d", batch_size=8, overwrite=False)
    assert [run.name for run in planned] == [
        "fedavg, seed 0",
        "fedprox, seed 0",
        "fedavg, seed 1",
        "fedprox, seed 1",
    ]
    assert planned[3].directory == str(tmp_path / "d" / "fedprox-seed1")
    assert set(batch.as_flags(planned[3].asked)) == {
        "--num_clients=4",
        "--total_rounds=2",
        f"--output_dir={tmp_path}/d/fedprox-seed1",
        "--batch_size=8",
        "--overwrite=false",
        "--process=fedprox",
        "--seed=1",
        "--settings_of=task",
    }
    assert not any(run.is_finished for run in planned)
    assert not list(tmp_path.iterdir())


def test_a_sum_keeps_its_plus_and_fedavg_adds_nothing(tmp_path):
    planned = plan(tmp_path, ["FedAlign+man", " fedavg+man"], [7])
    assert [os.path.basename(run.directory) for run in planned] == [
        "fedalign+man-seed7",
        "man-seed7",
    ]


def test_strengths_go_to_the_methods_that_have_them(tmp_path):
    planned = plan(tmp_path, seeds=[0], fedprox_strength=0.1)
    of_runs = [batch.as_flags(run.asked) for run in planned]
    assert not any(flag.startswith("--fedprox") for flag in of_runs[0])
    assert "--fedprox_strength=0.1" in of_runs[1]
    assert planned[1].config.hyperparameters == {"fedprox_strength": 0.1}


def test_a_recipe_is_every_runs_but_for_process_seed_and_directory(tmp_path):
    sets = {
        "process": "man",
        "man_strength": 0.3,
        "batch_size": 9,
        "num_clients": 40,
        "output_dir": "runs/elsewhere",
    }
    recipes = types.SimpleNamespace(settings=lambda name, process="": sets)
    study = series.Study().compare(
        experiment.RunConfig(
            output_dir=str(tmp_path), num_clients=4, recipe="paper/table1/man"
        ),
        processes=["fedavg", "fedprox+man"],
        seeds=[7],
        tasks=types.SimpleNamespace(
            names=tasks.names, defaults=tasks.defaults, recipes=recipes
        ),
    )
    planned = study.runs
    assert set(batch.as_flags(planned[1].asked)) == {
        "--recipe=paper/table1/man",
        "--num_clients=4",
        "--process=fedprox+man",
        "--seed=7",
        f"--output_dir={tmp_path}/fedprox+man-seed7",
    }
    for run in planned:
        assert (run.config.batch_size, run.config.num_clients) == (9, 4)
    assert "man_strength" not in planned[0].config.hyperparameters
    assert planned[1].config.hyperparameters["man_strength"] == 0.3


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"processes": ["fedavg", "fedalgin"]}, "process=fedalgin: Unknown"),
        ({"seeds": [0, "one"]}, "seed=one: it must be a whole number"),
        ({"seeds": [-1]}, "seed=-1: it must be at least 0"),
        ({"man_strength": 0.1}, "strength=0.1: man is not part of fedavg, fedprox."),
        ({"fedprox_strength": -1.0}, "fedprox_strength=-1"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_refusals(tmp_path, arguments, words):
    with pytest.raises(settings.SettingError) as caught:
        plan(tmp_path, **arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_finished_runs_are_seen_and_others_are_to_be_done(tmp_path):
    finished.finish(plan(tmp_path)[2], [0.5] * 2)
    assert [run.is_finished for run in plan(tmp_path)] == [False, False, True, False]
    wanted = plan(tmp_path, targets=(0.5,))[2]
    assert wanted.is_finished
    assert wanted.result()["rounds_to_target"] == {"0.5": 1}
    assert not any(run.is_finished for run in plan(tmp_path, overwrite=True))
    assert not plan(tmp_path, total_rounds=3)[2].is_finished


@pytest.mark.parametrize(
    "program, why",
    [
        ("import sys; sys.exit('bin/run: first\\nbin/run: boom')", "exit code 1: boom"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("print('nothing done')", "it left no finished run in "),
    ],
)
def test_a_failure_is_one_line_and_the_run_is_silent(tmp_path, capfd, program, why):
    runs = a_series(program)
    found = runs.run_one(plan(tmp_path)[0])
    assert found.startswith(why) and "\n" not in found
    assert capfd.readouterr() == ("", "")


def test_a_watched_run_is_heard(tmp_path, capfd):
    program = "import sys; print('round 1'); sys.exit('boom')"
    runs = a_series(program, is_watched=True)
    assert runs.run_one(plan(tmp_path)[0]) == "exit code 1"
    assert capfd.readouterr() == ("round 1\n", "boom\n")


def test_the_run_gets_its_flags_and_is_finished_when_it_says_so(tmp_path):
    run = plan(tmp_path)[0]
    finished.finish(run, [0.5] * 2)
    flags = batch.as_flags(run.asked)
    runs = a_series(f"import sys; sys.exit(sys.argv[1:] != {['run', *flags]!r})")
    assert runs.run_one(run) is None


@pytest.mark.parametrize("is_overwritten", [False, True])
def test_a_run_whose_summary_is_new_is_finished_whatever_its_status(
    tmp_path, is_overwritten
):
    run = plan(tmp_path, overwrite=is_overwritten)[0]

    class Executor:
        def execute(self, command):
            if self.leaves:
                finished.finish(run, [0.5, self.leaves])
            return 255, ""

    executor = Executor()
    runs = a_series("", executor=executor)
    executor.leaves = None
    assert runs.run_one(run) == "exit code 255"
    executor.leaves = 0.5
    assert runs.run_one(run) is None
    executor.leaves = None  # What is there is of the run before.
    assert runs.run_one(run) == "exit code 255"
    executor.leaves = 0.6
    assert runs.run_one(run) is None


def test_wrong_flags_of_the_first_run_are_wrong_flags_of_all(tmp_path):
    program = (
        "import sys; print('bin/run: --devices: no', file=sys.stderr); sys.exit(2)"
    )
    runs = a_series(program)
    run = plan(tmp_path)[0]
    with pytest.raises(batch.WrongFlagsError) as caught:
        runs.run_one(run)
    assert str(caught.value) == "--devices: no"
    assert runs.run_one(run) == "exit code 2: --devices: no"


def test_jobs_divide_the_gpus_and_have_fixed_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    program = (
        "import os, pathlib, sys, time; "
        f"here = pathlib.Path({str(tmp_path)!r}); "
        "(here / str(os.getpid())).touch()\n"
        "while len(list(here.iterdir())) < 2: time.sleep(0.01)\n"
        "names = 'CUDA_VISIBLE_DEVICES', 'TF_NUM_INTRAOP_THREADS'\n"
        "print(*(os.environ[name] for name in names), file=sys.stderr)"
    )
    executor = jobs.ChildProcesses(is_watched=False, jobs=2)
    command = [sys.executable, "-c", program]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(executor.execute, [command] * 2))
    assert sorted(ended) == [(0, "3,7 3"), (0, "5 3")]


@pytest.mark.parametrize(
    "program, number",
    [
        ("import sys; sys.exit(130)", signal.SIGINT),
        ("import sys; sys.exit(143)", signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 15)", signal.SIGTERM),
    ],
)
def test_a_run_that_somebody_stopped_stops_the_series(tmp_path, program, number):
    runs = a_series(program)
    with pytest.raises(jobs.Interrupted) as caught:
        runs.run_one(plan(tmp_path)[0])
    assert caught.value.number == number


def test_a_stopped_executor_starts_no_other_run(tmp_path):
    begun, run = tmp_path / "begun", plan(tmp_path)[0]
    os.mkfifo(begun)
    # As an interpreter ends that is still starting.
    program = (
        "import signal, sys; "
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(1)); "
        f"open({str(begun)!r}, 'w').close(); signal.pause()"
    )
    executor = jobs.ChildProcesses(is_watched=False)
    runs = a_series(program, executor=executor)

    def stop():
        begun.read_bytes()  # Waits until somebody writes.
        executor.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(jobs.Interrupted):
        runs.run_one(run)
    stopper.join()
    begun.unlink()
    with pytest.raises(jobs.Interrupted):
        runs.run_one(run)
    assert not begun.exists()


# Says that it is there, and stays. When it is gone, its end of our pipe is closed.
STAYS = "import signal; print('ready', flush=True); signal.pause()"
PARENT = f"""
import os, signal, sys, threading
from tff_reg import interruption
from tff_reg.experiment.series import jobs

stop = interruption.Interruption()
stop.take_over()
executor = jobs.ChildProcesses(is_watched=True)
stop.before_exit(executor.stop)
try:
    executor.execute([sys.executable, "-c", {STAYS!r}])
except jobs.Interrupted:
    signal.pause()
"""


@pytest.mark.parametrize(
    "number, status",
    [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_the_run_ends_with_whoever_started_it(number, status):
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert select.select([process.stdout], [], [], 30)[0]
        assert process.stdout.read() == b""
        assert process.wait(30) == status
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("took, written", [(0.5, "1 2 3 4 5 6"), (3.0, "1 2-3-4-5 6")])
def test_tables_that_take_long_are_written_a_tenth_of_the_time(
    took, written, monkeypatch, tmp_path
):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    study, made = series.Study(), []
    runs = [types.SimpleNamespace(is_finished=False, directory=n) for n in range(6)]
    study._by_content = dict(enumerate(runs))
    study.trials = [("a", str(number), run) for number, run in enumerate(runs, 1)]

    class Sheet(series.Sheet):
        def contents(self, study, columns, is_last, **of_files):
            clock[0] += took
            made.append("all" if is_last else "-".join(sorted(columns)))
            return []

        def quantities_of(self, row, column):
            return ()

    class Batch:
        def run(self, runs, on_finished):
            for run in runs:
                clock[0] += 7.0
                run.is_finished = True
                on_finished(run)

        leave_out = analyse = lambda self, what: None

    study.sheet = Sheet()
    study.carry_out(Batch(), tmp_path)
    first, *rest, last = made
    assert last == "all" and first == "1-2-3-4-5-6"
    assert " ".join(rest) == written
