"""Each client's accuracy, against NumPy."""

import json
import types

import numpy as np
import pytest

from tests.experiment import finished
from tests.experiment.own_runs import SILENT, TEST, TRAIN, keras_model
from tff_reg import data, experiment, settings
from tff_reg.experiment import start
from tff_reg.experiment.rounds import client_evaluation, remarks, runs
from tff_reg.tasks import pacs

X, Y = (TRAIN[0] / 255).astype(np.float32), TRAIN[1][:, 0]
# Three skewed clients, and one of a class that the test set lacks.
CLIENTS = {
    name: (X[chosen], Y[chosen])
    for name, chosen in {
        "zeros": np.flatnonzero(Y == 0)[:40],
        "no ones": np.flatnonzero(Y != 1)[-50:],
        "mixed": np.arange(30),
        "two": np.flatnonzero(Y == 2)[:9],
    }.items()
}
_IS_TESTED = TEST[1][:, 0] < 2
TESTED = (TEST[0][_IS_TESTED] / 255).astype(np.float32), TEST[1][_IS_TESTED]

# Of a process whose weights nobody looks at.
_PROCESS = types.SimpleNamespace(get_model_weights=lambda state: None)
_RUN = types.SimpleNamespace(
    process=_PROCESS, state=None, weights_of=None, shares_model=True
)


def run(output_dir=None, **changes):
    given = dict(process="fedprox", clients_per_round=2, total_rounds=2)
    given |= dict(client_data=CLIENTS, test_data=TESTED, client_evaluation=True)
    given |= dict(model=keras_model(), client_learning_rate=0.2, progress=SILENT)
    given |= dict(learning_rate_schedule="exponential", learning_rate_decay=0.5)
    return start.run(**{**given, "output_dir": output_dir, **changes})


def test_expected_accuracies_are_recalls_weighted_by_the_clients_classes(tmp_path):
    result = run(str(tmp_path / "whole"), client_evaluation=1)
    shares = result.model.predict(TESTED[0], verbose=0)
    labels, predicted = TESTED[1][:, 0], shares.argmax(-1)
    right, losses = predicted == labels, -np.log(shares[range(len(labels)), labels])
    for row in result.clients[:3]:
        own = CLIENTS[row["client"]][1]
        tested = own[own < 2]  # Only these classes have test examples.
        for name, values in (("accuracy", right), ("loss", losses)):
            by_class = [values[labels == c].mean() for c in (0, 1)]
            assert row[name] == pytest.approx(np.mean([by_class[c] for c in tested]))
        assert (row["examples"], row["classes"]) == (len(own), len({*own}))
    assert (result.clients[3]["accuracy"], result.clients[3]["classes"]) == (None, 1)
    config = (tmp_path / "whole/config.json").read_text()
    assert "1 of 4 clients have no class of the test examples" in config
    found = [each["accuracy"] for each in result.clients[:3]]
    assert result.summary["clients_mean"] == pytest.approx(np.mean(found))
    average = np.average(found, weights=[40, 50, 30])
    assert result.summary["clients_weighted_mean"] == pytest.approx(average)
    assert [row["clients/worst"] is not None for row in result.rows] == [True, True]
    for number, row in enumerate(finished.read_csv(tmp_path / "whole/per_class.csv")):
        counts = [int(row[f"predicted/{c}"]) for c in range(3)]
        assert counts == np.bincount(predicted[labels == number], minlength=3).tolist()
    # Only after the last round, in another process, also where that has ended.
    for rounds in (1, 2, 2):
        again = run(str(tmp_path / "parts"), total_rounds=rounds)
    assert [row["clients/mean"] is None for row in again.rows] == [True, False]
    for name in ("clients.csv", "per_class.csv", "clients.png"):
        whole, parts = ((tmp_path / w / name).read_bytes() for w in ("whole", "parts"))
        assert whole == parts


