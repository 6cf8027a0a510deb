"""Clients that drop out, do part of their work, are late or attack."""

import csv
import dataclasses
import json

import numpy as np
import pytest

from docs.examples import objective_inconsistency as quadratic
from tests.training import every_method
from tff_reg import data, experiment, settings, training
from tff_reg.experiment.rounds import unequal_work
from tff_reg.lazy import tf
from tff_reg.methods import catalogue

CLIENTS = ["a", "b", "c", "d"]


def _work(**changes):
    steps = dict(zip(CLIENTS, (10, 20, 30, 40)))
    given = {"seed": 3, "steps": steps, "local_epochs": 5, "num_drawn": 4, **changes}
    return unequal_work.UnequalWork(**given)


def test_a_share_of_clients_drops_out_and_of_them_do_part_of_their_work():
    work = _work(dropout=0.2, straggler_share=0.5, straggler_epochs=(1, 4))
    plans = [work.attendance(CLIENTS, round_num) for round_num in range(1000)]
    assert sum(len(p.clients) for p in plans) / 4000 == pytest.approx(0.8, abs=0.02)
    shares = [told["work"] for plan in plans for told in plan.told.values()]
    found, counts = np.unique(np.round(5 * np.array(shares), 9), return_counts=True)
    assert found.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(counts / 4000, [0.125] * 4 + [0.5], atol=0.02)
    # A client's draws do not depend on the others.
    assert work.attendance(["c"], 7).told["c"] == plans[7].told["c"]
    for plan in plans:
        row = plan.row
        assert row["cohort/counted"] + row["cohort/dropped"] == row["cohort/drawn"]


def test_a_round_ends_when_enough_have_finished_or_at_the_deadline():
    # 10, 20 / 4 + 7, 30 / 10, 40 seconds.
    speeds = {"a": (1, 0), "b": (4, 7), "c": (10, 0), "d": (1, 0)}
    plan = _work(speeds=speeds).attendance(CLIENTS, 1)
    assert plan.clients == CLIENTS and plan.row["cohort/seconds"] == 40
    plan = _work(speeds=speeds, deadline=11.0).attendance(CLIENTS, 1)
    assert plan.clients == ["a", "c"] and plan.row["cohort/late"] == 2
    assert plan.row["cohort/seconds"] == 11
    plan = _work(speeds=speeds, enough=3, deadline=30.0).attendance(CLIENTS, 1)
    assert plan.clients == ["a", "b", "c"] and plan.row["cohort/seconds"] == 12
    plan = _work(speeds=speeds, enough=2).attendance(CLIENTS, 1)
    assert plan.clients == ["a", "c"] and plan.row["cohort/surplus"] == 2
    assert plan.row["cohort/seconds"] == 10


