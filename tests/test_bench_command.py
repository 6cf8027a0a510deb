"""The command: its subjects, their flags, and what it says is wrong."""

import json
import sys

import pytest

import benchmarks
from bin import bench
from tests import commands

OTHER = """
from benchmarks.shared import subject
from absl import flags


def define_flags(given):
    flags.DEFINE_integer("sizes", 1, "How many.", flag_values=given)


def run(given):
    if given.sizes < 1:
        raise subject.RefusedError(f"--sizes={given.sizes}: there is nothing to do.")
    subject.say("begun")
    rows = [{"size": size} for size in range(given.sizes)]
    cells = [{"size": str(row["size"]), "quick": str(given.quick)} for row in rows]
    subject.finish(given, rows, subject.to_markdown(cells))


SUBJECT = subject.Subject(
    help="bin/bench other [--sizes=N]", run=run, define_flags=define_flags
)
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A subject that is one file more."""
    (tmp_path / "other.py").write_text(OTHER)
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    yield
    del sys.modules["benchmarks.other"], benchmarks.other


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            [],
            "peers, rounding, runtime, scale, simulation, start (found nothing)",
        ),
        (
            ["nothing", "methods"],
            "scale, simulation, start (found nothing methods)",
        ),
        (["methods", "--methods=fedprx"], "(did you mean fedprox?)"),
        (["methods", "--methods=kd", "--json=no/such/file"], "no/such"),
        (["methods", "--json=/proc/x"], "--json=/proc/x: it cannot be written to"),
        (["methods", "--nope"], "nope"),
        (["methods", "--model=resnet7"], "resnet7"),
        (["runtime", "--methods=kd"], "methods"),
        (["parity", "--only=tff,sgd"], "--only=sgd: choose some of tff, fluke"),
        (["peers", "--cases=cnn,vgg"], "--cases=cnn,vgg: choose some of digits"),
    ],
)
def test_refusals(arguments, said):
    assert said in commands.refusal(commands.call(bench.main, *arguments), "bench")


def test_help_lists_the_subjects():
    done = commands.call(bench.main, "--help")
    assert done.returncode == 0
    for name in ("client_states", "hessian", "methods", "runtime", "start"):
        assert f"bin/bench {name} [" in done.stdout


def test_a_subject_is_one_file_with_its_flags_and_its_help(other, tmp_path):
    assert "bin/bench other [--sizes=N]" in commands.call(bench.main, "--help").stdout

    path = tmp_path / "other.json"
    done = commands.call(bench.main, "--quick", "other", "--sizes", 2, "--json", path)

    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text("utf-8")) == [{"size": 0}, {"size": 1}]
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["begun"],
        [],
        ["|", "size", "|", "quick", "|"],
        ["|", "----", "|", "----:", "|"],
        ["|", "0", "|", "True", "|"],
        ["|", "1", "|", "True", "|"],
        [],
    ]


def test_refusal_of_a_subject(other):
    done = commands.call(bench.main, "other", "--sizes=0")
    said = "bin/bench: --sizes=0: there is nothing to do."
    assert commands.refusal(done) == said


def test_neither_numpy_nor_tensorflow_is_imported_for_a_refusal():
    with commands.OtherProcess("numpy", "tensorflow", "grpc") as process:
        done = process.call("bin.bench", "runtime", "--nope")
    assert done.returncode == 2 and "nope" in done.stderr
