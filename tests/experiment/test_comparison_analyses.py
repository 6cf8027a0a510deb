"""A comparison's columns of what `bin/analyze` leaves."""

import json

import pytest

from tests.experiment.compared import lines_of, text_of, write_run
from tff_reg import experiment
from tff_reg.experiment.report import comparison, finished_runs
from tff_reg.experiment.series import batch


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
        analyse(run, trace=10.0 * number, clients=1)
        assert finished_runs.is_analysed(run, columns)
        assert not finished_runs.is_analysed(run, columns, settings={"clients": 2})
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
    ((by_round,), _), ((curve,), options) = drawn
    # Two clients a round; 262.237 x 10^6 an example; the seeds' mean is 100 a client.
    assert curve.rounds == pytest.approx([262.237e6 * n / 1e9 for n in (100, 200)])
    assert curve.mean == [0.2, 0.6]
    assert "10^9" in options["across"]
    assert by_round.rounds == [1, 2]