@pytest.mark.parametrize(
    "text, words",
    [
        ("client,speed\na,1\n", "no column steps_per_second"),
        ("client,steps_per_second\na,1\n", "no row of 3 clients, such as b"),
        ("Client,steps_per_second\na,1\n", "an unknown column Client"),
        ("client,steps_per_second\na,1\na,2\n", "several rows of a"),
        ("steps_per_second\nfast\n", "line 2 has no numbers"),
        ("steps_per_second\n0\n", "line 2 needs a speed above 0"),
        ("steps_per_second\n", "no rows"),
    ],
)
def test_a_table_of_speeds_that_does_not_fit_is_refused(text, words, tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    with pytest.raises(settings.SettingError, match=words):
        unequal_work.read_speeds(str(path), CLIENTS, 0)


def test_clients_without_a_row_of_their_own_have_one_of_all(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("steps_per_second,transfer_seconds\n1,2\n3,\n")
    found = unequal_work.read_speeds(str(path), list(map(str, range(100))), 0)
    assert {*found.values()} == {(1, 2), (3, 0)}


@pytest.mark.parametrize(
    "given, words",
    [
        ({"dropout": 1.0}, "dropout=1.0: it must be less than 1"),
        ({"straggler_share": 0.5}, "give straggler_epochs"),
        ({"straggler_epochs": (1, 4)}, "give straggler_share"),
        ({"straggler_share": 0.5, "straggler_epochs": (1, 9)}, "up to local_epochs=5"),
        ({"straggler_share": 0.5, "straggler_epochs": (2,)}, "the least and the most"),
        ({"deadline": 3.0}, "it needs client_speeds"),
        ({"over_select": 1.5, "client_sampling": "independent"}, "=fixed"),
        ({"dropout": 0.1, "aggregator": "dp"}, "cohorts of one size"),
        ({"dropout": 0.1, "process": "central"}, "process=central has one client"),
        ({"local_steps": 5, "local_epochs": 2}, "local_steps=5 sets the steps"),
        ({"attack_share": 0.1, "process": "local"}, "averages no models"),
        ({"attack_factor": 2.0}, "attack_share"),
        ({"client_optimizer": "adam"}, "client_learning_rate: it is missing"),
        (
            {
                "client_optimizer": "adam",
                "client_learning_rate": 0.1,
                "client_momentum": 0.9,
            },
            "it is for client_optimizer=sgd",
        ),
        ({"keep_client_optimizer": True, "client_momentum": 0}, "nothing to keep"),
        (
            {"learning_rate_schedule": "step", "learning_rate_decay": 0.1},
            "learning_rate_milestones: it is missing",
        ),
        (
            {"server_learning_rate_schedule": "exponential"},
            "server_learning_rate_decay: it is missing",
        ),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    given = {"process": "fedavg", "local_epochs": 5, "num_clients": 8, **given}
    if "local_steps" in given and given["local_epochs"] == 5:
        del given["local_epochs"]
    with pytest.raises(settings.SettingError) as caught:
        experiment.RunConfig(**given).resolved()
    assert words in str(caught.value)


@pytest.mark.usefixtures("in_process")
def test_fedavg_is_inconsistent_on_quadratics_and_fednova_and_scaffold_are_not():
    rate, tau = 0.05, np.arange(1, 11)
    # Client i goes the share c_i of the way to its optimum e_i.
    go = 1 - (1 - 2 * rate) ** tau
    for name, weights in (("fedavg", go), ("fednova", go / tau)):
        found = quadratic.distances(name, 60, client_learning_rate=rate)
        fixed = np.average(quadratic.TARGETS, weights=weights)
        assert found[-1] == pytest.approx(fixed - quadratic.TARGETS.mean(), abs=1e-8)
    found = quadratic.distances("scaffold", 100, client_learning_rate=rate)
    assert found[-1] == pytest.approx(0, abs=1e-6)


_COUNTING = ("scaffold", "feddc", "fednova", "fedcm")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "name",
    [
        n if n in _COUNTING else pytest.param(n, marks=pytest.mark.slow)
        for n in catalogue.names()
    ],
)
def test_part_of_the_work_is_a_round_of_fewer_epochs(name):
    """Whatever a method keeps or uploads, it counts the steps that were taken."""
    of = every_method.settings(name)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(24, every_method.SIZE, every_method.SIZE, 1))
    clients = data.ArrayClientData(
        x.astype(np.float32), np.arange(24) % 3, [range(9), range(9, 17), range(17, 24)]
    )
    outcomes = []
    for epochs in (1, 3):
        process = training.build_from_settings(
            name,
            every_method.model_fn,
            dataclasses.replace(of, local_epochs=epochs, same_local_steps=False),
            {},
            told=("work",),
        )
        state, kept = process.initialize(), None
        for round_num in range(2):
            sets = [
                clients.whole_client_dataset(c, [round_num, i], work=1 / epochs)
                for i, c in enumerate(clients.client_ids)
            ]
            if hasattr(process, "initial_client_state"):
                kept = kept or [process.initial_client_state(state)] * 3
            output = process.next(state, sets, *([kept] if kept else []))
            state, kept = output.state, getattr(output, "client_states", None)
        outcomes.append((state, kept or ()))
    a, b = (tf.nest.flatten(each) for each in outcomes)
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


_RUN = dict(
    process="fedavg",
    total_rounds=4,
    num_clients=4,
    clients_per_round=3,
    partition="iid",
    model="cnn",
    local_epochs=2,
)


def _rows(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_rounds_without_survivors_are_counted_and_resume(tmp_path):
    given = {**_RUN, "scale": "tiny", "dropout": 0.8, "straggler_share": 0.5}
    given |= {"straggler_epochs": (0.5, 1), "drift": True, "seed": 2}
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("steps_per_second\n2\n")
    given["client_speeds"] = str(speeds)
    config = experiment.RunConfig(**given, output_dir=str(tmp_path / "a"))
    whole = experiment.run(config)
    rows = _rows(tmp_path / "a")
    counted = [int(row["cohort/counted"]) for row in rows]
    assert 0 in counted and any(counted), counted
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["rounds_without_training"] == counted.count(0)
    assert summary["simulated_seconds"] == sum(float(r["cohort/seconds"]) for r in rows)
    assert [float(row["cohort/seconds"]) > 0 for row in rows] == [
        c > 0 for c in counted
    ]

    def stop(row):
        if row["round_num"] == 2:
            raise KeyboardInterrupt

    config = dataclasses.replace(config, output_dir=str(tmp_path / "b"))
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, on_round=stop)
    again = experiment.run(config)
    for a, b in zip(tf.nest.flatten(whole.weights), tf.nest.flatten(again.weights)):
        assert np.array_equal(a, b)
    speeds.write_text("steps_per_second\n3\n")
    with pytest.raises(settings.SettingError, match="with unequal_work="):
        experiment.run(dataclasses.replace(config, total_rounds=5))


def test_seeds_of_one_setting_have_a_mean_and_those_of_two_have_none(tmp_path):
    given = {**_RUN, "scale": "tiny", "total_rounds": 1, "attack_share": 0.3}
    given |= {"straggler_share": 0.5, "straggler_epochs": (0.5, 1), "dropout": 0.1}
    folders = []
    for seed, dropout in [(0, 0.1), (1, 0.1), (2, 0.3)]:
        folders.append(tmp_path / f"seed{seed}")
        changed = {"seed": seed, "dropout": dropout, "output_dir": str(folders[-1])}
        experiment.run(experiment.RunConfig(**given | changed))
    (row,) = experiment.compare(folders[:2], tmp_path / "table")
    assert row["runs"] == 2
    # A library's own run records no --dropout.
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        del config["dropout"]
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(experiment.ComparisonError, match="differ in unequal_work"):
        experiment.compare(folders, tmp_path / "table")


def test_seeds_share_what_there_is_but_not_whose_it_is():
    def of_all(**changes):
        recorded = _work(**changes).recorded()
        return {name: recorded[name] for name in ("unequal_work", "speeds_and_attacks")}

    a = of_all(factors={"a": -1, "b": 1}, speeds={"a": (1, 0), "b": (2, 0)})
    assert a == of_all(
        seed=4, factors={"a": 1, "b": -1}, speeds={"b": (1, 0), "a": (2, 0)}
    )
    other = {"factors": {"a": -9, "b": 1}, "speeds": {"a": (1, 0), "b": (2, 0)}}
    assert a != of_all(**other)
    faster = {"factors": {"a": -1, "b": 1}, "speeds": {"a": (1, 0), "b": (200, 0)}}
    assert a != of_all(**faster)
    # Drawn from one table, by the seed.
    drawn = of_all(speeds={"a": (1, 0)}, speeds_from="table")
    assert drawn == of_all(speeds={"a": (2, 0)}, speeds_from="table")
    assert drawn != of_all(speeds={"a": (1, 0)}, speeds_from="another")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_an_attacker_multiplies_what_it_uploads_and_trains_as_before(name):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, every_method.SIZE, every_method.SIZE, 1))
    clients = data.ArrayClientData(x.astype(np.float32), np.arange(9) % 3, [range(9)])
    of = every_method.settings(name)
    process = training.build_from_settings(
        name, every_method.model_fn, of, {}, told=("factor",)
    )
    state, outputs = process.initialize(), {}
    for factor in (1.0, -3.0):
        dataset = clients.whole_client_dataset("client_0000", [1, 2], factor=factor)
        kept = [[process.initial_client_state(state)]] if name == "scaffold" else []
        outputs[factor] = process.next(state, [dataset], *kept)
    before = process.get_model_weights(state)
    honest, lying = (process.get_model_weights(o.state) for o in outputs.values())
    for old, one, other in zip(*map(tf.nest.flatten, (before, honest, lying))):
        np.testing.assert_allclose(other - old, -3 * (one - old), atol=1e-5)
    assert np.any(honest.trainable[0] != before.trainable[0])
    if name == "scaffold":  # The server's variate moves by the upload.
        own, wrong = (o.state.finalizer["memory"] for o in outputs.values())
        for one, other in zip(*map(tf.nest.flatten, (own, wrong))):
            np.testing.assert_allclose(other, -3 * one, rtol=1e-4, atol=1e-6)
        kept = [o.client_states for o in outputs.values()]
        for one, other in zip(*map(tf.nest.flatten, kept)):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("in_process")
