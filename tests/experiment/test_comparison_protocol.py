"""Runs that are not alike: what a table says of them, and which are not compared."""

import json

import pytest

from tests.experiment.compared import lines_of, text_of, write_run
from tff_reg import experiment, settings
from tff_reg.data import digests


def table(tmp_path, *runs):
    experiment.compare(runs, tmp_path / "out", targets=[0.2])
    return text_of(tmp_path / "out")


def test_runs_that_end_not_finite_are_named_and_never_best(tmp_path):
    nan = float("nan")
    nobody = {"num_examples": 0, "rejected_clients": 2, "training_loss": nan}
    words = table(
        tmp_path,
        *(
            write_run(tmp_path / f"{p}{s}", values, process=p, seed=s, columns=columns)
            for s in (0, 1)
            for p, values, columns in (
                ("fedavg", [0.5, 0.3], {}),
                ("fedprox", [0.9, nan if s else 0.9], {}),
                # The server's model is as it was, and the best of all.
                ("moon", [0.9, 0.9], nobody),
            )
        ),
    )
    first, nan_at_end, idle = lines_of(tmp_path / "out")[2:5]
    # Nothing is known of the others, so it is not proven the best.
    assert first.startswith("| fedavg | 2 | 30.00 ± 0.00 | 48.00 ± 0.00 | 1.0 ± 0 |")

    start = "| fedprox | 2 | not finite | not finite | 1.0 ± 0 |"
    assert nan_at_end.startswith(start)
    assert idle.startswith("| moon | 2 | 90.00 ± 0.00 |") and "**" not in idle
    assert "fedprox: the last round's numbers not finite." in words
    assert (
        "moon: 8 updates of clients not finite and left out, 4 rounds in which nobody"
        " trained, the last round's numbers not finite."
    ) in words
    assert "fedavg: " not in words


def test_what_a_number_does_not_show_stands_below_the_table(tmp_path):
    words = table(
        tmp_path,
        *(
            write_run(
                tmp_path / f"{p}{s}",
                values,
                process=p,
                seed=s,
                columns={"training_loss": losses},
            )
            for s in (0, 1)
            for p, values, losses in (
                # Of the average 0.1, 0.14 and 0.146.
                ("fedavg", [0.1, 0.5, 0.2 + s / 9], [2.0, 1.0, 1.0]),
                ("fedprox", [0.1, 0.1, 0.2 + s / 9], [2.0, 1.0, 10.0]),
                ("man", [0.1, 0.1, 0.1], [2.0, 3.0, 1e25]),
            )
        ),
    )
    assert "fedprox: the same accuracy as fedavg in every seed." in words
    assert "man: a loss that grew 5e+24-fold." in words
    assert words.count("-fold") == words.count("the same accuracy as") == 1
    passed = "fedavg: the accuracy of 2 of 2 seeds reached 20 %, its moving average did"
    assert passed in words and "man: the accuracy" not in words
    runs = [tmp_path / f"{p}{s}" for p in ("fedavg", "fedprox") for s in (0, 1)]
    experiment.compare(runs, tmp_path / "out", targets=[0.2], target_measure="raw")
    assert "did not (--target_measure" not in text_of(tmp_path / "out")


def test_other_seeds_are_no_common_protocol(tmp_path):
    text = table(
        tmp_path,
        write_run(tmp_path / "a", [0.5], process="fedavg", seed=0),
        write_run(tmp_path / "b", [0.6], process="fedavg", seed=1),
        write_run(tmp_path / "c", [0.7], process="fedprox", seed=0),
    )
    assert "**" not in text and "no common protocol" in text
    assert "They differ in seeds: 0,1 (fedavg), 0 (fedprox)." in text


def test_runs_of_different_code_are_said_to_be(tmp_path):
    code = [{"tff_reg": "01234567"}]
    first = write_run(tmp_path / "a", [0.5], process="fedavg", code=code)
    second = write_run(tmp_path / "b", [0.6], process="fedprox", code=code)
    words = table(tmp_path, first, second)
    assert "same code" not in words
    assert words.count("Runs were made by other code: tff_reg 01234567 (now ") == 1
    code = [*code, {"tff_reg": "89abcdef"}]
    third = write_run(tmp_path / "c", [0.6], process="moon", code=code)
    seed = write_run(tmp_path / "d", [0.5], process="fedavg", code=code, seed=1)
    other = write_run(tmp_path / "e", [0.6], process="moon", code=code, seed=1)
    words = table(tmp_path, first, third, seed, other)
    assert "**" not in words and "Nothing is in bold: not all runs were made" in words
    said = (
        "They were not all made by the same code: tff_reg 01234567 (fedavg, moon),"
        " 89abcdef (fedavg, moon)."
    )
    assert said in words


