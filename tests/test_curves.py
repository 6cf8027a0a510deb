import struct

import pytest
from matplotlib import text

from tff_reg import curves


def curve(name, last=0.5, rounds=(1, 2, 3)):
    means = [last * number / len(rounds) for number in range(1, len(rounds) + 1)]
    return curves.Curve(name, list(rounds), means, [0.01] * len(rounds))


@pytest.mark.parametrize(
    "drawn",
    [
        [curve("fedavg")],
        [curve("fedalign+fedmlb+univarfl", 1.0, rounds=[1])],
        [curve(f"method{index}", 0.5 + index / 1000) for index in range(14)],
        [curve(f"method{index}") for index in range(40)],
        [curve("fedavg", 0.9, range(10, 501, 10)), curve("man", 0.0, range(1, 26))],
        [curves.Curve("test", [2, 3], [0.6, 0.8])],
    ],
)
def test_writes_a_png_of_readable_size(tmp_path, drawn):
    path = tmp_path / "curves.png"
    curves.write_curves(path, drawn, title="digits", subtitle="3 seeds")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1440, 900)


def test_a_pdf_beside_it_has_the_same_bytes_each_time(tmp_path):
    for name in ("a.png", "b.png"):
        curves.write_curves(tmp_path / name, [curve("man")], title="digits", pdf=True)
    first, second = ((tmp_path / f"{name}.pdf").read_bytes() for name in "ab")
    assert first.startswith(b"%PDF") and first == second
    # Letters, not their outlines (Type 3), which some publishers refuse.
    assert b"/TrueType" in first or b"/CIDFontType2" in first
    assert len([*tmp_path.iterdir()]) == 4


def test_shows_means_and_bands(tmp_path):
    def drawn(name, mean, deviation):
        path = tmp_path / name
        each = curves.Curve("fedavg", [1, 2], [0.4, mean], [0.1, deviation])
        curves.write_curves(path, [each], title="digits")
        return path.read_bytes()

    first = drawn("a", 0.5, 0.1)
    assert drawn("b", 0.5, 0.1) == first
    assert drawn("c", 0.6, 0.1) != first
    assert drawn("d", 0.5, 0.05) != first


def test_14_curves_are_told_apart_and_their_names_do_not_touch(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(curves, "save", lambda axes, path, pdf: kept.append(axes))
    drawn = [curve(f"method{index}", 0.5 + index / 1000) for index in range(14)]
    curves.write_curves(tmp_path / "a", drawn, title="digits")
    (axes,) = kept
    styles = {
        (line.get_color(), line.get_linestyle())
        for line in axes.lines
        if len(line.get_xdata()) > 1
    }
    assert len(styles) == 14
    axes.figure.canvas.draw()
    labels = [t for t in axes.texts if isinstance(t, text.Annotation)]
    boxes = [text.Text.get_window_extent(label) for label in labels]
    assert len(boxes) == 14
    boxes.sort(key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
    edge = axes.get_window_extent()
    assert all(edge.x1 < box.x0 and box.x1 < 1440 for box in boxes)


@pytest.mark.parametrize(
    "wanted, places",
    [
        ([1.0, 5.0, 9.0], [1.0, 5.0, 9.0]),
        # Two at one place move apart by the gap, half each.
        ([5.0, 5.0], [4.0, 6.0]),
        # Their order stays, and so does that of the arguments.
        ([5.2, 4.8], [6.0, 4.0]),
        # A pool pushes its neighbour: 3.5, 5, 5 are nearest to 2.5, 4.5, 6.5.
        ([3.5, 5.0, 5.0], [2.5, 4.5, 6.5]),
        # The edges hold.
        ([0.0, 0.0], [0.0, 2.0]),
        ([10.0, 10.0, 1.0], [8.0, 10.0, 1.0]),
    ],
)
def test_places_keep_their_distance_and_stay_near(wanted, places):
    assert curves.spread(wanted, 2.0, 0.0, 10.0) == pytest.approx(places)


def test_as_many_places_as_fit_fill_the_range():
    assert curves.spread([5.0] * 6, 2.0, 0.0, 10.0) == pytest.approx(
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    )
