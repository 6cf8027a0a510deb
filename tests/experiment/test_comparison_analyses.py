"""A comparison's columns of what `bin/analyze` leaves."""

import json
import types

import pytest

from tests.experiment.compared import lines_of, text_of, write_run
from tff_reg import experiment
from tff_reg.analysis import cost, curvature
from tff_reg.experiment.report import (
    comparison,
    finished_runs,
    quantities,
    trained,
)
from tff_reg.experiment.series import plan as series


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
    columns = ["trace", "score", "mflops", "params", "seconds"]
    for number, run in enumerate(four_runs):
        with pytest.raises(comparison.ComparisonError, match="bin/analyze hessian"):
            experiment.compare(four_runs, tmp_path / "o", columns=columns)
        assert not quantities.is_analysed(run, columns)
        analyse(run, trace=10.0 * number, clients=1)
        assert quantities.is_analysed(run, columns)
        assert not quantities.is_analysed(run, columns, settings={"clients": 2})
    rows = experiment.compare(four_runs, tmp_path / "o", columns=columns)
    # The runs are of fedavg, fedavg, fedprox, fedprox, or by seeds.
    traces = sorted(row["trace_mean"] for row in rows)
    assert sum(traces) == 30.0
    assert rows[0]["mflops_mean"] == 87.237
    head, _, first, *_ = lines_of(tmp_path / "o")
    assert head == (
        "| method | seeds | H_T | accuracy (%) | difference to fedavg (points) |"
        " p (Holm) | MFLOPs | params (M) | s a round |"
    )
    # Nothing is known of the examples that were trained on.
    assert not (tmp_path / "o" / "compute.png").exists()
    cells = first.split(" | ")
    assert cells[6:8] == ["87.2", "0.61"] and " ± " in cells[2]


def test_flatness_is_of_the_weights_asked_for_and_clients_of_the_servers(
    four_runs, tmp_path
):
    """As MAN's Table 2, and FedAlign's Table 1 with the best round's model."""
    (path, *_), columns = four_runs, ["trace", "h_n_code", "mflops"]
    run = series.GivenRun(str(path), "a")

    def left(**how):
        how = {"examples": 512, **how}
        found = series.analyses_of(run, columns, "all_clients", how)
        return [(each.subject, each.flags) for each in found]

    of_clients = "hessian", ("--examples=512",)
    flags = "--weights=all_clients", *of_clients[1], "--clients=0"
    assert left() == [("hessian", flags), of_clients, ("cost", ())]
    analyse(path, weights="all_clients", trace=7.0)
    assert left() == [of_clients, ("cost", ())]
    analyse(path, clients=16, trace=3.0, h_n_code=5.0, examples=4)
    assert left() == [of_clients]
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
    "change, weights, message",
    [
        (dict(round_num=1, trace=1.0), "server", "is of round 1, not 2"),
        (dict(lambda_max=1.0), "server", "has no trace"),
        (dict(trace=1.0, examples=3), "server", "different settings"),
        (dict(h_n=1.0, examples=3), "best", "different settings"),
    ],
)
def test_analyses_that_do_not_go_together_are_refused(
    four_runs, tmp_path, change, weights, message
):
    columns = ["trace", *(["h_n"] if weights == "best" else [])]
    for run in four_runs:
        analyse(run, trace=1.0, h_n=1.0)
        analyse(run, trace=1.0, weights="best")
    analyse(four_runs[-1], **change)
    with pytest.raises(comparison.ComparisonError, match=message):
        experiment.compare(four_runs, tmp_path / "o", columns=columns, weights=weights)


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
    ((by_round,), _), ((curve,), options) = drawn
    # Two clients a round; 262.237 x 10^6 an example; the seeds' mean is 100 a client.
    assert curve.rounds == pytest.approx([262.237e6 * n / 1e9 for n in (100, 200)])
    assert curve.mean == [0.2, 0.6]
    assert "10^9" in options["across"]
    assert by_round.rounds == [1, 2]


