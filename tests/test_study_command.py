"""`bin/study` as a user meets it: lists, claims that are tested, what is refused."""

import datetime
import types

import numpy as np
import pytest

from tests import commands
from tests.experiment.finished import finish, read_csv
from tff_reg.commands import compare, study
from tff_reg.experiment.report import claims, differences, quantities
from tff_reg.experiment.series import plan as series
from tff_reg.tasks import studies

TEXT = """
question = "Does it help?"
written = 2026-11-29
[compare]
processes = "fedavg,man,fedprox"
seeds = 6
settings = "concentration=0.1,0.9"
total_rounds = 2
[[claims]]
says = "Both are better."
than = "fedavg"
[[claims]]
says = "MAN is worse where skew is strong."
methods = ["man"]
than = "fedavg"
expected = "worse"
where = ["concentration=0.1"]
"""
# By setting and method: the final accuracies of six seeds.
BASE = np.array([0.5, 0.52, 0.49, 0.51, 0.5, 0.53])
FINALS = {
    ("concentration=0.1", "fedavg"): BASE,
    ("concentration=0.1", "man"): BASE + [0.02, 0.03, 0.01, 0.02, 0.04, 0.03],
    ("concentration=0.1", "fedprox"): BASE + [0.01, -0.02, 0.03, -0.01, 0.0, 0.02],
    ("concentration=0.9", "fedavg"): BASE + 0.2,
    ("concentration=0.9", "man"): BASE + [0.21, 0.23, 0.21, 0.22, 0.21, 0.24],
    ("concentration=0.9", "fedprox"): BASE + [0.2, 0.21, 0.18, 0.2, 0.2, 0.2],
}


def write(path, where, text):
    """Writes a study, and that its first run had this text."""
    path.write_text(text)
    (where / "study.toml").write_text(text)


@pytest.fixture
def written(tmp_path):
    """A study's file, whose runs are all finished, and their directory."""
    path, where = tmp_path / "own.toml", tmp_path / "made"
    where.mkdir()
    write(path, where, TEXT)
    flags = {**studies.read(str(path)).flags, "output_dir": where}
    planned = compare.planned(
        compare.read_flags([f"--{name}={value}" for name, value in flags.items()])
    )
    for row, column, run in planned.trials:
        finish(run, [0.1, float(FINALS[column, row][run.config.seed])])
    return path, where


def call(*arguments):
    return commands.call(study.main, *map(str, arguments))


def test_claims_are_tested_over_seeds_and_all_of_a_study_by_holm(written):
    path, where = written
    done = call(path, f"--output_dir={where}")
    assert done.returncode == 0, done.stderr
    rows = read_csv(where / "claims.csv")
    assert [(r["claim"], r["method"]) for r in rows] == [
        ("1", "man"),
        ("1", "fedprox"),
        ("2", "man"),
    ]
    headings = ("concentration=0.1", "concentration=0.9")
    own = np.mean([FINALS[h, "man"] - FINALS[h, "fedavg"] for h in headings], axis=0)
    # Of six seeds the least p is 1/32, three times of which is above 0.05.
    assert "is 0.094: no claim can be shown at 0.05; it takes 7 seeds." in done.stderr
    first, second, third = rows
    assert float(first["mean"]) == pytest.approx(own.mean())
    assert float(first["p"]) == differences.sign_flip([*own]) == 2 / 64
    # Three tests: the least two p are three and two times as large.
    assert float(first["p_holm"]) == float(third["p_holm"]) == 6 / 64
    assert float(second["p_holm"]) == float(second["p"]) > 0.05
    assert [row["verdict"] for row in rows] == ["not shown"] * 3
    values = read_csv(where / "values.csv")
    assert len(values) == 36 and "code" in values[0]
    assert {
        (row["setting"], row["method"], int(row["seed"])): float(row["score"])
        for row in values
    } == {(*key, seed): x for key, xs in FINALS.items() for seed, x in enumerate(xs)}
    said = (where / "study.md").read_text()
    assert "## 1. Both are better." in said and "**not shown: 2.**" in said
    assert "no claim can be shown at 0.05; it takes 7 seeds. A claim holds" in said
    assert said in done.stdout and (where / "study.toml").read_text() == TEXT
    # The study may not be another afterwards.
    path.write_text(TEXT.replace("worse", "better"))
    again = call(path, f"--output_dir={where}")
    assert again.returncode == 2
    assert "and the study was changed since" in commands.refusal(again)


def test_a_claim_is_tested_in_each_setting_by_itself(written):
    path, where = written
    of_each = 'than = "fedavg"\neach = true\n[['
    write(path, where, TEXT.replace('than = "fedavg"\n[[', of_each))
    done = call(path, f"--output_dir={where}")
    assert done.returncode == 0 and "5 tests" in done.stderr, done.stderr
    rows = read_csv(where / "claims.csv")
    assert len(rows) == 5
    for row in rows:
        own = FINALS[row["where"], row["method"]] - FINALS[row["where"], "fedavg"]
        assert float(row["mean"]) == pytest.approx(own.mean())
    said = (where / "study.md").read_text()
    assert "all settings, each by itself" in said and "| concentration=0.9 |" in said


