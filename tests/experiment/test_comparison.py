import json

import pytest

from tests import commands
from tests.experiment import finished
from tests.experiment.finished import read_csv
from tff_reg import experiment, settings
from tff_reg.experiment.report import comparison, finished_runs, table as table_lib
from tff_reg.experiment.series import batch

SETTINGS = experiment.RunConfig(process="fedavg").resolved().dump()


def write_run(path, accuracies, *, columns=None, **others):
    """Writes a finished run with a test accuracy a round (None: not evaluated)."""
    recorded = {
        **SETTINGS,
        "clients_per_round": 2,
        "total_rounds": len(accuracies),
        "batch_size": 32,
        **others,
    }
    columns = {"seconds": 2.0, **(columns or {})}
    finished.write(path, recorded, finished.table_of(accuracies, **columns))
    return path


def lines_of(folder):
    """The table for people, with single spaces."""
    text = (folder / "table.md").read_text("utf-8")
    return [" ".join(line.split()) for line in text.splitlines()]


def text_of(folder):
    """The same in a line."""
    return " ".join(lines_of(folder))


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that are drawn: (name of the file, curves, options)."""
    found = []
    monkeypatch.setattr(
        comparison.curves,
        "write_curves",
        lambda path, curves, **options: found.append((path.name, curves, options)),
    )
    return found


@pytest.fixture
def four_runs(tmp_path):
    """FedAvg and FedProx with two seeds each."""
    return [
        write_run(tmp_path / "a0", [0.2, 0.4], seed=0, columns={"seconds": 1.0}),
        write_run(tmp_path / "a1", [0.3, 0.6], seed=1),
        write_run(tmp_path / "p0", [0.5, 0.4], seed=0, process="fedprox"),
        write_run(tmp_path / "p1", [0.1, 0.9], seed=1, process="fedprox"),
    ]


def test_means_and_sample_deviations_by_hand():
    assert table_lib.mean([1.0, 2.0, 6.0]) == 3.0
    # Squares 4 + 1 + 9 = 14; 14 / 2 = 7. (Of the population it would be 14 / 3.)
    assert table_lib.deviation([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)
    assert table_lib.deviation([1.0]) is None
    assert table_lib.mean([1.0, None]) is None
    assert table_lib.deviation([1.0, None, 2.0]) is None


def test_rows_are_means_over_seeds_and_the_csv_has_them_at_full_precision(
    four_runs, tmp_path
):
    rows = experiment.compare(
        four_runs,
        tmp_path / "out",
        accuracy_at_rounds=[1, 2],
        target_accuracies=[0.22, 0.4],
    )
    fedavg, fedprox = rows
    assert " ".join(fedavg) == (
        "process runs accuracy_mean accuracy_std best_accuracy_mean ema_accuracy_mean"
        " ema_accuracy_std all_clients_accuracy_mean all_clients_accuracy_std"
        " seconds_per_round rejected_clients rounds_without_training not_finite"
        " rounds_to_0.22_mean rounds_to_0.4_mean ema_accuracy_at_1_mean"
        " ema_accuracy_at_2_mean"
    )
    assert fedavg["process"] == "fedavg" and fedavg["runs"] == 2
    assert fedavg["accuracy_mean"] == pytest.approx(0.5)
    # Deviations of 0.1 from the mean: (0.01 + 0.01) / 1 = 0.02.
    assert fedavg["accuracy_std"] == pytest.approx(0.02**0.5)
    # 0.9 x 0.2 + 0.1 x 0.4 = 0.22 and 0.9 x 0.3 + 0.1 x 0.6 = 0.33.
    assert fedavg["ema_accuracy_mean"] == pytest.approx(0.275)
    assert fedavg["ema_accuracy_std"] == pytest.approx((2 * 0.055**2) ** 0.5)
    assert fedavg["seconds_per_round"] == 1.5
    # One needs two rounds, the other one.
    assert fedavg["rounds_to_0.22_mean"] == 1.5
    assert fedavg["rounds_to_0.4_mean"] is None
    assert fedavg["ema_accuracy_at_1_mean"] == pytest.approx(0.25)
    assert fedavg["ema_accuracy_at_2_mean"] == pytest.approx(0.275)
    assert fedprox["best_accuracy_mean"] == pytest.approx(0.7)
    # The second seed's averages are 0.1 and 0.18: never 0.22.
    assert fedprox["rounds_to_0.22_mean"] is None
    for row, cells in zip(rows, read_csv(tmp_path / "out" / "table.csv")):
        assert cells == {k: "" if v is None else str(v) for k, v in row.items()}
        assert list(cells) == list(row)


@pytest.mark.parametrize(
    "measures, round_num, words",
    [
        ({}, 3, "the accuracy's moving average reaches"),
        ({"target_measure": "raw"}, 2, "in which the accuracy reaches"),
        (
            {"target_measure": "raw", "target_model": "all_clients"},
            1,
            "the accuracy of the mean of all clients' models reaches",
        ),
    ],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_targets_are_reached_by_what_runs_or_the_caller_say(
    measures, round_num, words, is_asked, tmp_path
):
    of_run, asked = ({}, measures) if is_asked else (measures, {})
    # Averages: 0.2, 0.24 and 0.276.
    means = {"all_clients_accuracy": 0.7}
    run = write_run(tmp_path / "a", [0.2, 0.6, 0.6], columns=means, **of_run)
    (row,) = experiment.compare([run], tmp_path, target_accuracies=[0.25], **asked)
    assert row["rounds_to_0.25_mean"] == round_num
    assert words in text_of(tmp_path)


def test_the_markdown_is_a_table_in_percent_with_the_best_in_bold(four_runs, tmp_path):
    experiment.compare(
        four_runs, tmp_path, accuracy_at_rounds=[9], target_accuracies=[0.22]
    )
    head, _, fedavg, fedprox, *caption = lines_of(tmp_path)
    assert head == (
        "| method | seeds | accuracy (%) | best (%) | EMA (%) | EMA at 9 (%) |"
        " rounds to 22 % | s a round |"
    )
    # Averages: 0.22, 0.33; 0.49, 0.18. Deviations: 0.055, 0.155, times sqrt(2).
    assert fedavg == (
        "| fedavg | 2 | 50.00 ± 14.14 | 50.00 | 27.50 ± 7.78 | - | **1.5** | 1.50 |"
    )
    assert fedprox == (
        "| fedprox | 2 | **65.00 ± 35.36** | **70.00** | **33.50 ± 21.92** | - | 2+ |"
        " 2.00 |"
    )
    lines = (tmp_path / "table.md").read_text("utf-8").splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert "on digits after 2 rounds" in " ".join(caption)
    assert "sample standard deviation (n - 1)" in " ".join(caption)


def test_the_latex_has_the_same_cells_and_the_rest_as_comments(four_runs, tmp_path):
    named = {"mu_1 & 10%": four_runs[:2], "fedprox": four_runs[2:]}
    experiment.compare(named, tmp_path, columns=("accuracy",))
    lines = (tmp_path / "table.tex").read_text("utf-8").splitlines()
    tabular = [line for line in lines if not line.startswith("%")]
    # 0.4 and 0.6; 0.4 and 0.9.
    assert tabular == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & seeds & accuracy (\%) \\",
        r"\midrule",
        r"mu\_1 \& 10\% & 2 & 50.00 $\pm$ 14.14 \\",
        r"fedprox & 2 & \textbf{65.00 $\pm$ 35.36} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    comments = " ".join(line.removeprefix("% ") for line in lines if line[0] == "%")
    assert "Test accuracy on digits after 2 rounds" in comments
    assert "Protocol: digits" in comments


def test_the_mean_of_all_clients_has_a_column_where_a_run_has_it(four_runs, tmp_path):
    dyn = [
        write_run(
            tmp_path / f"d{seed}",
            [0.1],
            process="feddyn",
            seed=seed,
            columns={"all_clients_accuracy": accuracy},
        )
        for seed, accuracy in enumerate([0.2, 0.4])
    ]
    rows = experiment.compare([*four_runs, *dyn], tmp_path / "out")
    assert rows[2]["all_clients_accuracy_mean"] == pytest.approx(0.3)
    # Deviations of 0.1 from the mean: (0.01 + 0.01) / 1 = 0.02.
    assert rows[2]["all_clients_accuracy_std"] == pytest.approx(0.02**0.5)
    found = read_csv(tmp_path / "out" / "table.csv")
    cells = [row["all_clients_accuracy_mean"] for row in found]
    assert cells[:2] == ["", ""] and float(cells[2]) == pytest.approx(0.3)
    head, _, *rows = [line.split(" | ") for line in lines_of(tmp_path / "out")[:5]]
    column = head.index("all clients (%)")
    assert [row[column] for row in rows] == ["-", "-", "30.00 ± 14.14"]
    assert "mean of all clients' last models" in text_of(tmp_path / "out")
    experiment.compare(four_runs, tmp_path / "without")
    assert "all clients" not in text_of(tmp_path / "without")


def test_a_table_over_held_out_training_examples_says_so(tmp_path, drawn):
    held = write_run(tmp_path / "a", [0.5], validation_share=0.1)
    tested = write_run(tmp_path / "b", [0.5], process="man", validation_share=None)
    for runs, words in (
        ([held], "Held-out accuracy on digits"),
        ([tested], "Test accuracy on digits"),
        ([held, tested], "Held-out or test accuracy on digits"),
    ):
        experiment.compare(runs, tmp_path / "out")
        text = text_of(tmp_path / "out")
        assert f"{words} after 1 round: mean" in text
        assert drawn[-1][2]["title"] == words
        assert ("that nobody trains on" in text) == (held in runs)
    # Accuracies on different examples are not compared as if they were.
    assert "differ in validation_share: 0.1 (fedavg), none (man)" in text


def test_one_seed_has_no_deviation_and_one_method_no_best(tmp_path):
    rows = experiment.compare([write_run(tmp_path / "a", [0.5, 0.75])], tmp_path / "o")
    assert rows[0]["accuracy_mean"] == 0.75 and rows[0]["accuracy_std"] is None
    assert read_csv(tmp_path / "o" / "table.csv")[0]["ema_accuracy_std"] == ""
    text = text_of(tmp_path / "o")
    assert " 75.00 |" in text and "**" not in text and "bold" not in text

    curves = (tmp_path / "o" / "curves.csv").read_text("utf-8").splitlines()
    assert curves[1:] == ["fedavg,1,0.5,", "fedavg,2,0.75,"]


def test_missing_runs_are_named_and_nothing_is_in_bold(tmp_path):
    runs = [write_run(tmp_path / p, [0.5], process=p) for p in ("fedavg", "fedprox")]
    experiment.compare(runs, tmp_path, missing=["moon, seed 0", "moon, seed 1"])
    text = " ".join(text_of(tmp_path).split())
    assert "**" not in text and "Runs are missing, so nothing is in bold." in text
    assert (
        "2 of 4 runs are finished; there are no results of moon, seed 0; moon, seed 1."
        in text
    )


def test_equal_means_are_both_in_bold(tmp_path):
    runs = [
        write_run(tmp_path / name, [0.75], process=name) for name in ("fedavg", "man")
    ]
    experiment.compare(runs, tmp_path)
    assert text_of(tmp_path).count("**75.00**") == 6


def table(tmp_path, *runs):
    experiment.compare(runs, tmp_path / "out", target_accuracies=[0.2])
    return text_of(tmp_path / "out")


def test_what_ended_not_finite_is_said_and_never_the_best(tmp_path):
    nan = float("nan")
    nobody = {"num_examples": 0, "rejected_clients": 2, "training_loss": nan}
    words = table(
        tmp_path,
        write_run(tmp_path / "a", [0.5, 0.3], process="fedavg"),
        write_run(tmp_path / "b", [0.9, nan], process="fedprox"),
        # The server's model is as it was, and the best of all.
        write_run(tmp_path / "c", [0.9, 0.9], process="moon", columns=nobody),
    )
    first, nan_at_end, idle = lines_of(tmp_path / "out")[2:5]
    assert first.startswith("| fedavg | 1 | **30.00** | **50.00** |")
    assert "| **1.0** |" in first
    start = "| fedprox | 1 | not finite | 90.00 | not finite | 1.0 |"
    assert nan_at_end.startswith(start)
    assert idle.startswith("| moon | 1 | 90.00 |") and "**" not in idle
    assert "fedprox: the last round's numbers not finite." in words
    assert (
        "moon: 4 updates of clients not finite and left out, 2 rounds in which nobody"
        " trained, the last round's numbers not finite."
    ) in words
    assert "fedavg: " not in words


def test_other_seeds_are_no_common_protocol(tmp_path):
    text = table(
        tmp_path,
        write_run(tmp_path / "a", [0.5], process="fedavg", seed=0),
        write_run(tmp_path / "b", [0.6], process="fedavg", seed=1),
        write_run(tmp_path / "c", [0.7], process="fedprox", seed=0),
    )
    assert "**" not in text and "no common protocol" in text
    assert "They differ in seeds: 0,1 (fedavg), 0 (fedprox)." in text


def test_runs_of_different_code_are_said_to_be(tmp_path, drawn):
    versions = {"tensorflow": "2.21.0", "tensorflow_federated": "0.87.0"}
    made = {"versions": versions, "sources": "0123456789"}
    old = {**made, "versions": {**versions, "tensorflow": "2.14.1"}}
    first = write_run(tmp_path / "a", [0.5], process="fedavg", **made)
    second = write_run(tmp_path / "b", [0.6], process="fedprox", **made)
    assert "same code" not in table(tmp_path, first, second)
    # Other code made a part of it.
    third = write_run(
        tmp_path / "c", [0.6], process="moon", **made, made_before=[{**old}]
    )
    words = table(tmp_path, first, third)
    said = (
        "They were not all made by the same code: sources 01234567 with TensorFlow"
        " 2.21.0 and TFF 0.87.0 (fedavg, moon); sources 01234567 with TensorFlow 2.14.1"
        " and TFF 0.87.0 (moon)."
    )
    assert said in words and said in drawn[-1][2]["note"]


def test_what_is_not_known_of_a_run_is_no_common_protocol(tmp_path):
    path = write_run(tmp_path / "a", [0.5], process="fedavg")
    config = json.loads((path / "config.json").read_text())
    for name in ("client_learning_rate", "local_epochs"):
        del config[name]
    (path / "config.json").write_text(json.dumps(config))
    other = write_run(tmp_path / "b", [0.6], process="fedprox")
    text = table(tmp_path, path, other)
    assert "**" not in text
    assert "Whether they have one protocol is not known, so nothing is in bold." in text
    assert (
        "Their settings are not known: local_epochs, client_learning_rate (fedavg)."
        in text
    )


def test_groups_can_be_named(tmp_path):
    runs = {
        "mu 0.1": [write_run(tmp_path / "a", [0.5], fedprox_strength=0.1)],
        "mu 0.2": [write_run(tmp_path / "b", [0.6], fedprox_strength=0.2)],
    }
    rows = experiment.compare(runs, tmp_path)
    assert [row["process"] for row in rows] == ["mu 0.1", "mu 0.2"]


def test_runs_that_were_never_evaluated_have_empty_cells_and_no_picture(tmp_path):
    for name in ("curves.png", "curves.pdf", "curves.csv"):
        (tmp_path / name).write_bytes(b"of other runs")
    rows = experiment.compare([write_run(tmp_path / "a", [None, None])], tmp_path)
    assert rows[0]["accuracy_mean"] is None and rows[0]["ema_accuracy_mean"] is None
    assert rows[0]["seconds_per_round"] == 2.0
    assert not list(tmp_path.glob("curves.*"))


def test_the_curves_are_means_of_the_rounds_that_all_seeds_have(tmp_path, drawn):
    runs = [
        write_run(tmp_path / "a", [0.2, None, 0.4], seed=0),
        write_run(tmp_path / "b", [0.4, 0.7, 0.8], seed=1),
    ]
    experiment.compare(runs, tmp_path)
    ((_, (curve,), _),) = drawn
    assert curve.rounds == [1, 3]
    assert curve.mean == pytest.approx([0.3, 0.6])
    assert curve.deviation == pytest.approx([0.02**0.5, 0.08**0.5])
    rows = read_csv(tmp_path / "curves.csv")
    assert list(rows[0]) == ["process", "round", "accuracy_mean", "accuracy_std"]
    assert [(row["process"], row["round"]) for row in rows] == [
        ("fedavg", "1"),
        ("fedavg", "3"),
    ]
    assert [float(row["accuracy_mean"]) for row in rows] == curve.mean
    assert [float(row["accuracy_std"]) for row in rows] == curve.deviation


def test_the_same_runs_give_the_same_bytes_and_are_not_touched(four_runs, tmp_path):
    def content():
        return {
            path: path.read_bytes()
            for run in four_runs
            for path in run.rglob("*")
            if path.is_file()
        }

    before = content()
    for name in ("x", "y"):
        experiment.compare(four_runs, tmp_path / name, target_accuracies=[0.3])
    for name in set(comparison.FILES) - {"compute.png", "compute.pdf"}:
        first = (tmp_path / "x" / name).read_bytes()
        assert first == (tmp_path / "y" / name).read_bytes()
    assert content() == before


def other_settings(folder):
    return [
        write_run(folder / "a", [0.5], seed=0, batch_size=8),
        write_run(folder / "b", [0.5], seed=1, batch_size=16),
    ]


def other_numbers_of_rounds(folder):
    return [
        write_run(folder / "a", [0.5], seed=0),
        write_run(folder / "b", [0.5, 0.6], seed=1),
    ]


def one_seed_twice(folder):
    return [write_run(folder / "a", [0.5]), write_run(folder / "b", [0.5])]


def not_finished(folder):
    run = write_run(folder / "a", [0.5])
    (run / "summary.json").unlink()
    return [run]


def somebody_elses(folder):
    (folder / "thesis.tex").write_text("precious")
    return [folder]


def a_run(folder):
    return [write_run(folder / "a", [0.5])]


REFUSALS = (
    experiment.ComparisonError,
    experiment.DirectoryError,
    settings.SettingError,
)


@pytest.mark.parametrize(
    "make, wanted, words",
    [
        (lambda folder: [], {}, "no runs"),
        (lambda folder: {"fedavg": []}, {}, "no runs"),
        (not_finished, {}, "a has no finished run"),
        (lambda folder: [folder / "nothing"], {}, "nothing has no finished run"),
        (somebody_elses, {}, "left alone"),
        (other_settings, {}, "batch_size (8 and 16)"),
        (other_numbers_of_rounds, {}, "1 and 2 rounds"),
        (one_seed_twice, {}, "the same seed, 0"),
        (a_run, {"accuracy_at_rounds": [0]}, "it must be"),
        (a_run, {"target_accuracies": [48]}, "it must be"),
        (a_run, {"target_measure": "median"}, "target_measure"),
        (
            a_run,
            {"target_accuracies": [0.2], "target_model": "all_clients"},
            "a was not made with average",
        ),
        (
            a_run,
            {"columns": ["flops"]},
            "columns=flops: there is no flops (did you mean mflops?)",
        ),
        (a_run, {"columns": ["ema"] * 2}, "columns=ema,ema: ema is there twice."),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    tmp_path, make, wanted, words
):
    with pytest.raises(REFUSALS) as caught:
        experiment.compare(make(tmp_path), tmp_path / "out", **wanted)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_it_needs_no_tensorflow(four_runs, tmp_path):
    program = (
        "import sys\n"
        "from tff_reg import experiment\n"
        "experiment.compare(sys.argv[2:], sys.argv[1])\n"
        "print([name for name in sys.modules if 'tensorflow' in name])\n"
    )
    assert commands.python(program, tmp_path / "out", *four_runs).stdout == "[]\n"
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert written == set(comparison.FILES) - {"compute.png", "compute.pdf"}


def analyse(path, *, round_num=2, examples=512, clients=0, weights="", **values):
    """Writes what `bin/analyze` leaves of a run."""
    folder = path / "analysis" / weights
    folder.mkdir(exist_ok=True, parents=True)
    how = {"examples": examples, "clients": clients}
    of = {"round_num": round_num, "settings": how}
    (folder / "hessian.json").write_text(json.dumps({"of": of}))
    lines = [f"{name},{value}," for name, value in values.items()]
    (folder / "hessian.csv").write_text(
        "\n".join(["quantity,value,standard_error", *lines, ""])
    )
    (folder / "cost.csv").write_text(
        "process,forward_mflops,stored_params_m,forward_rest_mflops,backward_mflops\n"
        "x,87.237,0.6054,1.0,174.0\n"
    )


def test_columns_of_analyses_are_means_over_seeds(four_runs, tmp_path):
    columns = ["trace", "accuracy", "mflops", "params", "seconds"]
    for number, run in enumerate(four_runs):
        with pytest.raises(comparison.ComparisonError, match="bin/analyze hessian"):
            experiment.compare(four_runs, tmp_path / "o", columns=columns)
        assert not finished_runs.is_analysed(run, columns)
        analyse(run, trace=10.0 * number, clients="many")
        assert finished_runs.is_analysed(run, columns)
        assert not finished_runs.is_analysed(run, columns, settings={"clients": 2})
    rows = experiment.compare(four_runs, tmp_path / "o", columns=columns)
    # The runs are of fedavg, fedavg, fedprox, fedprox, or by seeds.
    traces = sorted(row["trace_mean"] for row in rows)
    assert sum(traces) == 30.0
    assert rows[0]["mflops_mean"] == 87.237
    head, _, first, *_ = lines_of(tmp_path / "o")
    assert head == (
        "| method | seeds | H_T | accuracy (%) | MFLOPs | params (M) | s a round |"
    )
    # Nothing is known of the examples that were trained on.
    assert not (tmp_path / "o" / "compute.png").exists()
    cells = first.split(" | ")
    assert cells[4:6] == ["87.2", "0.61"] and " ± " in cells[2]


def test_flatness_is_of_the_weights_asked_for_and_clients_of_the_servers(
    four_runs, tmp_path
):
    """As MAN's Table 2, and FedAlign's Table 1 with the best round's model."""
    (path, *_), columns = four_runs, ["trace", "h_n_code", "mflops"]

    def left(**how):
        found = batch.analyses_for(str(path), "a", columns, "all_clients", how)
        return [(each.subject, each.flags) for each in found]

    hessian = "hessian", ("--weights=all_clients", "--clients=0")
    assert left() == [hessian, ("hessian", ()), ("cost", ())]
    analyse(path, weights="all_clients", trace=7.0)
    assert left() == [("hessian", ()), ("cost", ())]
    analyse(path, clients=16, trace=3.0, h_n_code=5.0)
    assert left() == []
    # More than there is of some, the same of others.
    assert left(clients=8) == [] and len(left(clients=17)) == 1
    assert len(left(examples=9)) == 2
    (row,) = experiment.compare(
        [path], tmp_path / "o", columns=columns, weights="all_clients"
    )
    assert (row["trace_mean"], row["h_n_code_mean"]) == (7.0, 5.0)
    assert "the mean of all clients' last models" in text_of(tmp_path / "o")


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(round_num=1, trace=1.0), "is of round 1, not 2"),
        (dict(lambda_max=1.0), "has no trace"),
        (dict(trace=1.0, examples=3), "different settings"),
    ],
)
def test_analyses_that_do_not_go_together_are_refused(
    four_runs, tmp_path, change, message
):
    for run in four_runs[:-1]:
        analyse(run, trace=1.0)
    analyse(four_runs[-1], **change)
    with pytest.raises(comparison.ComparisonError, match=message):
        experiment.compare(four_runs, tmp_path / "o", columns=["trace"])


def test_accuracy_by_compute_adds_up_what_a_client_trained_on(tmp_path, drawn):
    runs = [
        write_run(
            tmp_path / f"s{seed}",
            [0.2, 0.6],
            seed=seed,
            columns={"num_examples": count},
        )
        for seed, count in enumerate([100, 300])
    ]
    for run in runs:
        analyse(run)
    experiment.compare(runs, tmp_path / "o", columns=["mflops"])
    by_name = {name: (curves, options) for name, curves, options in drawn}
    (curve,), options = by_name["compute.png"]
    # Two clients a round; 262.237 x 10^6 an example; the seeds' mean is 100 a client.
    assert curve.rounds == pytest.approx([262.237e6 * n / 1e9 for n in (100, 200)])
    assert curve.mean == [0.2, 0.6]
    assert "10^9" in options["across"]
    assert by_name["curves.png"][0][0].rounds == [1, 2]
