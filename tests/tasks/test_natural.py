"""Data that come with clients: arrays, folders, tables, texts and TFF's own files."""

import functools
import importlib.util

import numpy as np
import pandas
import pytest

from tests import commands
from tests.tasks import layouts
from tff_reg import tasks
from tff_reg.data import partitions
from tff_reg.experiment.config import run_config
from tff_reg.experiment.rounds import runs
from tff_reg.models import keras_nets
from tff_reg.settings import SettingError
from tff_reg.tasks import own_data, tables

NAMES = ["ann", "bob", "cai"]


def of_arrays(folder):
    """Each image's first pixel is its number; clients take turns."""
    x = np.zeros((24, 4, 4, 1), np.uint8)
    x[:, 0, 0, 0] = np.arange(24)
    owners = np.resize(NAMES, 24)
    path = folder / "a.npz"
    arrays = dict(x_train=x[:18], x_test=x[18:], client=owners[:18])
    y = np.arange(24) % 2
    np.savez(path, y_train=y[:18], y_test=y[18:], test_client=owners[18:], **arrays)
    return "arrays", path


def of_folders(folder):
    for part, count in (("train", 3), ("test", 1)):
        for seed, name in enumerate(NAMES):
            for c in ("cat", "dog")[: 1 + seed]:
                image = layouts.random_images(count, 8, 8, 3, seed=seed)
                for n, pixels in enumerate(image):
                    where = folder / "photos" / part / name / c
                    where.mkdir(parents=True, exist_ok=True)
                    layouts.write_image(where / f"{n}.png", pixels)
    return "image_folder", folder / "photos"


def rows(**columns):
    number = np.arange(60)
    shared = {"client": np.resize(NAMES, 60), "label": np.where(number % 2, "b", "a")}
    return pandas.DataFrame({**columns, **shared, **columns})


def of_table(folder):
    number = np.arange(60.0)
    rows(size=number, time=1.6e9 + number % 7).to_csv(folder / "t.csv", index=False)
    return "table", folder / "t.csv"


def of_texts(folder):
    words = [f"{'Yes' if n % 2 else 'No'}, word{n % 5}!" for n in range(60)]
    rows(text=words).to_parquet(folder / "t.parquet")
    return "text_csv", folder / "t.parquet"


def of_femnist(folder):
    def images(count, seed):
        pixels = layouts.random_images(count, 28, 28, seed=seed) / np.float32(255)
        return {"pixels": pixels, "label": np.arange(count) % 62}

    splits = {
        f"all_{part}": {name: images(count, n) for n, name in enumerate(NAMES)}
        for part, count in (("train", 5), ("test", 2))
    }
    layouts.write_tff_file(folder / "emnist_all.sqlite", splits)
    return "femnist", folder


def of_shakespeare(folder):
    lines = {name: {"snippets": [f"{name}: Hark!", "\u00e9"]} for name in NAMES}
    layouts.write_tff_file(folder / "shakespeare.sqlite", dict(train=lines, test=lines))
    return "shakespeare", folder


def of_stackoverflow(folder):
    said = {name: {"tokens": [f"how do i {name}", "how do"]} for name in NAMES}
    path = folder / "stackoverflow.sqlite"
    layouts.write_tff_file(path, dict(train=said, test=said))
    return "stackoverflow", folder


SOURCES = [of_arrays, of_folders, of_table, of_texts]
SOURCES += [of_femnist, of_shakespeare, of_stackoverflow]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_clients_keep_their_examples_and_their_tests(source, tmp_path):
    name, path = source(tmp_path)
    options = dict(task=name, data_dir=str(path), partition="natural")
    config = run_config.RunConfig(process="fedavg", clients_per_round=2, **options)
    assert config.resolved().num_clients == 3
    found = tasks.read(num_clients=3, **options)
    data, positions = found.data, found.positions
    assert data.client_names == (*NAMES,)
    assert [data.clients[own].tolist() for own in positions] == [
        [client] * len(own) for client, own in enumerate(positions)
    ]
    assert sum(map(len, positions)) == len(data.y_train)
    assert found.names == NAMES
    for number, own in enumerate(found.tests[2]):
        assert own.tolist() == np.flatnonzero(data.test_clients == number).tolist()
        assert own.size
    # A part is drawn by the seed, and each client is the one of its name.
    for seed in (0, 1):
        of_part = dict(options, num_clients=2, partition_seed=seed)
        found = tasks.read(**of_part)
        part, dealt = found.data, found.positions
        drawn = partitions.drawn(3, 2, seed)
        assert found.names == [NAMES[client] for client in drawn]
        for client, own in zip(drawn, dealt):
            if name != "stackoverflow":  # Whose words are those of its clients.
                assert np.array_equal(
                    part.x_train[own], data.x_train[positions[client]]
                )
    with pytest.raises(SettingError, match="the data have 3 clients; give at most 3"):
        run_config.RunConfig(process="fedavg", num_clients=4, **options).resolved()