def test_held_out_examples_are_drawn_by_the_seed_and_tested(tmp_path):
    positions = np.split(np.arange(200), [3, 60])
    clients = data.ArrayClientData(X, Y, positions)
    ready, other = clients.hold_out(0.25, 7), clients.hold_out(0.25, 8)
    for name, own in zip(clients.client_ids, positions):
        parts = [each.client_positions(name) for each in (ready, ready.tests)]
        assert sorted(np.concatenate(parts)) == own.tolist()
        assert len(parts[1]) == max(1, round(0.25 * len(own)))
    assert {*parts[1]} != {*other.tests.client_positions(name)}
    shared = data.ArrayClientData(X, Y, [np.arange(120), np.arange(60, 200)])
    shared = shared.hold_out(0.2, seed=0)
    drawn = dict(client_data=clients, client_test_share=0.25, partition_seed=7)
    for given, split in ((drawn, ready), ({"client_data": shared}, shared)):
        result = run(**given)
        predicted = result.model.predict(X, verbose=0).argmax(-1)
        trained = np.concatenate([*map(split.client_positions, split.client_ids)])
        for row in result.clients:
            held = split.tests.client_positions(row["client"])
            assert row["accuracy"] == pytest.approx(np.mean(predicted[held] == Y[held]))
            assert row["examples"] == len(split.client_positions(row["client"]))
            assert {*trained}.isdisjoint(held)
    with pytest.raises(ValueError, match="Leave client_test_share out"):
        run(client_data=shared, client_test_share=0.2)
    few = {**CLIENTS, "single": (X[:1], Y[:1])}
    why = "client_test_share=0.2: single would hold out all of its 1 examples"
    with pytest.raises(settings.SettingError, match=why):
        run(str(tmp_path / "no"), client_data=few, client_test_share=0.2)
    assert not (tmp_path / "no").exists()


def test_a_copy_takes_the_steps_of_the_next_round():
    """With one client and whole batches, finetuning is the next round of FedAvg."""
    one = {"client": CLIENTS["mixed"]}
    given = dict(client_data=one, clients_per_round=1, batch_size=50, local_epochs=3)
    given["process"] = "fedavg"
    tuned = run(**given, total_rounds=1, finetune_epochs=3).clients[0]
    (after,) = run(**given, total_rounds=2).clients
    assert tuned["finetuned_loss"] == pytest.approx(after["loss"], rel=1e-5)
    assert tuned["finetuned_loss"] != pytest.approx(tuned["loss"], rel=1e-3)
    rates = dict(client_learning_rate=lambda r: 0.2 * 0.5 ** (r - 1))
    rates |= dict(learning_rate_schedule=None, learning_rate_decay=None)
    (same,) = run(**given, **rates, total_rounds=1, finetune_epochs=3).clients
    assert same["finetuned_loss"] == pytest.approx(after["loss"], rel=1e-5)


def test_a_model_of_ones_own_has_recalls_in_each_domain(tmp_path):
    generator, domain = np.random.default_rng(0), np.arange(240) % 4
    x = generator.integers(0, 256, [240, 8, 8, 3], dtype=np.uint8)
    y = generator.integers(0, 2, 240)
    content = dict(x=x, y=y, domain=domain, class_names=[*"ab"], domain_names=[*"pqrs"])
    np.savez(tmp_path / "pacs.npz", **content)
    given = dict(task="pacs", data_dir=str(tmp_path / "pacs.npz"), partition="domain")
    given |= dict(num_clients=4, model=keras_model(2, (8, 8, 3)), augmentation="none")
    result = run(**given, client_data=None, test_data=None)
    found = pacs.load(given["data_dir"])
    predicted = result.model.predict(found.x_test).argmax(-1)
    for own, row in enumerate(result.clients):
        shares = np.bincount(found.y_train[found.domains == own]) / row["examples"]
        tested = [(found.y_test == c) & (found.test_domains == own) for c in (0, 1)]
        recalls = [np.mean(predicted[each] == c) for c, each in enumerate(tested)]
        assert row["accuracy"] == pytest.approx(shares @ recalls)


