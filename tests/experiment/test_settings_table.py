"""Methods under several settings: the grammar, the runs, and the table."""

import dataclasses

import pytest

import tff_reg
from tests import commands
from tests.experiment import finished
from tests.experiment.compared import lines_of, text_of, write_run
from tests.experiment.own_runs import SILENT, TEST, TRAIN, keras_model
from tff_reg import experiment, scores, settings, tasks
from tff_reg.commands import compare
from tff_reg.experiment.report import comparison
from tff_reg.experiment.series import comparing

TEXT = "concentration=0.1,0.3; partition=shards, classes_per_client=2,3;"
HEADINGS = [
    "concentration=0.1",
    "concentration=0.3",
    "partition=shards, classes_per_client=2",
    "partition=shards, classes_per_client=3",
]
SHARDS = {"partition": "shards", "classes_per_client": (2, 3)}


def test_a_group_is_all_combinations_of_its_values():
    columns = comparing.columns_of(TEXT)
    assert [*columns] == HEADINGS
    assert columns[HEADINGS[3]] == {"partition": "shards", "classes_per_client": 3}
    assert columns == comparing.columns_of([{"concentration": [0.1, 0.3]}, SHARDS])
    assert (
        comparing.folder_of(columns[HEADINGS[2]])
        == "partitionshards-classes_per_client2"
    )
    assert len(comparing.columns_of(SHARDS)) == 2
    paths = ({"initial_weights": path} for path in ("w/a.npz", "w_a.npz"))
    assert len({*map(comparing.folder_of, paths)}) == 2


@pytest.mark.parametrize(
    "text, words",
    [
        (" ;", "no settings in it"),
        ("0.1,0.3", "0.1,0.3 is no NAME=VALUE"),
        ("concentration=", "is no NAME=VALUE"),
        ("concentraton=1", "that can vary (did you mean concentration?)"),
        ("seed=1,2", "seed is not a setting that can vary"),
        ("fedprox_strength=0.1", "is of the method fedprox; give its flag"),
        ("runtime=ray;cpus_per_client=2", "results do not depend on cpus_per_client"),
        ("batch_size=8", "batch_size is given for all columns as well"),
        ("concentration=1,concentration=2", "join its values by commas"),
        ("concentration=1;concentration=1.0", "concentration=1.0 is there twice"),
        ("concentration=x", "concentration=x: it must be a number"),
        ("concentration=-1", "concentration=-1.0: it must be"),
    ],
)
def test_refusals(text, words):
    with pytest.raises(settings.SettingError) as caught:
        comparing.columns_of(text, {"batch_size": 8})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_mean_ranks_by_hand():
    columns = [{"a": 0.5, "b": 0.7, "c": 0.5}, {"c": 0.9, "a": None, "b": 0.1}]
    # Places 2.5, 1, 2.5 and 3, 2, 1.
    expected = {"a": 2.75, "b": 1.5, "c": 1.75}
    assert comparison.mean_ranks(columns, scores.Score()) == expected
    assert comparison.mean_ranks([*columns, {"a": 0.5}], scores.Score()) == {}
    errors = [{"a": 2.0, "b": 1.0, "c": None}]
    ranks = comparison.mean_ranks(errors, scores.Score("mae", lower_is_better=True))
    assert ranks == {"b": 1.0, "a": 2.0, "c": 3.0}


