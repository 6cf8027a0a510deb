import math
import struct

import pytest

from tff_reg.experiment import plot


def draw(path, rounds, training, evaluation, all_clients=()):
    plot.write_accuracy_plot(
        path,
        rounds=rounds,
        training_accuracy=training,
        evaluation_accuracy=evaluation,
        all_clients_accuracy=all_clients,
        title="fedalign on digits",
        subtitle="4 of 16 clients a round",
    )


NAN = math.nan


@pytest.mark.parametrize(
    "rounds, training, evaluation",
    [
        ([1, 2, 3], [0.1, 0.5, 0.9], [NAN, 0.6, 0.8]),
        ([1], [0.5], [0.5]),
        ([1, 2], [NAN, NAN], [NAN, NAN]),
        (list(range(1, 501)), [0.9] * 500, [0.95] * 500),
    ],
)
def test_writes_a_png_of_readable_size(tmp_path, rounds, training, evaluation):
    path = tmp_path / "accuracy.png"
    draw(path, rounds, training, evaluation)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1440, 900)


def test_shows_what_it_is_given(tmp_path):
    draw(tmp_path / "a", [1, 2], [0.1, 0.5], [0.2, 0.6])
    draw(tmp_path / "b", [1, 2], [0.1, 0.5], [0.2, 0.6])
    draw(tmp_path / "c", [1, 2], [0.1, 0.5], [0.2, 0.7])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_shows_the_mean_of_all_clients_where_there_is_one(tmp_path):
    draw(tmp_path / "a", [1, 2], [0.1, 0.5], [0.2, 0.6])
    draw(tmp_path / "b", [1, 2], [0.1, 0.5], [0.2, 0.6], [NAN, NAN])
    draw(tmp_path / "c", [1, 2], [0.1, 0.5], [0.2, 0.6], [0.3, 0.8])
    draw(tmp_path / "d", [1, 2], [0.1, 0.5], [0.2, 0.6], [NAN, 0.8])
    a, b, c, d = [(tmp_path / name).read_bytes() for name in "abcd"]
    assert a == b
    assert len({a, c, d}) == 3
