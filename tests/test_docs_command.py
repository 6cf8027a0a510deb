"""`bin/docs` builds the site, with everything that is public in its reference."""

import html
import pathlib
import re
import subprocess

import pytest

from bin import docs
from docs import from_code, reference, verdicts
from tests import commands
from tff_reg import settings
from tff_reg.experiment.config import run_config
from tff_reg.methods import cards, catalogue, overview

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    directory = tmp_path_factory.mktemp("docs") / "site"
    # A site that is there already, with a page that is no more.
    directory.mkdir()
    (directory / ".buildinfo").touch()
    (directory / "gone.html").touch()
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = commands.start("docs", f"--output_dir={directory}", **pipes)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == str(directory / "index.html")
    return directory


@pytest.mark.slow
def test_an_older_site_is_replaced_and_nothing_is_left_beside_it(site):
    assert not (site / "gone.html").exists()
    assert list(site.parent.iterdir()) == [site]


@pytest.mark.slow
def test_types_have_the_names_that_users_import_them_by(site):
    for page in (site / "generated").rglob("*.html"):
        text = html.unescape(re.sub("<[^>]*>", "", page.read_text("utf-8")))
        assert "tensorflow.python" not in text, page.name
        assert "tensorflow_federated.python" not in text, page.name
        # None of a docstring's sections is left as it was written.
        sections = r"<p>[^<]*\b(Args|Returns|Raises|Attributes|Yields):\s"
        assert not re.search(sections, page.read_text("utf-8")), page.name


@pytest.mark.slow
@pytest.mark.parametrize("name", overview.ours())
def test_a_methods_page_has_its_formula_and_its_hyperparameters(site, name):
    page = (site / f"generated/methods/{name}.html").read_text("utf-8")
    assert 'class="formula"><math ' in page
    for each in settings.settings_of(overview.ours()[name]):
        assert f"--{name}_{each.name}" in page
    assert f'{name}.png" />' in page and (site / f"_images/{name}.png").exists()


def test_the_readme_counts_the_kinds_of_evidence():
    checked = [method.card.checked for method in overview.ours().values()]
    counts = [checked.count(kind) for kind in cards.KINDS]
    readme = (ROOT / "README.md").read_text("utf-8")
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
    words += ["nine", "ten", "eleven", "twelve", "thirteen", "fourteen"]
    assert f"{counts[0]} of the {len(checked)} methods are checked" in readme
    assert f"{words[counts[1]]} against equations in" in readme
    assert f"{words[counts[2]]} against hand-computed values" in readme


def test_a_card_has_what_was_measured_and_the_methods_that_conflict():
    page = from_code.method_page("man")
    assert "| measured here | digits, Dir(0.1): 93.4 % (FedAvg 92.5); digits" in page
    assert "| cost of a step | 1.08 of FedAvg's" in page
    assert "| combines with | all (" in page
    assert "all but `scaffold`, `feddc`, `fedspeed`" in from_code.method_page("feddyn")


def test_the_page_of_flags_has_every_flag_once():
    page = from_code.flags_page()
    for each in run_config.listed():
        assert len(re.findall(rf"\| `--(\[no\])?{each.name}` \|", page)) == 1


def test_every_method_has_a_curve_beside_fedavgs(tmp_path):
    known = {name for file in from_code._CURVES for name in from_code._curves(file)}
    # The server's model is not what the others are for.
    own = {name for name in overview.ours() if catalogue.has_own_models(name)}
    assert {"fedavg", *overview.ours()} - own <= known
    from_code.draw_curves(tmp_path / "drawn.png", "man")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_a_docstring_becomes_what_sphinx_reads():
    lines = [
        "Takes `a * b` of *many*; see",
        "`x` and h_i_.",
        "",
        "    f(*x)",
        "",
        "Args:",
        "  *rest: With |w| of",
        "    two lines.",
    ]
    reference.to_rst(None, "function", "f", None, None, lines)
    assert lines == [
        "Takes ``a * b`` of \\*many\\*; see",
        "``x`` and h_i\\_.",
        "",
        "::",
        "",
        "    f(*x)",
        "",
        "Args:",
        "  *rest: With \\|w\\| of",
        "    two lines.",
        "",
    ]