def test_references_have_no_rank_no_difference_and_no_bold_print(tmp_path):
    finals = {"local": [None] * 2, "central": [0.8, 0.81], "kd": [0.5, 0.52]}
    runs = [
        write_run(tmp_path / f"{name}{seed}", [each], process=name, seed=seed)
        for name, of_seeds in {**finals, "man": [0.4, 0.421]}.items()
        for seed, each in enumerate(of_seeds)
    ]
    made = comparison.tabulate(runs)
    assert made.baseline == "kd"
    layout = dataclasses.replace(made.layout, baseline=None, names={"local": "Alone"})
    assert comparison.tabulate(runs, layout).baseline == "kd"
    known = [row["difference_mean"] for row in made.rows()]
    assert known == [None, None, None, pytest.approx(-0.0995)]
    whole = comparison.SettingsTable(["a"], {"a": made})
    assert whole.ranks == {"kd": 1.0, "man": 2.0}
    # A setting of which no run has finished has an empty column, and no mean of ranks.
    half = comparison.SettingsTable(["a", "b"], {"a": made})
    assert not half.ranks and {row["setting"] for row in half.rows()} == {"a"}
    said = " ".join(half.markdown().split())
    assert "| kd | 51.00 ± 1.41 | - | - |" in said.replace("**", "")
    assert "There is none: runs are missing." in said and "b: no run has fin" in said
    text = made.markdown()
    assert "| **51.00 ± 1.41** |" in text and "**80" not in text
    assert "difference or bold print: local, central." in " ".join(text.split())


def test_methods_without_a_server_model_have_no_rank(tmp_path):
    finals = {"fedavg": [0.5, 0.52], "fedper": [None] * 2, "man": [0.4, 0.421]}
    runs = [
        write_run(tmp_path / f"{name}{seed}", [each], process=name, seed=seed)
        for name, of_seeds in finals.items()
        for seed, each in enumerate(of_seeds)
    ]
    whole = comparison.SettingsTable(["a"], {"a": comparison.tabulate(runs)})
    assert whole.ranks == {"fedavg": 1.0, "man": 2.0}
    said = " ".join(whole.markdown().split())
    assert "No accuracy, rank or curve of fedper: their server has no whole" in said
    assert "| fedper | - | - |" in said


def test_seeds_that_change_nothing_are_no_replicates(tmp_path):
    finals = {"fedavg": [1.2, 1.2 + 2e-8, 1.2], "man": [1.1, 1.1, 1.1 + 1e-8]}
    runs = [
        write_run(tmp_path / f"{name}{seed}", [each], process=name, seed=seed)
        for name, of_seeds in finals.items()
        for seed, each in enumerate(of_seeds)
    ]
    made = comparison.tabulate(runs)
    text = " ".join(made.markdown().split())
    assert "**" not in text and "the seeds change the score by rounding alone" in text
    assert {row["difference_p"] for row in made.rows()} == {None}
    whole = comparison.SettingsTable(["a", "b"], {"a": made, "b": made})
    assert all(row.get("p") is None for row in whole.rows())


