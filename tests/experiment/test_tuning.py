"""Grids: what each method tries, which is best, and what runs then."""

import math
import pathlib
import signal
import sys
import types

import numpy as np
import pytest
from absl import flags as absl_flags

from tests import commands
from tests.experiment import finished
from tff_reg import experiment, scores, settings
from tff_reg.commands import command_line, compare
from tff_reg.experiment.rounds import summary
from tff_reg.experiment.series import batch, plan as series, tuning

TINY = {"num_clients": 4, "total_rounds": 2}
# Held-out accuracy by fedprox_strength and seed.
HELD_OUT = {
    (0.1, 0): 0.5,
    (0.1, 1): 0.6,
    (0.01, 0): 0.9,
    (0.01, 1): 0.5,
    (0.02, 0): 0.9 + 1e-12,  # Equal but for rounding.
    (0.001, 0): 0.4,
    (0.001, 1): 0.4,
}


def config_of(flags):
    """What flags of `bin/run` ask for."""
    values = absl_flags.FlagValues()
    command_line.define_flags(values)
    values(["bin/run", *flags])
    return experiment.RunConfig.of(command_line.requested(values))


class Pretending:
    """An executor whose runs are finished at once."""

    def __init__(self, diverging=()):
        self.configs, self._diverging = [], diverging

    def execute(self, command):
        asked = config_of(command[command.index("run") + 1 :])
        planned = series.plan_run(asked)
        config = planned.config
        self.configs.append(config)
        accuracy = 0.3
        if config.validation_share is not None:
            key = (config.hyperparameters["fedprox_strength"], config.seed)
            if key not in HELD_OUT:
                return 1, "bin/run: It failed."
            accuracy = HELD_OUT[key]
        diverges = config.hyperparameters.get("fedprox_strength") in self._diverging
        loss = math.nan if diverges else 1.0
        finished.finish(planned, [0.1, accuracy], loss=loss)
        return 0, ""

    def stop(self):
        pass


def call(*arguments, executor):
    return commands.call(compare.main, *arguments, executor=executor)


def test_a_grid_is_read_and_every_method_tries_what_it_has():
    grid = tuning.parse(" fedprox_strength=0.1,1 ; batch_size=8,16;man_strength=2")
    assert grid == {
        "fedprox_strength": (0.1, 1.0),
        "batch_size": (8, 16),
        "man_strength": (2.0,),
    }
    assert tuning.combinations("fedprox", grid) == [
        {"fedprox_strength": 0.1, "batch_size": 8},
        {"fedprox_strength": 0.1, "batch_size": 16},
        {"fedprox_strength": 1.0, "batch_size": 8},
        {"fedprox_strength": 1.0, "batch_size": 16},
    ]
    assert len(tuning.combinations("fedprox+man", grid)) == 4
    assert tuning.combinations("fedavg", {"fedprox_strength": (1.0,)}) == [{}]


def test_what_has_no_shared_model_has_no_accuracy_to_choose_by():
    common = experiment.RunConfig(task="digits")
    for name in ("local", "fedprox+fedper"):
        words = f"grid: .*{name}.* has no held-out score to choose by"
        with pytest.raises(settings.SettingError, match=words.replace("+", ".")):
            tuning.Tuning(
                series.Study(),
                common,
                {"batch_size": (8, 16)},
                processes=["fedavg", name],
            )


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "it has no settings"),
        ("batch_size", "no NAME=VALUE"),
        ("batch_size=", "no NAME=VALUE"),
        ("batch_size=x", "batch_size=x: it must be a whole number"),
        ("fedprox_strength=-1", "fedprox_strength=-1.0: it must be at least 0"),
        ("concentration=1,2", "concentration is not a setting that can vary"),
        ("output_dir=a", "results do not depend on output_dir"),
    ],
)
def test_refusals_of_grids(text, words):
    with pytest.raises(settings.SettingError) as caught:
        tuning.parse(text)
    assert words in str(caught.value)