def test_compute_is_that_of_the_clients_who_counted(tmp_path):
    columns = {"num_examples": [100, 0, 300], "cohort/counted": [1, 0, 2]}
    path = write_run(tmp_path / "run", [0.1, 0.2, 0.3], columns=columns)
    assert finished_runs.read(path).examples == {1: 100, 2: 100, 3: 250}


def test_the_last_five_take_five_evaluated_rounds():
    config = types.SimpleNamespace(
        process="fedavg", total_rounds=8, rounds_per_evaluation=2
    )
    quantities.check_measured(["score"], [config])
    with pytest.raises(ValueError, match="last_five: the runs need 5 evaluated rounds"):
        quantities.check_measured(["last_five"], [config])
    config.total_rounds = 9  # The last round is evaluated, too.
    quantities.check_measured(["last_five"], [config])


def test_references_cost_what_they_compute_and_refuse_what_they_lack(tmp_path):
    columns, network = {"num_examples": 200}, dict(image_shape=(4, 4, 1), num_classes=3)
    for process, count, column in (("local", 100, "trace"), ("central", 200, "drift")):
        path = write_run(tmp_path / process, [0.5], process=process, columns=columns)
        assert finished_runs.read(path).examples == {1: count}
        found = cost.measure(process, model="cnn", norm="group", **network)
        assert found.megabytes_down == found.megabytes_up == 0 < found.forward_mflops
        config = types.SimpleNamespace(process=process)
        with pytest.raises(ValueError, match=f"{column}: runs of {process} have none"):
            quantities.check_measured([column], [config])
    with pytest.raises(ValueError, match="no model that clients share"):
        trained.load(tmp_path / "local")
    run = types.SimpleNamespace(config=config, kind="server")
    with pytest.raises(ValueError, match="clients=2: it must be 0: central has one"):
        curvature.measure(run, curvature.Settings(clients=2), tmp_path)


def test_the_cost_to_a_target_is_that_of_the_rounds_to_it(tmp_path, drawn):
    runs = [
        write_run(
            tmp_path / f"{process}{seed}",
            accuracies,
            process=process,
            seed=seed,
            bytes_per_client=[3_000_000, 500_000] if process == "man" else None,
            columns={"num_examples": 100, "seconds": [4.0, 1.0, 1.5]},
        )
        for process in ("man", "kd")
        for seed, accuracies in enumerate([[0.1, 0.6, 0.6], [0.2, 0.3, 0.7]])
    ]
    for run in runs:
        analyse(run)
    asked = {"targets": [0.6, 0.65], "target_measure": "raw"}
    columns = ["score", "rounds", "megabytes", "seconds", "multiply_adds"]
    man, kd = experiment.compare(runs, tmp_path / "o", columns=columns, **asked)
    # Rounds 2 and 3: 3.5 MB each; 50 examples a client of 262.237 x 10^6.
    assert (man["rounds_to_0.6_mean"], man["megabytes_to_0.6_mean"]) == (2.5, 8.75)
    assert man["seconds_to_0.6_mean"] == kd["seconds_to_0.6_mean"] == 5.75
    adds = [n * 50 * 0.262237 for n in (2, 3)]
    assert man["multiply_adds_to_0.6_mean"] == pytest.approx(sum(adds) / 2)
    assert kd["megabytes_to_0.6_mean"] is man["seconds_to_0.65_mean"] is None
    head, _, first, *_ = (line.split(" | ") for line in lines_of(tmp_path / "o"))
    cells = dict(zip(head, first))
    assert cells["MB to 60 %"] == "8.75 ± 2.5" and cells["s to 65 %"] == "-"
    assert cells["10^9 multiply-adds to 60 %"] == "32.78 ± 9.3"
    assert "received, sent and computed by a client" in text_of(tmp_path / "o")
    by_cost = {options["across"].split()[0]: c for c, options in drawn}
    assert by_cost["Seconds"][0].rounds == [4.0, 5.0, 6.5]
    assert "Megabytes" not in by_cost  # Of kd they are not known.
    assert (tmp_path / "o" / "curves_seconds.pdf").exists()
    experiment.compare(runs[:2], tmp_path / "o", columns=columns[:3], **asked)
    assert drawn[-1][0][0].rounds == [3.5, 7.0, 10.5]
    with pytest.raises(ValueError, match="megabytes is that to a score: give tar"):
        experiment.compare(runs, tmp_path / "o", columns=["megabytes"])