def test_a_warning_is_an_error(tmp_path, monkeypatch, capfd):
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "conf.py").write_text("extensions = ['myst_parser']\n")
    (sources / "index.md").write_text("# Title\n\n{doc}`nowhere`\n")
    monkeypatch.setattr(docs, "SOURCES", sources)
    done = commands.call(docs.main, f"--output_dir={tmp_path / 'out'}")
    # So is a reference to a place that is not there.
    assert done.returncode == 1
    assert "unknown document: 'nowhere'" in done.stderr + capfd.readouterr().err


@pytest.mark.parametrize("name", ["mine.txt", "index.html"])
def test_a_directory_with_something_else_is_left_alone(name, tmp_path):
    (tmp_path / name).write_text("mine")
    done = commands.call(docs.main, f"--output_dir={tmp_path}")
    assert commands.refusal(done) == (
        f"bin/docs: --output_dir={tmp_path} has something else in it; give another one."
    )
    assert (tmp_path / name).read_text() == "mine"


def test_tables_verdicts_and_lists_are_those_of_their_files(monkeypatch, tmp_path):
    texts = [page.read_text("utf-8") for page in docs.WRITTEN]
    for text in texts:
        assert docs.with_blocks(text) == text, "bin/docs --readme writes it"
    there = " ".join(texts)
    for name in verdicts.blocks():
        assert there.count(f"<!-- bin/docs --readme writes {name}. -->") == 1
    assert "| Drift corrections | `scaffold`, `feddyn`" in there
    pages = [tmp_path / page.name for page in docs.WRITTEN]
    monkeypatch.setattr(docs, "WRITTEN", pages)
    for page, text in zip(pages, texts):
        page.write_text(text.replace("| Drift corrections", "| D"), "utf-8")
    assert commands.call(docs.main, "--readme").returncode == 0
    assert [page.read_text("utf-8") for page in pages] == texts


def test_a_verdict_is_that_of_the_table(monkeypatch, tmp_path):
    lines = ["method,seeds,accuracy,top eigenvalue", "fedavg,3,50.0 ± 1.0,10.0"]
    lines += ["a,3,52.0 ± 1.0,9.0", "b,3,51.0 ± 1.0,11.0", "c,3,47.0 ± 1.0,9.5"]
    (tmp_path / "t.csv").write_text("\n".join([*lines, "d,1,50.1,10.0", ""]))
    monkeypatch.setattr(verdicts, "_FIGURES", tmp_path)

    def verdict(methods, column="accuracy"):
        return verdicts._versus("t", methods, column).verdict()

    # Twice the standard error of a difference is 2 (1 / 3 + 1 / 3)^(1/2) = 1.63.
    assert [verdict(each) for each in "abc"] == ["**holds**", "unclear", "**fails**"]
    assert verdict("a b") == "**holds** (1 of 2 ahead, 0 behind)"
    assert verdict("a c") == "mixed (1 of 2 ahead, 1 behind)"
    assert verdict("d") == "unclear (one seed)"  # The other one has a spread.
    assert verdict("a", "top eigenvalue") == "**holds**"  # Smaller is flatter.
    monkeypatch.setitem(verdicts._NOISE, "t", 2.5)
    assert verdict("a") == "unclear"


def test_what_to_avoid_is_what_the_table_has_far_behind():
    text, rows = verdicts.choice(), verdicts._table("which-by-skew")
    far = text.partition("with two classes per client also")[2].partition("behind")[0]
    both = text.partition("Under both avoid")[2].partition("behind")[0]
    for name, row in rows.items():
        behind = 89.4 - float(row["2 classes"].partition(" ")[0])
        assert (f"`{name}`" in far + both) == (behind >= 10), name
    assert "`fedlc`" in far
    assert text.startswith(f"The table has {len(rows)} of the {len(overview.ours())} ")