def test_fednova_under_attack_is_fedavg_where_clients_have_equal_work():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(18, every_method.SIZE, every_method.SIZE, 1))
    split = [range(9), range(9, 18)]
    clients = data.ArrayClientData(x.astype(np.float32), np.arange(18) % 3, split)
    of, found = every_method.settings("fedavg"), []
    for name in ("fedavg", "fednova"):
        process = training.build_from_settings(
            name, every_method.model_fn, of, {}, told=("factor",)
        )
        datasets = [
            clients.whole_client_dataset(each, [1, 2], factor=factor)
            for each, factor in zip(clients.client_ids, (1.0, -1.0))
        ]
        state = process.next(process.initialize(), datasets).state
        found.append(process.get_model_weights(state))
    for one, other in zip(*map(tf.nest.flatten, found)):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_share_of_the_clients_attacks_in_every_round(tmp_path):
    config = experiment.RunConfig(
        **{**_RUN, "clients_per_round": 4, "total_rounds": 2, "local_epochs": 1},
        attack_share=0.3,
        synthetic_data=True,
        output_dir=str(tmp_path),
    )
    experiment.run(config)
    # 1.2 of 4 clients: rounded up.
    assert [row["cohort/attacking"] for row in _rows(tmp_path)] == ["2", "2"]
    with pytest.raises(settings.SettingError, match="attack_share=0.3, not 0.5"):
        experiment.run(dataclasses.replace(config, attack_share=0.5))
    many = [*map(str, range(40))]
    found = [
        unequal_work.attacks(config.resolved(), names) for names in (many, many[::-1])
    ]
    assert found[0] == found[1]
    assert [*found[0].values()].count(-1) == 12
    other = dataclasses.replace(config, seed=1).resolved()
    assert unequal_work.attacks(other, many) != found[0]