def test_domains_have_recalls_of_their_own():
    """Classes a, b in domains s, t; predictions are as given, -1 for a NaN."""
    labels, domains = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 0, 1])
    predicted, losses = np.array([0, 0, 1, -1, 1]), np.array([1.0, 2.0, 4.0, 8.0, 0.5])
    evaluation = types.SimpleNamespace(
        examples=(labels, labels),
        outcomes=lambda weights, x, y, rows: (predicted[rows], losses[rows]),
    )
    clients = data.ArrayClientData(
        np.zeros([6, 1], np.float32), np.array([0, 0, 0, 1, 1, 1]), [[0, 1, 2, 3], [4]]
    )
    own = np.array([1, 1, 0, 0, 1, 1])
    of_task = dict(class_names="ab", domain_names="st", client_data=clients)
    task = types.SimpleNamespace(**of_task, domains=own, test_domains=domains)
    measured = client_evaluation.ClientEvaluation(evaluation, task)(_RUN)
    # a in t: 1/2, twice; a in s: 1; b in s: 0. b in t: 1.
    assert [row["accuracy"] for row in measured.rows] == [0.5, 1.0]
    assert [row["loss"] for row in measured.rows] == [(3 + 3 + 1 + 8) / 4, 0.5]
    recalls = {row["class"] + row["domain"]: row["recall"] for row in measured.classes}
    assert recalls == {"as": 1.0, "at": 0.5, "bs": 0.0, "bt": 1.0}


def test_clients_whose_domain_no_test_example_has_are_told():
    x, labels = np.zeros([6, 8, 8, 1], np.float32), np.array([0, 1] * 3)
    clients = data.ArrayClientData(x, labels, [[0, 1, 2, 3], [4, 5]])
    task = types.SimpleNamespace(
        client_data=clients,
        class_names="ab",
        domain_names="st",
        domains=np.array([0, 0, 0, 0, 1, 1]),
        test_domains=np.zeros(6, int),
        test_arrays=lambda: (x, labels),
        model_fn=None,
    )
    config = experiment.RunConfig(process="fedavg", client_evaluation=1).resolved()
    (said,) = remarks.of(config, task)
    assert said.startswith("1 of 2 clients have no class of the test examples in their")
    evaluation = types.SimpleNamespace(
        examples=(x, labels),
        outcomes=lambda weights, x, y, rows: (y[rows], 0.0 * y[rows]),
    )
    measured = client_evaluation.ClientEvaluation(evaluation, task)(_RUN)
    assert [row["accuracy"] for row in measured.rows] == [1.0, None]


def test_tenths_count_clients_in_part_and_weights_are_sizes():
    accuracies, sizes = [0.9] * 13 + [0.5, None, 0.2], [1] * 13 + [8, 99, 4]
    found = client_evaluation.spread(accuracies, sizes)
    # 1.5 of 15 clients: the worst, and half of the next; 2.5 of 25 examples.
    assert found["worst_tenth"] == pytest.approx((0.2 + 0.5 * 0.5) / 1.5)
    assert found["weighted_worst_tenth"] == pytest.approx(0.2)
    for name in ("best_tenth", "weighted_best_tenth"):
        assert found[name] == pytest.approx(0.9)
    assert found["worst"] == 0.2
    known = accuracies[:14] + [0.2]
    assert found["deviation"] == pytest.approx(np.std(known))
    assert found["weighted_mean"] == pytest.approx((13 * 0.9 + 4 + 0.8) / 25)


def test_local_clients_are_runs_of_one_client_each(tmp_path):
    given = dict(clients_per_round=4, total_rounds=1, batch_size=16)
    for rounds in (1, 2):
        given["total_rounds"] = rounds
        found = run(str(tmp_path / "local"), process="local", **given)
    assert found.summary["final_accuracy"] is found.weights is None
    with pytest.raises(ValueError, match="no model that clients share"):
        _ = found.model
    stored = json.loads((tmp_path / "local/config.json").read_text())
    assert stored["bytes_per_client"] == [0, 0]
    for row in found.clients[:2]:
        one = {row["client"]: CLIENTS[row["client"]]}
        given |= dict(client_data=one, process="fedavg", clients_per_round=1)
        (alone,) = run(**given).clients
        assert row == pytest.approx(alone, rel=1e-6)  # Its batches are others.
    losses = [each["training/loss"] for each in found.rows]
    assert losses[1] < losses[0] and found.rows[0]["training/num_examples"] == 129 * 5