def test_own_samplings_and_weights_are_no_common_protocol(tmp_path):
    first, same = ({"sample_fn": None, digests.KERAS_WEIGHTS: "a"} for _ in range(2))
    for number, (changes, what) in enumerate(
        [
            ({}, ""),
            ({"sample_fn": "in_turn"}, "sample_fn: none (fedavg), in_turn (man)"),
            (
                {digests.KERAS_WEIGHTS: "b"},
                "initial weights of the Keras model: a (fed",
            ),
        ]
    ):
        runs = [
            write_run(tmp_path / f"{number}a", [0.5], **first),
            write_run(tmp_path / f"{number}b", [0.5], process="man", **same | changes),
        ]
        told = table(tmp_path, *runs).partition("They differ in ")[2]
        assert told.startswith(what) and bool(told) == bool(what)


def test_a_table_has_the_remarks_on_its_runs_data_once(tmp_path):
    remarks = ["4 of 9 test examples are training examples, too"]
    runs = [
        write_run(tmp_path / f"{seed}", [0.5], seed=seed, remarks=remarks[:seed])
        for seed in (0, 1, 2)
    ]
    assert table(tmp_path, *runs).count("4 of 9 test examples are training") == 1


def test_unknown_settings_are_no_common_protocol(tmp_path):
    path = write_run(tmp_path / "a", [0.5], process="fedavg")
    config = json.loads((path / "config.json").read_text())
    for name in ("client_learning_rate", "local_epochs"):
        del config[name]
    (path / "config.json").write_text(json.dumps(config))
    other = write_run(tmp_path / "b", [0.6], process="fedprox")
    text = table(tmp_path, path, other)
    assert "**" not in text
    assert "no common protocol. Nothing is in bold." in text
    what = (
        "settings that are not recorded: local_epochs, client_learning_rate (fedavg)."
    )
    assert what in " ".join(text.split())


def other_settings(folder):
    return [
        write_run(folder / "a", [0.5], seed=0, batch_size=8),
        write_run(folder / "b", [0.5], seed=1, batch_size=16),
    ]


def other_splits_with_a_partition_seed(folder):
    return [
        write_run(folder / f"{s}", [0.5], seed=s, partition_seed=0, digest_of_split=s)
        for s in (0, 1)
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
    settings.SettingError,
)


@pytest.mark.parametrize(
    "make, wanted, words",
    [
        (lambda folder: [], {}, "no runs"),
        (lambda folder: {"fedavg": []}, {}, "no runs"),
        (not_finished, {}, "a has no finished run"),
        (lambda folder: [folder / "nothing"], {}, "nothing has no finished run"),
        (somebody_elses, {}, "has no finished run"),
        (other_settings, {}, "batch_size (8 and 16)"),
        (other_splits_with_a_partition_seed, {}, "differ in digest_of_split (0 and 1)"),
        (other_numbers_of_rounds, {}, "1 and 2 rounds"),
        (one_seed_twice, {}, "the same seed, 0"),
        (a_run, {"score_at_rounds": [0]}, "it must be"),
        (a_run, {"targets": [48]}, "each accuracy must be above 0 and at most 1"),
        (a_run, {"target_measure": "median"}, "target_measure"),
        (
            a_run,
            {"targets": [0.2], "target_model": "all_clients"},
            "a was not made with average",
        ),
        (
            a_run,
            {"columns": ["flops"]},
            "columns=flops: there is no flops (did you mean mflops?)",
        ),
    ],
)
def test_refusals(tmp_path, make, wanted, words):
    with pytest.raises(REFUSALS) as caught:
        experiment.compare(make(tmp_path), tmp_path / "out", **wanted)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_cosine_schedules_of_other_lengths_are_no_common_protocol(tmp_path):
    """A run that a callback ended decayed its rate as for all its rounds."""
    cosine = {"learning_rate_schedule": "cosine"}
    stopped = {"total_rounds": 100, **cosine}
    text = table(
        tmp_path,
        write_run(tmp_path / "a", [0.1, 0.5], process="fedavg", **cosine),
        write_run(tmp_path / "b", [0.2, 0.6], process="fedprox", **stopped),
    )
    assert "**" not in text and "2 of 100" in text
