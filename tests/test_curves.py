import struct

import pytest

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
    curves.write_curves(path, drawn)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1440, 900)


def test_a_pdf_beside_it_has_the_same_bytes_each_time():
    drawn = [curves.draw_curves([curve("man")]) for _ in range(2)]
    made, again = (curves.pictures(figure, "a") for figure in drawn)
    assert [*made] == ["a.png", "a.pdf"] and made == again
    first, second = made["a.pdf"], again["a.pdf"]
    assert first.startswith(b"%PDF") and first == second
    # Letters, not their outlines (Type 3), which some publishers refuse.
    assert b"/TrueType" in first or b"/CIDFontType2" in first


def test_shows_means_and_bands(tmp_path):
    def drawn(name, mean, deviation):
        path = tmp_path / name
        each = curves.Curve("fedavg", [1, 2], [0.4, mean], [0.1, deviation])
        curves.write_curves(path, [each])
        return path.read_bytes()

    first = drawn("a", 0.5, 0.1)
    assert drawn("b", 0.5, 0.1) == first
    assert drawn("c", 0.6, 0.1) != first
    assert drawn("d", 0.5, 0.05) != first


def test_14_curves_are_told_apart_by_a_legend_in_the_picture():
    drawn = [curve(f"fedalign+method{index}", 0.5 + index / 100) for index in range(14)]
    figure = curves.draw_curves(drawn)
    (axes,) = figure.axes
    styles = {
        (line.get_color(), line.get_linestyle())
        for line in axes.lines
        if len(line.get_xdata()) > 1
    }
    assert len(styles) == 14
    figure.canvas.draw()
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[0] == "fedalign+method13 63.0 %" and len(names) == 14
    box = axes.get_legend().get_window_extent()
    assert axes.get_window_extent().x1 <= box.x0 and box.x1 < 1440