def test_the_best_on_held_out_examples_runs_on_all(tmp_path):
    arguments = [
        "--processes=fedavg,fedprox",
        "--seeds=0,1",
        "--grid=fedprox_strength=0.1,0.01,0.001",
        "--total_rounds=2",
        f"--output_dir={tmp_path}",
    ]
    executor = Pretending()
    done = call(*arguments, executor=executor)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, final = executor.configs[:6], executor.configs[6:]
    # FedAvg has nothing to tune.
    assert {config.process for config in tried} == {"fedprox"}
    assert {config.validation_share for config in tried} == {0.1}
    assert {config.validation_share for config in final} == {None}
    chosen = {c.hyperparameters.get("fedprox_strength") for c in final}
    # The means are 0.55, 0.7 and 0.4.
    assert len(final) == 4 and chosen == {None, 0.01}
    fedavg, fedprox = finished.read_csv(tmp_path / "table.csv")
    assert (fedavg["setting"], fedavg["held_out_mean"]) == ("-", "")
    assert fedprox["setting"] == "fedprox_strength=0.01"
    assert float(fedprox["held_out_mean"]) == pytest.approx(0.7)
    assert float(fedprox["held_out_std"]) == pytest.approx(0.08**0.5)
    assert float(fedprox["held_out_worst"]) == pytest.approx(0.4)
    text = (tmp_path / "table.md").read_text("utf-8")
    assert "70.00 ± 28.28 (40.00; 3 settings)" in text
    tried = finished.read_csv(tmp_path / "grid.csv")
    found = [
        (row["fedprox_strength"], float(row["held_out_mean"]), row["is_best"])
        for row in tried
    ]
    assert found == [
        ("0.1", pytest.approx(0.55), "False"),
        ("0.01", pytest.approx(0.7), "True"),
        ("0.001", pytest.approx(0.4), "False"),
    ]
    assert {row["process"] + row["runs"] for row in tried} == {"fedprox2"}
    assert (tmp_path / "sensitivity.png").exists()
    assert "sensitivity.png, sensitivity.pdf" in done.stdout
    again = Pretending()
    assert call(*arguments, executor=again).returncode == 0
    assert again.configs == []


def test_a_comparison_lists_its_own_files_and_takes_earlier_ones_away(tmp_path):
    for kind, more in (
        ("grid", ["--grid=fedprox_strength=0.1,0.01", "--targets=0.2"]),
        ("settings", ["--settings=batch_size=8,16"]),
        ("targets", ["--targets=0.2"]),
        ("plain", []),
        ("run_dirs", [f"--run_dirs={tmp_path}/fedprox-seed0"]),
    ):
        flags = ["--processes=fedprox", "--total_rounds=2"] * (kind != "run_dirs")
        more += ["--fedprox_strength=0.01"] * (kind not in ("grid", "run_dirs"))
        where = f"--output_dir={tmp_path}"
        done = call(*flags, *more, where, executor=Pretending())
        assert done.returncode == 0, done.stderr
        listed = done.stdout.splitlines()[-1].partition(": ")[2].split(", ")
        there = [path.name for path in tmp_path.iterdir() if path.is_file()]
        assert sorted(listed) == sorted(there) and "table.csv" in there
        assert ("sensitivity.png" in there) == (kind == "grid")
        assert ("curves_seconds.png" in there) == (kind in ("grid", "targets"))
        assert ("curves.csv" in there) == (kind != "settings")


class TellingTime(Pretending):
    """Of whose rounds the first, which traces, takes 9 seconds."""

    def execute(self, command):
        planned = series.plan_run(config_of(command[command.index("run") + 1 :]))
        stops = summary.ends_itself({}, planned.config.dump())
        seconds = [9.0, 0.5][: 1 if stops else planned.config.total_rounds]
        accuracies = [0.9] * len(seconds)
        table = finished.table_of(accuracies, seconds=seconds, memory=1.0)
        finished.write(planned.directory, planned.config.dump(), table)
        return 0, ""