def test_clients_are_tested_with_their_own_weights(tmp_path):
    given = dict(clients_per_round=2, batch_size=16, finetune_epochs=1, keep_best=True)
    for rounds in (1, 3):  # Resumed after the first.
        folder = str(tmp_path / "fedper")
        found = run(folder, process="fedper", total_rounds=rounds, **given)
    whole = run(process="fedper", total_rounds=3, **given)
    assert found.clients == whole.clients and found.weights is None
    assert [row["evaluation/accuracy"] for row in found.rows] == [None] * 3
    with pytest.raises(ValueError, match="no model that clients share"):
        _ = found.model
    # Ditto's global model is FedAvg's, and its clients' models are their own.
    given |= dict(total_rounds=2, keep_best=False)
    ditto = run(process="ditto", client_evaluation=0, **given)
    fedavg = run(process="fedavg", client_evaluation=0, **given)
    for one, other in zip(ditto.weights.trainable, fedavg.weights.trainable):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    for name in ("loss", "finetuned_loss"):
        pairs = [(a[name], b[name]) for a, b in zip(ditto.clients, fedavg.clients)]
        assert all(own != shared for own, shared in pairs if shared is not None)


def test_central_is_one_client_with_the_steps_of_a_cohort():
    given = dict(batch_size=20, clients_per_round=2, total_rounds=1)
    (half,) = run(process="central", local_epochs=4, **given).rows
    # 4 epochs of 64.5 examples on average are two of all 129.
    assert half["training/num_examples"] == 2 * 129
    given |= dict(clients_per_round=4, local_epochs=2, total_rounds=2)
    central = run(process="central", server_optimizer="adam", **given)
    pooled = {"everyone": [np.concatenate(each) for each in zip(*CLIENTS.values())]}
    given |= dict(client_data=pooled, clients_per_round=1, process="fedavg")
    whole = run(**given)
    for one, other in zip(central.weights.trainable, whole.weights.trainable):
        np.testing.assert_array_equal(one, other)
    assert [row["client"] for row in central.clients] == [*CLIENTS]
    given = dict(process="central", clients_per_round=2, local_epochs=1)
    for size, sizes, steps, more in (
        (50, [14] * 64 + [15] * 36, 3, {"local_epochs": 5}),  # 143.6 examples.
        (20, [40, 50, 40, 9], 3, {"drop_remainder": True}),  # 60, of 40, 40, 40, 0.
        (10, [5, 31], 3, {"same_local_steps": True}),  # 10 + 20; by epochs 36.
        # Of two clients 1 or 2: 4/3 on average.
        (1, [9, 9], 12, {"clients_per_round": 1, "client_sampling": "independent"}),
    ):
        asked = experiment.RunConfig(**{**given, **more}, batch_size=size)
        assert runs._steps_of_cohort(asked.resolved(), np.array(sizes)) == steps


@pytest.mark.slow
def test_copies_leave_out_the_branches_that_training_leaves_out():
    given = dict(process="stochdepth", model="resnet8", norm="group", batch_size=500)
    given["hyperparameters"] = {
        "stochdepth_survival_probability": 1e-9
    }  # Of the last one.
    config = experiment.RunConfig(**given, finetune_epochs=1).resolved()
    task = runs.build_task(config)
    process = runs.build_process(config, task)
    state = process.initialize()
    run_ = types.SimpleNamespace(state=state, rounds_done=0, weights_of=None)
    tuned = runs._finetuning(config, task, process)(run_, "client_0000")
    before = process.get_model_weights(state).trainable
    same = [np.array_equal(*each) for each in zip(before, tuned.trainable)]
    assert any(same) and not all(same)


def test_references_leave_out_what_they_have_no_use_for(tmp_path):
    given = dict(process="local", keep_best=True, patience=1, finetune_epochs=2)
    config = experiment.RunConfig(**given, drift=True).resolved()
    assert (config.keep_best, config.patience, config.drift) == (False, None, False)
    notes = finished.Notes()
    run(str(tmp_path), **given, total_rounds=1, progress=notes)
    told = (
        "local averages no models, and trains its rounds without finetune_epochs, pat"
    )
    assert any(told in line for line in notes.lines)
    for changes, why in (
        ({"process": "local+fedprox"}, "local does not combine with methods"),
        ({"process": "central", "aggregator": "dp"}, "process=central averages no"),
    ):
        with pytest.raises(settings.SettingError, match=why):
            experiment.RunConfig(**changes).resolved()
