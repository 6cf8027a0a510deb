"""`bin/docs` builds the site, with everything that is public in its reference."""

import dataclasses
import html
import pathlib
import re
import subprocess

import numpy as np
import pytest
from scipy import stats

from bin import docs
from docs import evidence, from_code, reference, verdicts
from tests import commands
from tff_reg import settings, tables
from tff_reg.experiment.config import run_config
from tff_reg.experiment.report import claims
from tff_reg.experiment.series import tuning
from tff_reg.methods import cards, catalogue, overview
from tff_reg.tasks import studies

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
    assert "| measured here | 2 classes: +1.0 [−0.3, +2.2] points to FedAvg" in page
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
    blocks = verdicts.blocks()
    for text in texts:
        assert docs.with_blocks(text, blocks) == text, "bin/docs --readme writes it"
    there = " ".join(texts)
    for name in blocks:
        assert there.count(f"<!-- bin/docs --readme writes {name}. -->") == 1
    assert "| Drift corrections | `scaffold`, `feddyn`" in there
    pages = [tmp_path / page.name for page in docs.WRITTEN]
    monkeypatch.setattr(docs, "WRITTEN", pages)
    for page, text in zip(pages, texts):
        page.write_text(text.replace("| Drift corrections", "| D"), "utf-8")
    assert commands.call(docs.main, "--readme").returncode == 0
    assert [page.read_text("utf-8") for page in pages] == texts


def rows_of(**verdicts_by_method):
    means = {claims.HOLDS: "0.05", claims.OPPOSITE: "-0.02", claims.OPEN: "0.01"}
    return [
        {
            "method": name,
            "than": "fedavg",
            "expected": "better",
            "where": "",
            "mean": means[verdict],
            "low": "",
            "high": "",
            "p_holm": "0.04",
            "verdict": verdict,
        }
        for name, verdict in verdicts_by_method.items()
    ]