def test_a_dry_run_of_a_grid_has_its_final_runs_and_no_traced_round(
    tmp_path, monkeypatch
):
    clock = types.SimpleNamespace(monotonic=iter([0.0, 78.0]).__next__)
    monkeypatch.setattr(compare, "time", clock)
    done = call(
        "--processes=fedavg,fedprox",
        "--grid=fedprox_strength=0.1,0.01",
        *("--seeds=0,1", "--total_rounds=10", f"--output_dir={tmp_path}"),
        *("--targets=0.5", "--stop_at_target", "--patience=1", "--dry_run"),
        executor=TellingTime(),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = [[c.strip() for c in x.split("|")[1:5]] for x in lines if x[:2] == "| "]
    assert table[2:] == [
        [name, "2", "20", "0.50"]
        for name in (
            *("fedprox, fedprox_strength=0.1", "fedprox, fedprox_strength=0.01"),
            *("fedavg", "fedprox"),
        )
    ]
    assert lines[-1].startswith("8 runs to do, 0 finished: about 40.0 s of rounds")
    assert lines[-1].endswith("4 trials of two rounds took 1:18 with them.")


def test_settings_that_end_not_finite_are_never_best(tmp_path):
    arguments = ["--processes=fedavg,fedprox", "--total_rounds=2"]
    for diverging, best, cell in (
        (0.1, 0.01, "90.00 (50.00; 3 settings, 2 of them tied for the best)"),
        (0.01, 0.1, "50.00 (40.00; 3 settings)"),
        # The worst setting diverged.
        (0.001, 0.01, "90.00 (40.00; 3 settings)"),
    ):
        executor, folder = Pretending(diverging=[diverging]), tmp_path / str(diverging)
        grid = f"--grid=fedprox_strength=0.1,0.01,{0.02 if 'tied' in cell else 0.001}"
        done = call(*arguments, grid, f"--output_dir={folder}", executor=executor)
        assert done.returncode == 0, done.stderr
        assert executor.configs[-1].hyperparameters == {"fedprox_strength": best}
        assert cell in (folder / "table.md").read_text()
    executor = Pretending(diverging=[0.1, 0.01, 0.001])
    done = call(*arguments, grid, f"--output_dir={tmp_path / 'b'}", executor=executor)
    assert done.returncode == 1 and "1 of 5 runs failed (fedprox, s" in done.stderr
    assert "fedprox, seed 0: not started (no setting of the grid ended" in done.stdout
    text = (tmp_path / "b" / "table.md").read_text()
    assert "| fedprox |" not in text and "no results of fedprox, seed 0." in text


def test_no_final_run_starts_while_a_run_of_its_grid_is_missing(tmp_path):
    arguments = ["--processes=fedavg,fedprox", "--total_rounds=2", "--seeds=0,1"]
    arguments += ["--grid=fedprox_strength=0.1,0.5", f"--output_dir={tmp_path}"]
    executor = Pretending()
    done = call(*arguments, executor=executor)
    final = [config for config in executor.configs if config.validation_share is None]
    assert {config.process for config in final} == {"fedavg"}
    assert done.returncode == 1 and "4 of 8 runs failed (fedprox, " in done.stderr
    why = "fedprox, seed 1: not started (runs of its grid are missing)"
    assert why in done.stdout
    text = " ".join((tmp_path / "table.md").read_text().split())
    assert "no results of fedprox, fedprox_strength=0.5, seed 0; " in text
    assert "; fedprox, seed 0; fedprox, seed 1." in text
    tried = finished.read_csv(tmp_path / "grid.csv")
    assert {row["is_best"] for row in tried} == {"False"}


# A run that is finished at once, or, where a file says so, sends itself or its parent a
# signal and stays.
PRETEND = """
import os, pathlib, signal, sys
from tests.experiment import finished, test_tuning
from tff_reg.experiment.series import plan as series
planned = series.plan_run(test_tuning.config_of(sys.argv[2:]))
trap = pathlib.Path(planned.directory + ".trap")
if trap.exists():
    who, number = trap.read_text().split()
    trap.unlink()
    os.kill({"run": os.getpid(), "parent": os.getppid()}[who], int(number))
    signal.pause()
finished.finish(planned, [0.1, 0.2 + 0.1 * planned.config.seed])
"""


def set_trap(folder, run, who, number):
    folder.mkdir(exist_ok=True)
    (folder / f"{run}.trap").write_text(f"{who} {int(number)}")


def run_jobs(folder, jobs, executor=None):
    common = experiment.RunConfig.of({**TINY, "output_dir": str(folder)})
    planned = series.Study().compare(common, processes=("fedavg", "fedprox")).runs
    said = []
    done = batch.Batch(
        [sys.executable, "-c", PRETEND],
        jobs=jobs,
        executor=executor,
        say=lambda *words, **_: said.append("".join(words)),
    )
    done.run(planned)
    groups = {}
    for run in filter(lambda run: run.is_finished, planned):
        groups.setdefault(run.config.process, []).append(run.directory)
    experiment.compare(groups, folder)
    return done, said


def test_jobs_give_the_same_table_as_one_after_another(tmp_path, monkeypatch):
    monkeypatch.chdir(commands.ROOT)
    monkeypatch.setenv("PYTHONPATH", str(commands.ROOT))
    run_jobs(tmp_path / "one", 1)
    set_trap(tmp_path / "three", "fedprox-seed0", "run", signal.SIGKILL)
    done, said = run_jobs(tmp_path / "three", 3)
    assert [*done.failed] == ["fedprox, seed 0"]
    assert any("fedprox, seed 0: failed (killed by SIGKILL)" in line for line in said)
    done, said = run_jobs(tmp_path / "three", 3)
    assert not done.failed and sum("finished before" in line for line in said) == 1
    for name in ("table.csv", "table.md", "curves.csv", "curves.png"):
        one, three = (tmp_path / each / name for each in ("one", "three"))
        assert one.read_bytes() == three.read_bytes(), name


def tried(process, accuracy, best=False, runs=1, **settings):
    unknown = {"a": None, "b": None, "c": None}
    return {
        "process": process,
        **unknown,
        **settings,
        "runs": runs,
        tuning.MEAN: accuracy,
        tuning.DEVIATION: None,
        tuning.BEST: best,
    }


def test_a_panel_for_each_method_a_line_or_a_heat_map():
    names = ["a", "b", "c"]
    nothing = [tried("man", 0.5, a=1), tried("kd", None, a=2)]
    assert tuning.draw(nothing, names, scores.Score()) is None
    line = [tried("man", 0.9, a=0.1), tried("man", 0.8, a=0.01, best=True)]
    both = [tried("man+kd", a + b / 4, a=a, b=b) for a in (0, 0.5) for b in (1, 2)]
    figure = tuning.draw([*line, *both], names, scores.Score())
    of_fewer_seeds = tried("man", 0.95, runs=0, a=7)
    (axes,) = tuning.draw([*line, of_fewer_seeds], names, scores.Score()).axes
    assert len(axes.get_xticklabels()) == 2
    first, second, _ = figure.axes  # And the scale of the colours.
    means, ring = [each for each in first.lines if each.get_marker() == "o"]
    np.testing.assert_allclose(means.get_ydata(orig=False), [80, 90])
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0.01", "0.1"]
    assert ring.get_ydata() == [80]
    (image,) = second.images
    np.testing.assert_allclose(image.get_array(), [[25, 75], [50, 100]])
    labels = (second.get_xlabel(), second.get_ylabel(), second.get_title(loc="left"))
    assert labels == ("a", "b", "MAN+KD")
    # Of three settings each has the best of the others.
    three = [
        tried("kd", (a + b + c) / 10, a=a, b=b, c=c)
        for a in (1, 2)
        for b in (1, 3)
        for c in (1, 2)
    ]
    panels = tuning.draw(three, names, scores.Score()).axes
    assert [each.get_xlabel() for each in panels] == names
    for axes, best in zip(panels, ([60, 70], [50, 70], [60, 70])):
        np.testing.assert_allclose(axes.lines[0].get_ydata(orig=False), best)


def test_the_settings_of_all_runs_are_those_of_the_grid_or_given(tmp_path):
    common = experiment.RunConfig.of({**TINY, "output_dir": str(tmp_path)})
    study, grid = series.Study(), {"batch_size": (8, 16)}
    asked = {"processes": ("fedavg", "man"), "seeds": (3,)}
    made = tuning.Tuning(study, common, grid, **asked)
    names = [pathlib.Path(run.directory).name for run in study.runs]
    assert names == [
        "fedavg-batch_size8-seed3",
        "fedavg-batch_size16-seed3",
        "man-batch_size8-seed3",
        "man-batch_size16-seed3",
    ]
    # Nothing is known of a method of which no setting has finished.
    assert made.best() == {}