def test_tables_are_standardised_by_their_training_rows(tmp_path):
    _, path = of_table(tmp_path)
    data = tasks.read("table", data_dir=str(path), partition="iid", num_clients=2).data
    assert data.x_train.shape == (54, 2) and data.x_test.shape == (6, 2)
    number = np.arange(60.0)
    raw = np.stack([number, 1.6e9 + number % 7], axis=1)
    found = np.concatenate([data.x_train, data.x_test])
    order = np.argsort(found[:, 0])  # By their size.
    x = raw[order < 54]
    expected = (raw - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(data.normalize_fn(found[order]), expected, atol=1e-6)
    np.testing.assert_array_equal(data.normalize_fn.of_raw(raw), found[order])
    assert np.bincount(data.test_clients).tolist() == [2, 2, 2]


def test_numbers_and_texts_of_clients_stay_apart(tmp_path):
    for number, (given, names) in enumerate(
        [
            ([2**60, 2**60 + 1], [str(2**60), str(2**60 + 1)]),
            (["7", "007"], ["007", "7"]),
            ([1.0, 10.0], ["1", "10"]),
            ([0.5, 2.0**53], ["0.5", str(2.0**53)]),
        ]
    ):
        path = str(tmp_path / f"{number}.parquet")
        rows(n=1).assign(client=given * 30).to_parquet(path)
        assert [*tables.clients(path)] == names


def test_texts_become_the_numbers_of_their_words(tmp_path):
    frame = pandas.DataFrame(
        {
            "text": ["A cat, a CAT!", "a dog", "null", "", "a bird"],
            "label": [10, 2, 10, 2, 2],
            "split": [*["train"] * 4, "test"],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = dict(data_dir=str(tmp_path / "t.csv"), sequence_length=3)
    data = tasks.read("text_csv", num_clients=1, vocabulary_size=3, **options).data
    # a: 2, cat: 3; then one of dog and null, which are as frequent.
    rest = {"dog": 4, "null": 1} if data.x_train[1, 1] == 4 else {"dog": 1, "null": 4}
    expected = [[2, 3, 2], [2, rest["dog"], 0], [rest["null"], 0, 0], [1, 0, 0]]
    assert data.x_train.tolist() == expected and len(data.vocabulary) == 5
    assert data.vocabulary[:4] == ("", "[UNK]", "a", "cat")
    assert data.x_test.tolist() == [[2, 1, 0]] and data.class_names == ("2", "10")
    assert data.y_train.tolist() == [1, 0, 1, 0]


def test_next_characters_and_words_follow_what_is_before_them(tmp_path):
    _, path = of_shakespeare(tmp_path)
    options = dict(data_dir=str(path), partition="natural", num_clients=3)
    found = tasks.read("shakespeare", sequence_length=4, **options)
    data, positions = found.data, found.positions
    x, y = data.x_train[positions[0]], data.y_train[positions[0]]
    classes = [*data.class_names]
    assert "".join(classes[c] for c in y) == "nn: Hark!"
    letters = {0: "_", 1: "?", **{n + 2: c for n, c in enumerate(classes)}}
    read = ["".join(letters[t] for t in row) for row in x.tolist()]
    assert read[:2] == ["___a", "__an"] and read[-1] == "Hark"
    _, path = of_stackoverflow(tmp_path)
    found = tasks.read("stackoverflow", sequence_length=3, **options)
    data, positions = found.data, found.positions
    # By their frequency, then by name.
    assert data.class_names == ("do", "how", "i", *NAMES)
    own = data.x_train[positions[1]], data.y_train[positions[1]]
    whole = [[0, 0, 2], [0, 2, 4], [2, 4, 3], [4, 3, 5]]
    assert own[0].tolist() == [*whole, *whole[:2]]
    assert own[1].tolist() == [1, 0, 2, 4, 1, 0]
    (tmp_path / "stackoverflow.word_count").write_text("i 9\ndo 7\nhow 5\n")
    data = tasks.read("stackoverflow", vocabulary_size=2, **options).data
    assert data.class_names == ("i", "do")


def test_a_client_without_a_whole_window_has_nothing_to_train_on(tmp_path):
    lines = {name: {"snippets": ["Hark!"]} for name in NAMES}
    train = {**lines, "bob": {"snippets": ["x"]}}
    layouts.write_tff_file(
        tmp_path / "shakespeare.sqlite", dict(train=train, test=lines)
    )
    given = dict(task="shakespeare", data_dir=str(tmp_path), partition="natural")
    found = tasks.read(num_clients=3, **given)
    assert found.names == NAMES and [*map(len, found.tests[2])] == [4, 4, 4]
    assert [*map(len, found.positions)] == [4, 0, 4]


def test_clients_of_a_small_run_keep_their_tests(tmp_path):
    name, path = of_arrays(tmp_path)
    given = dict(task=name, data_dir=str(path), partition="natural", num_clients=2)
    whole = tasks.read(**given).data
    for scale, count in (("0.1", 4), ("0.85", 5), ("1", 6)):
        found = tasks.read(scale=scale, **given)
        assert [*map(len, found.tests[2])] == [2, 2]
        assert len(found.data.y_test) == count
        assert np.isin(found.data.x_test, whole.x_test).all()
    with pytest.raises(SettingError, match="clients have test examples of their own"):
        tasks.read(client_test_share=0.5, **given)


def table_without(column):
    return lambda folder: rows(n=1).drop(columns=column).to_csv(folder / "t.csv")


def damaged(folder):
    (folder / "emnist_all.sqlite").write_bytes(b"text")


@pytest.mark.parametrize(
    "task, write, file, words",
    [
        ("table", table_without("label"), "t.csv", "no column label, only .*client"),
        ("table", table_without("client"), "t.csv", "has no clients; choose another"),
        ("text_csv", table_without("client"), "t.csv", "no clients; choose another"),
        ("femnist", damaged, ".", "damaged or no file of TFF"),
        ("shakespeare", damaged, ".", "no shakespeare.sqlite: download https://"),
        ("arrays", damaged, "emnist_all.sqlite", "no .npz file"),
    ],
)
def test_refuses_data_without_what_is_needed(task, write, file, words, tmp_path):
    write(tmp_path)
    given = dict(data_dir=str(tmp_path / file), partition="natural")
    with pytest.raises(tasks.TaskError, match=words) as caught:
        run_config.RunConfig(process="fedavg", task=task, **given).resolved()
    assert "\n" not in str(caught.value)


def test_refuses_the_clients_of_a_task_that_has_none():
    with pytest.raises(tasks.TaskError, match="the task digits has no clients"):
        config = run_config.RunConfig(process="fedavg", partition="natural")
        config.resolved()


@pytest.mark.parametrize(
    "given, words",
    [
        (dict(augmentation="crop_flip"), "it is for images"),
        (dict(model="resnet8"), "has texts; give one of lstm, transformer"),
        (dict(synthetic_data=True, partition="natural"), "images have no clients"),
    ],
)
def test_refuses_what_is_for_images(given, words):
    with pytest.raises(SettingError, match=words):
        run_config.RunConfig(process="fedavg", task="text_csv", **given).resolved()


def test_a_table_with_cells_that_are_no_numbers(tmp_path):
    path = tmp_path / "t.csv"
    read = dict(data_dir=str(path), partition="iid", num_clients=2)
    for columns, words in (
        (dict(size=[1.0, np.inf] * 30), "no finite"),
        (dict(size=[1.0, np.nan] * 30), "empty cells, the first in row 2 of size; fil"),
        (dict(size=1, client=[1, 2, None] * 20), "the first in row 3 of client; fill"),
        (dict(size=["small"] * 60), "has texts in size"),
        (dict(split=["train"] * 60, n=1), "must be train or test, and have both"),
    ):
        rows(**columns).to_csv(path, index=False)
        with pytest.raises(ValueError, match=words):
            tasks.read("table", **read)
    rows(n=1).to_csv(path)
    with pytest.raises(tasks.DataError, match="without a name, .* Unnamed: 0: remove"):
        tasks.read("table", **read)
    path.write_text('label\n"a')
    with pytest.raises(tasks.DataError, match="cannot be read as a table"):
        tasks.read("table", **read)


def test_clients_keep_their_names_when_all_their_examples_are_held_out(tmp_path):
    _, path = of_table(tmp_path)
    frame = pandas.read_csv(path).assign(client=np.arange(60) // 2, split="train")
    frame.assign(split=["test", *["train"] * 59]).to_csv(path, index=False)
    given = dict(data_dir=str(path), partition="natural", num_clients=20)
    found = tasks.read("table", validation_share=0.5, **given)
    data, positions = found.data, found.positions
    assert min(map(len, positions)) == 0
    for name, own, held in zip(found.names, positions, found.tests[2]):
        of_train, of_test = data.clients[own], data.test_clients[held]
        assert {data.client_names[n] for n in (*of_train, *of_test)} == {name}


def test_a_run_measures_the_clients_on_their_own_tests_and_resumes(tmp_path):
    """The accuracies in clients.csv are those of the final model on these tests."""
    name, path = of_table(tmp_path)
    data = dict(task=name, data_dir=str(path), num_clients=2, partition="natural")
    for where, total in (("once", 2), ("twice", 1), ("twice", 2)):
        config = run_config.RunConfig(
            process="fedavg",
            total_rounds=total,
            clients_per_round=2,
            client_evaluation=0,
            output_dir=str(tmp_path / where),
            **data,
        )
        result = runs.run(config)
    final = [tmp_path / where / "final_weights.npz" for where in ("once", "twice")]
    assert final[0].read_bytes() == final[1].read_bytes()
    task = tasks.build(**data)
    model = task.model_fn.keras_model(final[1])
    table = pandas.read_csv(tmp_path / "twice" / "clients.csv")
    assert table["client"].tolist() == task.client_data.client_ids
    for client, accuracy in zip(table["client"], table["accuracy"]):
        own = task.client_data.tests.client_examples(client)
        x = task.normalize_fn(own["x"])
        right = np.argmax(model(x).numpy(), axis=-1) == own["y"]
        assert accuracy == right.mean()
    raw = pandas.read_csv(path)[["size", "time"]].to_numpy()
    x = np.concatenate([task.client_data.arrays[0], task.test_arrays()[0]])
    expected = model(x[np.argsort(x[:, 0])])
    np.testing.assert_allclose(result.model.predict(raw), expected, rtol=1e-5)
    # Client data with tests in other arrays are taken over, too.
    own = own_data.OwnData(task.client_data, (own["x"], own["y"]), model, {})
    for positions, clients in (
        (own.positions, task.client_data),
        (own.held_out, task.client_data.tests),
    ):
        for client, rows_of_client in zip(clients.client_ids, positions):
            expected = clients.client_examples(client)
            assert np.array_equal(own.x[rows_of_client], expected["x"])
            assert np.array_equal(own.y[rows_of_client], expected["y"])


PADDED = """
import numpy as np
import tff_reg, tensorflow as tf
from tff_reg.models import keras_nets

print(tf.keras.Model.__module__.split(".")[0])
texts = np.array([[4, 5, 6, 0, 0, 0], [0] * 6], np.int32)
for name in ("lstm", "transformer"):
    made = keras_nets.build_model_fn(name, shape=(6,), num_classes=3, vocabulary=9)
    model = made.plan.model
    before, table = np.asarray(model(texts)), model.get_layer("tokens")
    weights = table.get_weights()[0]
    weights[0] += 1
    table.set_weights([weights])
    assert np.isfinite(before).all()
    np.testing.assert_allclose(np.asarray(model(texts)), before, atol=1e-6)
"""


@pytest.mark.parametrize("legacy, kind", [("1", "tf_keras"), (None, "keras")])
def test_padding_changes_nothing_in_keras_2_and_3(legacy, kind):
    done = commands.python(PADDED, TF_USE_LEGACY_KERAS=legacy)
    is_today = bool(importlib.util.find_spec("tf_keras"))
    assert not is_today or done.stdout.split() == [kind]


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_padding_changes_nothing_and_the_seed_decides_the_weights(name):
    build = functools.partial(
        keras_nets.build_model_fn,
        name,
        shape=(6,),
        num_classes=3,
        vocabulary=9,
    )
    first, again = build(seed=1), build(seed=1)
    assert first.digests == again.digests
    assert first.plan.names == again.plan.names
    texts = np.array([[4, 5, 6, 0, 0, 0], [4, 5, 6, 0, 0, 0]], np.int32)
    short = first.plan.model(texts)[0]
    # What a mask hides has no influence on the output.
    table = first.plan.model.get_layer("tokens")
    weights = table.get_weights()[0]
    weights[0] += 1
    table.set_weights([weights])
    np.testing.assert_allclose(first.plan.model(texts)[0], short, atol=1e-6)
