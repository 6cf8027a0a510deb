"""`bin/analyze` as a user meets it: tables, files, exit codes."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import commands
from tests.experiment.finished import read_csv
from tff_reg import runtime
from tff_reg.analysis import curvature, hessian, plane
from tff_reg.commands import analyze, run as run_command
from tff_reg.experiment.report import trained
from tff_reg.lazy import tff


def run(*arguments):
    return commands.call(analyze.main, *arguments)


def test_cost_prints_a_table_and_writes_a_csv(tmp_path):
    path = tmp_path / "cost.csv"
    of_model = ["--model=cnn", "--norm=group", "--num_classes=100"]
    of_model += ["--image_shape=8,8,1", f"--csv={path}"]
    # GradAug needs what a CNN has not, and says so before anything is written.
    done = run("cost", "--processes=fedavg,gradaug", *of_model)
    assert "resnet" in commands.refusal(done) and not path.exists()
    done = run("cost", "--processes=fedavg,fedprox", *of_model)
    assert done.returncode == 0, done.stderr
    assert "\n| fedprox |" in done.stdout
    fedavg, fedprox = read_csv(path)
    assert list(fedavg)[:3] == ["process", "projector", "forward_mflops"]
    products = 64 * 9 * 32 + 16 * 9 * 32 * 64 + 256 * 128 + 128 * 100
    assert float(fedavg["forward_mflops"]) == products / 1e6
    weights = 9 * 32 + 9 * 32 * 64 + 256 * 128 + 128 + 128 * 100 + 100
    assert float(fedavg["stored_params_m"]) == weights / 1e6
    assert float(fedprox["stored_params_m"]) == 2 * weights / 1e6


def train(path, *flags):
    """A run of one round."""
    small = ["--model=cnn", "--norm=group", "--num_clients=3", "--total_rounds=1"]
    small += ["--local_epochs=1", f"--output_dir={path}"]
    done = commands.call(run_command.main, *small, *flags)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return train(path, "--process=man", "--man_strength=0.1", "--keep_best")


def test_a_runs_curvature_is_measured_once(run_dir, tmp_path, monkeypatch):
    cls = hessian.Hessian
    monkeypatch.setitem(cls.spectral_density.__kwdefaults__, "steps", 8)
    monkeypatch.setitem(cls.top_eigenvalues.__kwdefaults__, "tolerance", 0.1)
    before = set(run_dir.rglob("*"))
    arguments = (
        "hessian",
        f"--run_dir={run_dir}",
        "--examples=20",
        "--eigenvalues=2",
        "--clients=2",
        "--diagonal_samples=2",
        "--trace_samples=2",
        "--density_samples=1",
    )
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    folder = run_dir / "analysis"
    # Other tests analyse the run, too.
    written = {path.name for path in set(folder.iterdir()) - before}
    tables = {"eigenvalues.csv", "density.csv", "clients.csv", "hessian.csv"}
    assert written == {*tables, "hessian.json", "density.png", "eigenvalues.png"}
    assert before < set(run_dir.rglob("*"))
    quantities = {
        row["quantity"]: row["value"] for row in read_csv(folder / "hessian.csv")
    }
    assert " ".join(quantities) == (
        "lambda_max trace h_n h_d h_n_code h_d_code drift drift_agreement"
        " gradient_agreement"
    )
    eigenvalues = [float(r["eigenvalue"]) for r in read_csv(folder / "eigenvalues.csv")]
    assert eigenvalues[0] == float(quantities["lambda_max"]) >= abs(eigenvalues[1])
    clients = read_csv(folder / "clients.csv")
    assert [row["client"] for row in clients] == ["client_0000", "client_0001"]
    assert float(quantities["drift"]) == pytest.approx(
        sum(float(row["drift"]) for row in clients) / 2
    )
    of_run = trained.load(run_dir)
    model = of_run.model()
    for row in clients:
        own = of_run.client_examples(row["client"])
        x, y = curvature._drawn(own, 20, 0, row["client"])
        with tf.GradientTape() as tape:
            logits = model.predict_on_batch(tf.constant(x), training=False)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        gradient = tape.gradient(loss, model.trainable_variables)
        norm = float(tf.linalg.global_norm(gradient))
        assert float(row["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    again = run(*arguments)
    assert again.stdout == done.stdout
    # Nothing was computed again.
    assert "eigenvalues" in done.stderr and "eigenvalues" not in again.stderr
    kept = (folder / "hessian.json").read_text()
    for changed in (kept.replace('"rows"', '"lines"'), kept.replace("0.", "1.", 1)):
        (tmp_path / "hessian.json").write_text(changed)
        assert curvature.read(tmp_path) is None
    shutil.copy(folder / "hessian.json", tmp_path)
    assert set(curvature.read(tmp_path)) == {"of", "results"}


def moved(weights):
    trainable = [w + 1 for w in weights.trainable]
    return tff.learning.models.ModelWeights(trainable, weights.non_trainable)


def test_clients_that_do_not_move_have_no_direction(run_dir, tmp_path, monkeypatch):
    def stay(of_run, client_ids):
        first, second = client_ids  # Each began elsewhere.
        began = {first: of_run.weights, second: moved(of_run.weights)}
        return began, began

    monkeypatch.setattr(trained.TrainedRun, "train_clients", stay)
    said = []
    found = curvature.measure(
        trained.load(run_dir),
        curvature.Settings(20, trace_samples=2, clients=2, diagonal_samples=2),
        tmp_path,
        report=said.append,
    )
    clients = found["results"]["clients"]
    assert (clients["drift"], clients["drift_agreement"]) == (0, None)
    assert clients["gradient_agreement"] is not None
    assert any(line.startswith("No drift_agreement: a client") for line in said)


def test_a_runs_cost_and_partition(run_dir, tmp_path):
    done = run("cost", f"--run_dir={run_dir}")
    assert done.returncode == 0, done.stderr
    (row,) = read_csv(run_dir / "analysis" / "cost.csv")
    products = 64 * 9 * 32 + 16 * 9 * 32 * 64 + 256 * 128 + 128 * 10
    assert (row["process"], float(row["forward_mflops"])) == ("man", products / 1e6)
    sent = json.loads((run_dir / "config.json").read_text())["bytes_per_client"]
    megabytes = [float(row[f"megabytes_{where}"]) for where in ("down", "up")]
    assert megabytes == [each / 1e6 for each in sent]
    done = run("partition", f"--run_dir={run_dir}", f"--output_dir={tmp_path / 'p'}")
    assert done.returncode == 0, done.stderr
    assert "| client_0002 |" in done.stdout
    assert (
        sum(int(r["examples"]) for r in read_csv(tmp_path / "p" / "partition.csv"))
        == 1437
    )
    assert (tmp_path / "p" / "partition.png").read_bytes().startswith(b"\x89PNG")
    given = ("--task=digits", "--client_test_share=0.2", "--label_noise=0,0.5")
    done = run("partition", *given, f"--output_dir={tmp_path / 'p'}")
    assert "20 clients hold 1,140 of 1,437 examples" in done.stdout
    of_task = "digits, dirichlet_balanced(0.3), 20 clients, seed 0\n"
    assert done.stdout.startswith(of_task), done.stderr
    held = read_csv(tmp_path / "p" / "partition.csv")
    assert [row["wrong_labels"] for row in held] == ["0.0", "0.4912"] * 10  # 28 of 57.
    assert (tmp_path / "p" / "skews.png").read_bytes().startswith(b"\x89PNG")


def test_a_recipes_partition(tmp_path):
    done = run(
        "partition",
        "--recipe=fedmlb/table1/fedavg-tiny-imagenet",
        "--synthetic_data",
        "--scale=tiny",
        f"--output_dir={tmp_path / 'p'}",
    )
    assert done.returncode == 0, done.stderr
    held = read_csv(tmp_path / "p" / "partition.csv")
    assert {row["client"] for row in held} == {f"client_000{n}" for n in range(4)}
    assert sum(int(row["examples"]) for row in held) == 48


def test_a_runs_landscape_goes_on_where_it_was(run_dir, tmp_path):
    arguments = ("landscape", f"--run_dir={run_dir}", "--points=3", "--examples=40")
    again = ("--directions=random", f"--output_dir={tmp_path}", "--highest=9")
    done = run(*arguments, *again)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "landscape.png").read_bytes().startswith(b"\x89PNG")
    file = run_dir / "analysis" / "landscape.npz"
    with np.load(file) as stored:
        of, losses = stored["of"], stored["losses"]
    assert losses.shape == (3, 3) and np.isfinite(losses).all()
    # A row is missing; the others are believed.
    halfway = np.where(np.arange(3)[:, None] == 2, np.nan, losses + 100)
    np.savez(file, of=of, losses=halfway)
    assert run(*arguments, *again).returncode == 0
    with np.load(file) as stored:
        np.testing.assert_array_equal(stored["losses"][:2], halfway[:2])
        np.testing.assert_allclose(stored["losses"][2], losses[2], rtol=1e-5)
    rows = read_csv(run_dir / "analysis" / "landscape.csv")
    assert float(rows[4]["loss"]) == halfway[1, 1]
    assert (float(rows[5]["first"]), float(rows[5]["second"])) == (1.0, 0.0)


def test_the_singular_values_are_those_of_the_classifier(run_dir):
    done = run("singular_values", f"--run_dir={run_dir}")
    assert done.returncode == 0, done.stderr
    with np.load(run_dir / "final_weights.npz") as weights:
        expected = np.linalg.svd(weights["classifier/dense/kernel"], compute_uv=False)
    rows = read_csv(run_dir / "analysis" / "singular_values.csv")
    found = [float(row["singular_value"]) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (run_dir / "analysis" / "singular_values.png").exists()


@pytest.mark.slow
def test_runs_of_one_name_keep_their_own_results(run_dir, tmp_path):
    flags = ("--process=fedavg", "--learning_rate_schedule=cosine")
    other = train(tmp_path / "others" / run_dir.name, *flags)
    names = [str(path) for path in (run_dir, other)]
    done = run("singular_values", f"--run_dir={run_dir},{other}")
    head = [cell.strip() for cell in done.stdout.splitlines()[0].split("|")[1:-1]]
    assert head == ["rank", *names]
    done = run("hessian", f"--run_dir={other}", "--examples=20", "--trace_samples=2")
    assert f"| {other.name} |" in done.stdout, done.stderr  # One run needs no more.
    rows = read_csv(other / "analysis" / "hessian.csv")
    (drift,) = (row["value"] for row in rows if row["quantity"] == "drift")
    assert float(drift) > 0.01  # Also after the last round of a cosine schedule.
    # In one directory, one after the other: none is taken for the other.
    with runtime.running("in_process"):
        for measure, wanted in (
            (curvature.measure, curvature.Settings(20, trace_samples=2, clients=0)),
            (plane.measure, plane.Settings("random", points=3, examples=20)),
        ):
            first, second, again = (
                str(measure(trained.load(path), wanted, tmp_path / folder))
                for path, folder in ((run_dir, "x"), (other, "x"), (other, "y"))
            )
            assert first != second == again


def test_other_weights_have_a_folder_of_their_own(run_dir):
    server = {path: path.read_bytes() for path in run_dir.glob("analysis/*.*")}
    done = run("singular_values", f"--run_dir={run_dir}", "--weights=best")
    assert done.returncode == 0, done.stderr
    done = run(
        "hessian",
        f"--run_dir={run_dir}",
        "--weights=best",
        "--examples=20",
        "--trace_samples=2",
    )
    assert done.returncode == 0, done.stderr
    folder = run_dir / "analysis" / "best"
    assert (folder / "singular_values.png").exists()
    rows = read_csv(folder / "hessian.csv")
    # Clients train the server's model: nothing is said of theirs.
    assert [row["quantity"] for row in rows] == ["lambda_max", "trace"]
    assert {path: path.read_bytes() for path in server} == server


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "say what to look at"),
        (["cost"], "--processes: it is missing"),
        (["cost", "--processes=fedavgg"], "'fedavgg'"),
        (["cost", "--processes=fedavg", "--man_strength=1"], "--man_strength"),
        (["cost", "--processes=fedavg", "--image_shape=32"], "--image_shape=32"),
        (["cost", "--processes=fedavg", "--csv=/no/such/x.csv"], "--csv"),
        (["landscape", "--run_dir=RUN", "--points=4"], "--points"),
        (["hessian"], "--run_dir: it is missing"),
        (["hessian", "--run_dir=RUN/none"], "there is no run"),
        (["hessian", "--run_dir=RUN", "--clients=1"], "--clients"),
        (["hessian", "--run_dir=RUN", "--weights=best", "--clients=2"], "--clients=2"),
        (["landscape", "--run_dir=RUN", "--weights=all_clients"], "averages_all_clien"),
        (["partition", "--run_dir=RUN,RUN"], "give one run"),
        (["partition", "--run_dir=RUN", "--seed=1"], "--seed"),
        (["partition", "--partition=shards"], "--classes_per_client"),
        (["partition", "--recipe=fedalign"], "--recipe=fedalign: There is no recipe"),
        (["hessian", "--run_dir=RUN", "--output_dir=/proc/x"], "be written to"),
        (["hessian", "--run_dir=RUN", "--recipe=man"], "--recipe: hessian does not"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run_dir, arguments, said):
    done = run(*(argument.replace("RUN", str(run_dir)) for argument in arguments))
    assert said in commands.refusal(done, "analyze")