def test_runs_that_end_early_are_compared_and_a_test_set_that_decides_is_told(
    tmp_path, drawn
):
    def text(**settings):
        early = dict(patience=1, total_rounds=9, **settings)
        accuracies = [[0.5, 0.7], [0.5, 0.5, 0.6]]
        runs = [
            write_run(tmp_path / f"{p}{s}", accuracies[s], process=p, seed=s, **early)
            for p in ("fedavg", "man")
            for s in (0, 1)
        ]
        experiment.compare(runs, tmp_path / "o")
        return text_of(tmp_path / "o")

    found = text()
    assert "after 2 to 3 rounds" in found and "total_rounds=9" in found
    assert found.count("WARNING: the test set decided when runs end") == 1
    assert drawn[0][0][0].mean == pytest.approx([0.5, 0.6, 0.65])  # 0.7 stays.
    assert drawn[0][0][0].rounds == [1, 2, 3]
    assert "WARNING" not in text(validation_share=0.1)
    # The seed that never reaches 0.65 ended after 3 rounds; without accuracies: none.
    for name, cell in (("man", "3+"), ("local", "-")):
        runs = [tmp_path / "man0", tmp_path / "man1"]
        if name == "local":
            runs = [write_run(tmp_path / "l", [None, None], process="local")]
        asked = dict(targets=[0.65], target_measure="raw")
        experiment.compare(runs, tmp_path / "o", **asked)
        assert lines_of(tmp_path / "o")[2].split(" | ")[4] == cell
    # The same by a callback.
    reason = {"reason": "?", "by": "EarlyStopping", "total_rounds": 9}
    for path in (tmp_path / "man0", tmp_path / "man1"):
        for name, changes in (
            ("config.json", {"patience": None, "validation_share": None}),
            ("summary.json", {"stopped_early": reason}),
        ):
            values = {**json.loads((path / name).read_text()), **changes}
            (path / name).write_text(json.dumps(values))
    experiment.compare([tmp_path / "man0", tmp_path / "man1"], tmp_path / "o")
    assert "WARNING: the test set" in text_of(tmp_path / "o")


def test_runs_that_stop_at_other_targets_are_not_one_method(tmp_path):
    runs = [
        write_run(
            tmp_path / f"{s}",
            [0.5],
            seed=s,
            stop_at_target=True,
            targets=[target],
            target_measure="raw",
            target_model="server",
        )
        for s, target in enumerate((0.3, 0.5))
    ]
    with pytest.raises(comparison.ComparisonError, match="differ in stop_at_target"):
        experiment.compare(runs, tmp_path / "o")
    found = {"a": runs[:1], "b": runs[1:]}
    experiment.compare(found, tmp_path / "o")
    told = "stop_at_target: 0.3 (raw, server) (a), 0.5 (raw, server) (b)"
    assert told in text_of(tmp_path / "o")


def test_an_independent_cohort_is_never_empty(tmp_path):
    # Of clients with an example each: 1 / (1 - (1 - 1/3)^3) of them a round.
    cohorts = dict(client_sampling="independent", num_clients=3, clients_per_round=1)
    run = write_run(tmp_path, [0.5], columns={"num_examples": 27 / 19}, **cohorts)
    assert finished_runs.read(run).examples == {1: pytest.approx(1)}