def test_a_verdict_is_that_of_the_tests():
    rows = rows_of(a=claims.HOLDS, b=claims.OPEN, c=claims.OPPOSITE)
    a, b, c = rows
    assert [verdicts.verdict([each]) for each in rows] == [
        "**holds**",
        "not shown",
        "**the opposite holds**",
    ]
    assert verdicts.verdict([a, b]) == "**holds in part** (1 of 2 ahead, 0 behind)"
    assert verdicts.verdict([a, c]) == "mixed (1 of 2 ahead, 1 behind)"
    part = "**the opposite holds in part** (0 of 2 ahead, 1 behind)"
    assert verdicts.verdict([b, c]) == part
    assert verdicts.gain(a) == "+5.0 points to FedAvg (shown)"
    assert verdicts.gain(b) == "+1.0 points to FedAvg (not shown)"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of published studies, which has none."""
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "results")

    def read(name, file):
        path = tmp_path / "results" / name / file
        return tables.from_csv(path.read_text()) if path.exists() else []

    monkeypatch.setattr(studies, "published", read)
    return tmp_path / "results"


def finished_study(where, name):
    """Writes what bin/study leaves of a study of the package; returns its rows."""
    tested = rows_of(scaffold=claims.HOLDS, moon=claims.OPPOSITE, feddyn=claims.OPEN)
    values = [
        {
            "setting": "",
            "method": method,
            "seed": seed,
            **dict.fromkeys(("last_five", "score", "ema"), 0.8 + gain + seed / 100),
            "clients_worst_tenth": 0.5,
            "code": "a1",
        }
        for method, gain in (
            ("fedavg", 0),
            ("scaffold", 0.05),
            ("moon", -0.02),
            ("feddyn", 0.01),
        )
        for seed in range(2)
    ]
    where.mkdir(parents=True)
    (where / "study.toml").write_text(studies.read(name).text)
    (where / "values.csv").write_text(tables.to_csv(values))
    (where / "claims.csv").write_text(tables.to_csv(tested))


def test_lists_tables_and_map_are_those_of_the_published_studies(
    tmp_path, results, monkeypatch
):
    name = "digits_two_classes"
    finished_study(tmp_path / name, name)
    assert verdicts.choice() == "" and evidence.study_tables() == ""
    refused = commands.refusal(commands.call(docs.main, f"--publish={tmp_path / name}"))
    assert "553 of its 561 runs, or tests, are missing" in refused
    trials = [
        (row, column, run)
        for row, column, run in evidence._trials(name)
        if row in ("fedavg", "scaffold", "moon", "feddyn") and run.config.seed < 2
    ]
    monkeypatch.setattr(evidence, "_trials", lambda name: trials)
    monkeypatch.setattr(evidence, "commit_of", lambda code: "c0ffee")
    done = commands.call(docs.main, f"--publish={tmp_path / name}")
    assert done.returncode == 0, done.stderr
    assert verdicts.choice() == (
        "- **2 classes** (3 methods): ahead of `fedavg`: `scaffold`; behind: `moon`;"
        " not shown: `feddyn`."
    )
    assert "| FedLC is ahead of FedAvg | its paper | not run |  |" in verdicts.claims()
    said = evidence.study_tables()
    assert "made by the code a1 (commit c0ffee)." in said and "run it again" not in said
    assert "| `scaffold` | 85.5 | 85.5 | 85.5 | 50.0 | **+5.0** | 0.04 |" in said
    (row,) = evidence.rows_of_map()  # Of other families no methods are there.
    assert (row["role"], row["methods"]) == ("Drift corrections", "scaffold, feddyn")
    assert (
        row["mean"] == pytest.approx((0.05 + 0.01) / 2) and row["ahead"] == "scaffold"
    )
    # Less what chance gives in samples of 72 examples.
    assert 0.7 < float(row["label_distance"]) < 0.8
    # A change of the study or of a method's numbers is said until it is run again.
    read = studies.read
    other = dataclasses.replace(read(name), text="other")
    monkeypatch.setattr(studies, "read", {name: other}.get)
    assert "before the study was changed: run it again" in evidence.study_tables()
    monkeypatch.setattr(studies, "read", read)
    protocol = evidence.protocol
    monkeypatch.setattr(evidence, "protocol", lambda name: protocol(name) + "lr=1")
    assert "Made with other settings than now: run" in evidence.study_tables()
    monkeypatch.setattr(evidence, "protocol", protocol)
    now = evidence.ledger()
    now["moon"]["training_loss_1"] = "9"
    monkeypatch.setattr(evidence, "ledger", lambda: now)
    assert "the code of `moon` changed: run it again" in evidence.study_tables()


def test_a_tuned_study_says_what_was_chosen_beside_the_default(results):
    rows = [
        {"setting": "", "method": "man", "seed": seed, "last_five": value}
        for seed, value in enumerate((0.5, 0.7, 0.1))  # The third is not tuned.
    ]
    grid = [
        {
            "process": "man",
            "client_learning_rate": rate,
            "man_strength": 0.15,
            "fedprox_strength": "",
            "runs": 2,
            tuning.MEAN: 0.6,
            tuning.DEVIATION: 0.1,
            "not_finite": 0,
            tuning.BEST: rate == 0.3,
        }
        for rate in (0.1, 0.3)
    ]
    for name, file, of in (
        ("digits_two_classes", "values.csv", rows),
        ("digits_tuned", "grid.csv", grid),
    ):
        (results / name).mkdir(parents=True)
        (results / name / file).write_text(tables.to_csv(of))
    found = evidence._tuned("digits_tuned", {"0", "1"})
    assert found == {"man": ["60.0", "learning_rate 0.3, man_strength 0.15"]}
    assert not evidence._tuned("digits_two_classes", {"0", "1"})
    # Its final runs, one for each method and seed, are what is published.
    trials = evidence._trials("digits_tuned")
    assert len(trials) == 9 * 9 and {setting for _, setting, _ in trials} == {""}


def test_a_study_that_is_another_is_not_published(tmp_path, results):
    name = "digits_two_classes"
    where = tmp_path / name
    assert "No such file" in commands.refusal(
        commands.call(docs.main, f"--publish={where}")
    )
    finished_study(where, name)
    (where / "study.toml").write_text("another")
    said = commands.refusal(commands.call(docs.main, f"--publish={where}"))
    assert "study.toml is not tasks/studies/digits_two_classes.toml" in said
    assert not results.exists()


def test_ranks_that_agree_have_a_tau_of_one(results, tmp_path, monkeypatch):
    column = {"fedavg": 1.0, "scaffold": 4.0, "moon": 0.5, "man": 2.0, "fedsam": 1.5}
    other = {name: -value for name, value in column.items()}
    folder = results / "digits_two_classes"
    folder.mkdir(parents=True)
    rows = [
        {"setting": "", "method": name, "seed": 0, "last_five": value}
        for name, value in column.items()
    ]
    (folder / "values.csv").write_text(tables.to_csv(rows))
    known = {"same": {"a": column}, "both": {"a": column, "b": other}}
    monkeypatch.setattr(evidence, "_published_cells", lambda: known)
    same, both = evidence.transfer_rows()
    assert [same["tau"], same["high"]] == pytest.approx([1, 1])
    assert [both["tau"], both["low"]] == pytest.approx([0, 0])
    assert same["methods"] == 5 and both["columns"] == 2


def test_parts_of_a_published_table_are_columns_of_their_own():
    columns = evidence._published_cells()["fedmlb/table1"]
    assert {key: column["fedavg"] for key, column in columns.items()} == {
        ("1", "CIFAR-100"): 47.83,
        ("1", "Tiny-ImageNet"): 35.42,
        ("1 (500 clients)", "CIFAR-100"): 37.48,
        ("1 (500 clients)", "Tiny-ImageNet"): 29.48,
    }


def test_a_method_of_which_a_run_diverged_has_no_mean():
    rows = [
        {"setting": "", "method": method, "last_five": value}
        for method, value in (("a", "0.5"), ("a", ""), ("b", "0.25"), ("b", "0.5"))
    ]
    means = [evidence._mean(rows, name, "", "last_five") for name in ("a", "b", "c")]
    assert means == ["-", "37.5", "-"]


def test_ranks_that_are_drawn_several_times_have_scipys_tau():
    names = ["fedavg", "scaffold", "moon", "man", "fedsam"]
    ours = dict(zip(names, (3, 1, 1, 4, 2)))
    column = dict(zip(names, (2, 1, 5, 5, 3)))
    draws = np.array([[0, 1, 2, 3, 4], [4, 4, 1, 0, 2], [3, 3, 3, 3, 0]])
    counts = np.stack([np.bincount(draw, minlength=5) for draw in draws])
    taus = evidence._taus(ours, [column], names, counts)
    for tau, draw in zip(taus, draws):
        own, other = ([by[names[i]] for i in draw] for by in (ours, column))
        assert tau == pytest.approx(stats.kendalltau(own, other).statistic)