def test_the_command_tabulates_methods_by_settings(tmp_path):
    flags = ["--processes=fedavg,man", "--seeds=2", "--total_rounds=2"]
    flags += ["--settings=concentration=0.1;partition=shards,classes_per_client=2"]
    common = experiment.RunConfig(total_rounds=2, output_dir=str(tmp_path))
    finals = {"fedavg": [[0.5, 0.52], [0.3, 0.4]], "man": [[0.6, 0.622], [0.4, 0.3]]}
    study = comparing.planned(
        lambda column: (dataclasses.replace(common, **column), tasks),
        processes=["fedavg", "man"],
        seeds=(0, 1),
        settings=flags[3][11:],
    )
    for number, run in enumerate(study.runs):
        found = finals[run.config.process][number // 4][run.config.seed]
        finished.finish(run, [0.1, found])
    done = commands.call(compare.main, *flags, f"--output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    name = "run 8/8  man, partition=shards, classes_per_client=2, seed 1: finished bef"
    assert name in done.stdout
    head, _, fedavg, man, *_ = lines_of(tmp_path)
    second = "partition=shards, classes_per_client=2"
    of_all = "difference to fedavg (points), all settings"
    assert head == (
        f"| method | concentration=0.1 | {second} | mean rank | {of_all} |"
        " p (Holm), all settings |"
    )
    assert fedavg == "| fedavg | 51.00 ± 1.41 | 35.00 ± 7.07 | 1.75 | - | - |"
    # Of 10, 10.2, 10 and -10 points, 20.2 in all: 8 of 16 patterns of signs have a sum
    # as far from 0, those with equal signs and those with one other of the tens.
    assert man == "| man | **61.10 ± 1.56** | 35.00 ± 7.07 | 1.25 | +5.05 | 0.5 |"
    text = text_of(tmp_path)
    assert "after 2 rounds: mean ± sample standard deviation (n - 1) over 2" in text
    assert "- concentration=0.1: partition=dirichlet_balanced" in text
    assert "task=digits, model" in text and "- man's own: man_strength" in text
    rows = finished.read_csv(tmp_path / "table.csv")
    found = {(r["setting"], r["process"], r["quantity"]): r for r in rows}
    assert float(found[second, "fedavg", "accuracy"]["mean"]) == pytest.approx(0.35)
    of_man = found[HEADINGS[0], "man", "accuracy"]
    assert float(of_man["difference"]) == pytest.approx(0.101)
    assert float(of_man["low"]) < 0.1 < float(of_man["high"]) and of_man["p"] == "0.5"
    assert found["all settings", "fedavg", "mean_rank"]["mean"] == "1.75"
    assert found["all settings", "man", "accuracy"]["p"] == "0.5"
    assert r"\textbf{61.10 $\pm$ 1.56}" in (tmp_path / "table.tex").read_text("utf-8")
    own = tmp_path / "concentration0.1"
    assert "difference to fedavg (points)" in text_of(own)
    more = ["--names=fedavg=FedAvg,man=MAN (ours)", "--columns=score,best"]
    flags += [f"--output_dir={tmp_path}", "--baseline=man"]
    done = commands.call(compare.main, *flags, *more)
    assert done.returncode == 0, done.stderr
    tex = (tmp_path / "table.tex").read_text("utf-8").splitlines()
    assert tex[3:6] == [
        r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{concentration=0.1} &"
        r" \multicolumn{2}{c}{partition=shards, classes\_per\_client=2} &"
        r" \multicolumn{3}{c}{} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"method & accuracy (\%) & best (\%) & accuracy (\%) & best (\%) & mean rank"
        r" & difference to MAN (ours) (points), all settings & p (Holm), all settings"
        r" \\",
    ]
    rows = finished.read_csv(tmp_path / "table.csv")
    assert {row["process"] for row in rows} == {"FedAvg", "MAN (ours)"}
    for wrong, words in (
        ("kd=KD", "--names: there is no row kd, but fedavg, man."),
        ("man=fedavg", "--names: two rows would have one name."),
        ("man", "--names=man: give METHOD=NAME."),
    ):
        assert words in commands.refusal(
            commands.call(compare.main, *flags, f"--names={wrong}")
        )


# Five seconds: four runs.
def test_python_has_a_comparison_for_each_setting():
    given = dict(client_data=TRAIN, test_data=TEST, model=keras_model(), num_clients=4)
    given.update(local_epochs=1, total_rounds=1, progress=SILENT)
    made = tff_reg.compare(["fedavg", "kd"], settings={"batch_size": [8, 16]}, **given)
    assert [*made.settings] == ["batch_size=8", "batch_size=16"]
    frame = made.settings["batch_size=16"].table
    rows = made.table.query("setting == 'batch_size=16' and quantity == 'accuracy'")
    assert frame["accuracy_mean"].tolist() == rows["mean"].tolist()
    assert len(made.plot().axes) == 2 and "| mean rank |" in str(made)
    for wrong, words in (
        ({"settings": "batch_size=8,0"}, "batch_size=0: it must be at least 1"),
        ({"settings": "num_clients=2"}, "num_clients is given for all columns"),
        ({"settings": {"batch_size": 8}, "grid": {"batch_size": [8]}}, "give it or"),
    ):
        with pytest.raises(ValueError, match=words):
            tff_reg.compare(["fedavg"], **given, **wrong)