def test_part_of_broken_epochs_and_of_a_scaled_run():
    # 2.5 epochs of 3 batches; a straggler's single epoch is 3 batches, not 4.
    form = training.WholeClientData(batch_size=4, local_epochs=2.5, told=("work",))
    for work, steps in ((1.0, 8), (1 / 2.5, 3), (0.0, 0)):
        element = {
            "x": tf.zeros([9, 1]),
            "y": tf.zeros([9]),
            "work": tf.constant(work, tf.float64),
        }
        assert int(form.num_steps(element)[1]) == steps
    given = dict(process="fedavg", local_epochs=10, straggler_share=0.5)
    given |= dict(straggler_epochs=(1, 4), scale="0.5", warmup_rounds=4)
    found = experiment.RunConfig(**given).resolved()
    assert (found.local_epochs, found.straggler_epochs) == (5, (0.5, 2.0))
    assert found.warmup_rounds == 2


def test_the_servers_schedule_goes_on_in_rounds_without_a_step():
    chosen = training.ProcessSettings(server_warmup_rounds=4)
    optimizer = training.optimizers.of_server(chosen)
    weights, gradient = (tf.ones([2]),), (tf.ones([2]),)
    state = optimizer.initialize(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
    )
    state = optimizer.skipped(optimizer.skipped(state))
    _, moved = optimizer.next(state, weights, gradient)
    np.testing.assert_allclose(moved[0], 1 - 3 / 4)


def test_optimizers_are_chosen_alike_for_runs_and_in_python():
    build = training.ProcessSettings.of
    with pytest.raises(
        settings.SettingError, match="client_learning_rate: it is missing"
    ):
        build("scaffold", client_optimizer="adam")
    given = dict(client_optimizer="adamw", client_learning_rate=0.001)
    run = experiment.RunConfig(process="scaffold", **given).resolved()
    assert (
        build("scaffold", **given).client_weight_decay
        == run.client_weight_decay
        == 0.01
    )
    with pytest.raises(ValueError, match="both decide how a client's optimiser begins"):
        training.build(
            "fednova",
            every_method.model_fn,
            keep_client_optimizer=True,
            client_momentum=0.9,
        )


@pytest.mark.usefixtures("in_process")
def test_clients_weigh_by_what_they_have_if_all_take_the_same_steps():
    """Clients of 90 and 10 examples weigh as 0.9 and 0.1."""
    finals = []
    for parts in ([range(90), range(90, 100)], [range(90)], [range(90, 100)]):
        x = np.linspace(-1, 1, 100, dtype=np.float32)[:, None, None, None]
        x = x * np.ones([1, every_method.SIZE, every_method.SIZE, 1], np.float32)
        clients = data.ArrayClientData(x, np.arange(100) % 3, parts)
        process = training.build_from_settings(
            "fedavg",
            lambda: every_method.model_fn(norm="group"),
            dataclasses.replace(
                every_method.settings("fedavg"), local_steps=1, batch_size=100
            ),
            {},
        )
        sets = [clients.whole_client_dataset(c, [1, 2]) for c in clients.client_ids]
        output = process.next(process.initialize(), sets)
        finals.append(process.get_model_weights(output.state).trainable)
    for both, large, small in zip(*finals):
        np.testing.assert_allclose(both, 0.9 * large + 0.1 * small, atol=1e-6)


def test_krum_of_too_few_clients_is_told(tmp_path, capsys):
    given = {**_RUN, "clients_per_round": 4, "total_rounds": 1, "local_epochs": 1}
    given |= dict(aggregator="krum", krum_selected=4, synthetic_data=True)
    experiment.run(experiment.RunConfig(**given, output_dir=str(tmp_path)))
    said = " ".join(capsys.readouterr().out.split())
    assert "of 4 clients of which 1 may be malicious: it takes more than 4" in said
    assert "krum_selected=4 of 4 clients averages updates of the 1 that may" in said