def test_what_did_not_end_is_a_test_that_showed_nothing():
    by_seed = {
        name: {seed: float(value) for seed, value in enumerate(values)}
        for (heading, name), values in FINALS.items()
        if heading == "concentration=0.1" and name != "fedprox"
    }
    made = types.SimpleNamespace(by_seed=lambda name: by_seed, quantity=quantities.of)
    names, headings = ["fedavg", "man", "fedprox", "local"], ["a", "b"]
    claim = studies.Claim("", "fedavg", each=True)
    tests = claims.planned([claim], names, headings)
    assert [(each.method, each.where) for each in tests] == [
        (method, (heading,)) for heading in headings for method in ("man", "fedprox")
    ]
    # One of four was measured; its p counts four times.
    first, *others = claims.tested(tests, {"a": made})
    assert (first["p"], first["p_holm"]) == (1 / 32, 4 / 32)
    assert {row["verdict"] for row in others} == {"not measured"}
    # There is no mean over settings without one of them.
    (whole, _) = claims.planned([studies.Claim("", "fedavg")], names, headings)
    assert claims.tested([whole], {"a": made})[0]["mean"] is None


def test_a_study_is_older_than_its_runs(written):
    path, where = written
    (where / "study.toml").unlink()
    said = commands.refusal(call(path, f"--output_dir={where}"))
    assert "it has files that are older than the study; give another" in said
    assert not (where / "study.toml").exists()


def test_a_study_without_runs_may_be_changed_and_listing_writes_it_down(tmp_path):
    path, where = tmp_path / "own.toml", tmp_path / "made"
    for text in (TEXT.replace("worse", "better"), TEXT):
        path.write_text(text)
        done = call(path, f"--output_dir={where}", "--list_commands")
        assert done.returncode == 0 and done.stdout.count(" run ") == 36
        assert (where / "study.toml").read_text() == text
        assert [*where.iterdir()] == [where / "study.toml"]


def test_a_claim_holds_or_its_opposite_does(written, monkeypatch):
    path, where = written
    monkeypatch.setattr(claims, "LEVEL", 0.1)
    assert call(path, f"--output_dir={where}").returncode == 0
    rows = read_csv(where / "claims.csv")
    assert [row["verdict"] for row in rows] == [
        "holds",
        "not shown",
        "the opposite holds",
    ]


def test_the_studies_of_the_package_can_be_carried_out(tmp_path):
    listed = call("--list").stdout
    for name in studies.names():
        found = studies.read(name)
        assert f"{name}  " in listed and found.question in listed
        assert found.written <= datetime.date.today()
        done = call(name, "--list_commands", f"--output_dir={tmp_path / name}")
        assert done.returncode == 0 and "no claim can" not in done.stderr, done.stderr
        names = series.process_names(found.flags["processes"].split(","))
        # The final runs of a grid follow from the tuning.
        count = int(found.flags["seeds"]) * (1 if "grid" in found.flags else len(names))
        assert done.stdout.count(" run ") % count == 0
        written = tmp_path / name / "study.toml"
        assert [*written.parent.iterdir()] == [written]


def test_a_new_study_is_one_to_fill_in(tmp_path):
    path = tmp_path / "mine.toml"
    done = call(f"--new={path}")
    assert done.returncode == 0 and "fill it in" in done.stdout
    assert studies.read(str(path)).claims[0].quantity == "ema"
    assert "such a file already" in commands.refusal(call(f"--new={path}"))
    gone = tmp_path / "gone" / "mine.toml"
    assert "No such file or directory" in commands.refusal(call(f"--new={gone}"))


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("question", "qestion", "unknown key qestion (did you mean question?)"),
        ('than = "fedavg"\n[[', 'than = "kd"\n[[', "claim 1: kd is not among the"),
        ('"worse"', '"less"', "claim 2: expected is better or worse"),
        ("methods =", "method =", "claim 2 has an unknown key method (did you mean"),
        ('["concentration=0.1"]', '["alpha"]', "claim 2: there is no setting alpha"),
        ("seeds = 6", "", "[compare] has no seeds"),
        ("2026-11-29", '"today"', "written is no date"),
        ("2026-11-29", "2026-11-29T10:00:00", "written is no date"),
        ("fedavg,man", "fedavk,man", "(did you mean fedavg"),
        ("2026-11-29", "2999-01-01", "2999-01-01 is in the future"),
        ('"Does it help?"', "3", "it: question is 3, and must be a text in quotes"),
        ('expected = "worse"', 'each = "yes"', "each is 'yes', and must be true or"),
        ('["man"]', '"man"', "methods is 'man', and must be a list of texts"),
        ('["man"]', '["man", "man"]', "claim 2 has a method twice"),
        ('["man"]', '["man", "fedavg"]', "claim 2: fedavg is compared with itself"),
        ('"fedavg,man,fedprox"', '["fedavg", "man"]', "processes is a text"),
        ("[compare]", "[compare", "at line"),
        ('than = "fedavg"\n[[', 'than = "fedavg"\nquantity = "nix"\n[[', "nix"),
        (
            'than = "fedavg"\n[[',
            'than = "fedavg"\nquantity = "last_five"\n[[',
            "last_five: the runs need 5 evaluated rounds for it",
        ),
    ],
)
def test_mistakes_in_a_study_are_told_before_anything_runs(tmp_path, old, new, words):
    path = tmp_path / "own.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    done = call(path, f"--output_dir={tmp_path / 'made'}")
    said = commands.refusal(done)
    assert said.startswith("bin/study: ") and words in said
    assert not (tmp_path / "made").exists()


def test_claims_are_written_in_two_pairs_of_brackets(tmp_path):
    path = tmp_path / "own.toml"
    before, one, _ = TEXT.split("[[claims]]")
    path.write_text(f"{before}[claims]{one}")
    assert "claims: write [[claims]], in two pairs" in commands.refusal(call(path))


def test_a_study_that_does_not_exist_is_refused():
    assert "there is no such study" in commands.refusal(call("nothing"))
    assert "No such file" in commands.refusal(call("nothing.toml"))
