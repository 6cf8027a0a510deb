import pytest

from tff_reg.experiment import RunConfig
from tff_reg.experiment.rounds import checkpoints, description


def resolve(**requested):
    return RunConfig.of({"process": "fedalign", **requested}).resolved()


def header(**requested):
    numbers = dict(num_train=1437, num_test=360, num_weights=77754)
    return "\n".join(description.header(resolve(**requested), **numbers))


def test_the_header_says_what_runs():
    text = header(clients_per_round=4, num_clients=8, local_epochs=1)
    for words in (
        "process  fedalign (strength 0.45, width 0.25",
        "1,437 training and 360 test examples, dirichlet_unbalanced(0.5)",
        "model    resnet8 (batch norm), 77,754 weights",
        "4 of 8 clients a round, 1 local epoch, batches of 64, learning rate 0.01",
        "settings augmentation=shift, client_momentum=0.9, client_nesterov=true",
        "; settings that are not given come from the FedAlign paper (Mendieta et al.,",
        "rounds   25, seed 0",
        "output   runs/fedalign-digits-seed0",
    ):
        assert words in text.replace("\n         ", " ")
    assert max(len(line) for line in text.splitlines()) <= 88


@pytest.mark.parametrize(
    "requested, words",
    [
        ({"num_clients": 3}, "all 3 clients every round"),
        (
            {"client_sampling": "independent", "clients_per_round": 8},
            "about 8 of 16 clients a round",
        ),
        ({"process": "fedprox+man"}, "fedprox_strength 0.0001, man_strength 0.15"),
        ({"partition": "shards", "classes_per_client": 2}, ", shards(2 classes each)"),
        ({"partition": "quantity", "concentration": 0.5}, ", quantity(0.5)"),
        ({"model": "vgg9", "norm": "none"}, "vgg9 (no norm), 77,754 weights"),
        ({"validation_share": 0.1}, "360 held-out examples"),
        # 4 x 77,754 bytes; times 16 clients.
        (
            {"process": "moon"},
            "0.311 MB per client, 4.98 MB for all, kept in runs/moon-digits-seed0",
        ),
        # h and s, and the model, which only counts once.
        ({"process": "feddc"}, "0.933 MB per client"),
        ({"process": "feddc"}, "server   plain mean of the clients plus feddc's"),
        ({"aggregator": "compressed"}, "aggregator=compressed"),
    ],
)
def test_the_header_says_what_differs(requested, words):
    assert words in header(**requested).replace("\n         ", " ")


def test_the_result_names_accuracy_time_and_files(tmp_path):
    for name in ("summary.json", "metrics.csv", "events.out.tfevents.1", ".hidden"):
        (tmp_path / name).write_text("1")
    summary = dict(
        final_accuracy=0.9,
        best_accuracy=0.95,
        best_round=7,
        all_clients_accuracy=None,
        best_all_clients_accuracy=None,
        rounds=10,
        rejected_clients=0,
        rounds_without_training=0,
        ends_finite=True,
        training_seconds=61.0,
        median_round_seconds=6.0,
    )
    text, where = description.result(summary, tmp_path)
    assert text == (
        "Test accuracy 90.00 % after 10 rounds (best 95.00 % after round 7), 1:01 of"
        " training, the median round 6.00 s."
    )
    assert f"In {tmp_path}: metrics.csv, summary.json" in where
    (held_out, _) = description.result({**summary, "validation_share": 0.1}, tmp_path)
    assert held_out.startswith("Held-out accuracy 90.00 % after 10 rounds")
    both = {**summary, "all_clients_accuracy": 0.8, "best_all_clients_accuracy": 0.85}
    (text, _) = description.result(both, tmp_path)
    assert (
        "(best 95.00 % after round 7), of the mean of all clients' last models 80.00 %"
        " (best 85.00 %), 1:01 of training"
    ) in text
    nothing = {**summary, "final_accuracy": None, "best_accuracy": None}
    (text, _) = description.result(nothing, tmp_path)
    assert text.startswith("10 rounds done, ")
    diverged = {**summary, "final_accuracy": None, "ends_finite": False}
    diverged.update(rejected_clients=1, rounds_without_training=2)
    (text, trouble, _) = description.result(diverged, tmp_path)
    assert text.startswith("10 rounds done (best 95.00 % after round 7)")
    assert trouble == (
        "1 update of clients not finite and left out, 2 rounds in which nobody trained,"
        " the last round's numbers not finite."
    )


@pytest.mark.parametrize(
    "rounds, overwrite, words",
    [
        ([], False, "no round is kept in {} yet"),
        ([3, 4], False, "4 of 9 rounds are kept in {}, and the same command goes"),
        ([4], True, "the same command without overwrite goes on from there"),
    ],
)
def test_an_interruption_says_how_to_go_on(tmp_path, rounds, overwrite, words):
    (tmp_path / "config.json").write_text('{"made_by": "tff_reg"}')
    store = checkpoints.CheckpointStore(tmp_path / "checkpoints")
    for number in rounds:
        store.save(number, {})
    config = resolve(total_rounds=9, overwrite=overwrite, output_dir=str(tmp_path))
    assert words.format(tmp_path) in description.resumption(config)
