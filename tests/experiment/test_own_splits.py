"""Splits as they lie on a laboratory's disk, and each client's own test examples."""

import json

import numpy as np
import pytest

import tff_reg
from tests import commands
from tests.experiment.own_runs import SILENT, TEST, TRAIN, keras_model
from tff_reg.commands import run
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.settings import SettingError

ONE_ROUND = dict(total_rounds=1, local_epochs=1, clients_per_round=2)
PARTS = {"0": {"train": [*range(40)], "test": [*range(40, 50)]}, "2": [*range(60, 99)]}


def test_the_number_of_clients_and_their_tests_follow_from_the_file(tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps({**PARTS, "10": [100, 101]}))
    config = RunConfig(process="fedavg", split_file=str(path)).resolved()
    assert (config.partition, config.num_clients) == ("split_file", 3)
    assert config.clients_per_round == 3

    flags = [f"--{name}={value}" for name, value in ONE_ROUND.items()]
    flags += [f"--split_file={path}", f"--output_dir={tmp_path / 'run'}"]
    done = commands.call(run.main, "--process=fedavg", "--client_evaluation", *flags)
    assert done.returncode == 0, done.stderr
    rows = tff_reg.tables.from_csv((tmp_path / "run" / "clients.csv").read_text())
    assert [row["client"] for row in rows] == ["0", "2", "10"]
    assert [row["examples"] for row in rows] == ["40", "39", "2"]
    assert [bool(row["accuracy"]) for row in rows] == [True, False, False]
    # Tenths: ten examples are its tests.
    assert float(rows[0]["accuracy"]) * 10 == pytest.approx(
        round(float(rows[0]["accuracy"]) * 10)
    )


def test_a_file_of_another_kind_is_told_before_anything_starts(tmp_path):
    path = tmp_path / "split.pkl"
    path.write_bytes(b"cos\nsystem\n(S'touch x'\ntR.")
    done = commands.call(run.main, "--process=fedavg", f"--split_file={path}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "is refused: it asks for os.system" in done.stderr
    path = tmp_path / "split.json"
    path.write_text(json.dumps(PARTS))
    with pytest.raises(SettingError, match="client_test_share=0.2: leave it out: th"):
        tff_reg.run(
            "fedavg", split_file=str(path), client_test_share=0.2, progress=SILENT
        )


def test_clients_are_called_as_in_the_file(tmp_path):
    path = tmp_path / "split.npz"
    parts = {"west/train": range(40), "west/test": range(40, 50), "east": range(50, 90)}
    np.savez(path, **{name: np.array(own) for name, own in parts.items()})
    given = dict(model=keras_model(), client_data=TRAIN, test_data=TEST)
    given |= dict(split_file=str(path), client_evaluation=True, progress=SILENT)
    west, east = tff_reg.run("fedavg", **ONE_ROUND, **given).clients
    assert (west["client"], east["client"]) == ("west", "east")
    assert (west["examples"], east["accuracy"]) == (40, None)


def test_clients_are_tested_on_the_tests_of_their_own():
    (x, y), (x_test, y_test) = TRAIN, TEST
    clients = {"north": (x[:80], y[:80]), "south": (x[80:], y[80:])}
    tests = {"south": (x_test[:25], y_test[:25])}
    given = dict(model=keras_model(), client_data=clients, progress=SILENT)
    result = tff_reg.run(
        "fedavg", **ONE_ROUND, **given, test_data=tests, client_evaluation=True
    )
    north, south = result.clients
    predicted = result.model.predict(x_test[:25], verbose=0).argmax(-1)
    right = np.mean(predicted == y_test[:25, 0])
    assert (north["accuracy"], south["accuracy"]) == (None, pytest.approx(right))
    assert result.summary["final_accuracy"] == pytest.approx(right)
    with pytest.raises(ValueError, match="tests of some of these clients by the sa"):
        tff_reg.run("fedavg", **given, test_data={"west": TEST})
    with pytest.raises(ValueError, match="have tests already: leave out"):
        tff_reg.run("fedavg", **given, test_data=tests, client_test_share=0.1)
