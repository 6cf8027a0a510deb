"""Every command that README, CONTRIBUTING and the site show is run, in small."""

import importlib
import importlib.metadata
import shlex
import sys
import time

import numpy as np
import pytest

from tests import commands, documents
from tests.tasks import layouts
from tff_reg.commands import run
from tff_reg.experiment.config import scale
from tff_reg.methods import catalogue

# What begins so is not run here, and why, or by which test it is.
ELSEWHERE = {
    "bin/test": "test_launch.py, and whoever reads this",
    "bin/lint --fix": "it would change the files that are tested",
    "bin/docs": "test_docs_command.py",
    "bin/bench learning": "benchmarks/test_learning.py: PyTorch is no package of ours",
    "bin/bench parity": "benchmarks/test_parity.py: the others are no package of ours",
    "bin/launch -c pass --runtime=ray": "test_launch.py",
    "uv lock": "it would change the lock, and needs a network",
    "uv export --frozen": "test_package.py",
    "pip install": "test_package.py",
    "PYTHONPATH=$PWD .venv/bin/ray start": "test_ray_cluster.py",
    "bin/run --process=fedalign --runtime=ray --ray_address": "test_ray_cluster.py",
    "export RAY_AUTH_MODE=token": "a setting of Ray's own",
    "bin/compare --processes=fedavg,fedalign --seeds=0,1,2 --output_dir=runs/c": (
        "test_compare_command.py"
    ),
    "xargs ": "test_compare_command.py",
    "sbatch ": "there is no SLURM",
}
# The runs that a page presumes.
PRESUMED = {
    "analysis.md": {
        "digits/fedavg-seed0": "--process=fedavg",
        "digits/man-seed0": "--process=man",
    },
    "deployment.md": {"fedalign-digits-seed0": "--process=fedalign"},
    "reproduce.md": {
        "a-seed0": "--process=fedavg",
        "a-seed1": "--process=fedavg --seed=1",
        "b-seed0": "--process=man",
        "x": "--process=fedavg",
        "y": "--process=fedavg --local_epochs=2",
    },
}
# Longer lists are cut to the first two.
LONGEST = {"--processes": 6, "--run_dir": 3}


def is_elsewhere(command):
    return any(command.startswith(each) for each in ELSEWHERE)


SHOWN = {file: documents.commands(file) for file in documents.files()}
# What several pages show is run for the first of them.
SHOWN_FIRST = {
    command: file for file, lines in reversed(SHOWN.items()) for command in lines
}
TO_RUN = {
    file: [
        command
        for command in lines
        if SHOWN_FIRST[command] == file and not is_elsewhere(command)
    ]
    for file, lines in SHOWN.items()
}


def test_exceptions_are_shown_somewhere():
    shown = [command for lines in SHOWN.values() for command in lines]
    assert len(shown) > 70
    for each in ELSEWHERE:
        assert any(command.startswith(each) for command in shown), each


ARRAYS = {"my_arrays.npz": (16, 4), "cifar10_small.npz": (32, 10)}


def write_data(folder):
    """What the pages call by these names, in small."""
    for name, (size, classes) in ARRAYS.items():
        x, y = layouts.random_images(120, size, size, 3), np.arange(120) % classes
        np.savez(folder / name, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    for part in ("train", "test"):
        layouts.write_class_folders(
            folder / "photos" / part, ["cat", "dog"], 40, 20, 20
        )
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        layouts.write_class_folders(
            folder / "data" / "PACS" / domain, ["dog", "horse", "house"], 10, 16, 16
        )
    for place in (folder, folder / "data"):
        layouts.write_cifar(place, binary=False, num_classes=100, batch=500)
    near = documents.ROOT / "docs" / "examples" / "methods" / "near.py"
    text = near.read_text("utf-8").replace('"near"', '"mine"')
    (folder / "mine.py").write_text(text, "utf-8")
    split = {client: [2 * client, 2 * client + 1] for client in range(100)}
    (folder / "dirichlet0.3_clients100.txt").write_text(str(split))


@pytest.fixture
def a_method(file, tmp_path_factory, monkeypatch):
    """The tutorial's package is installed, but where a page gives its file."""
    folder = tmp_path_factory.mktemp("installed")
    if file.name != "debug_a_method.md":
        documents.install_tutorials_method(folder)
    monkeypatch.syspath_prepend(folder)
    commands.forget_packages(monkeypatch)
    yield
    sys.modules.pop("anchors", None)
    monkeypatch.undo()


def cut(given, flag):
    """A flag with less of a long list; the whole list has to be one of methods."""
    values = given.get(flag, "").split(",")
    if values == ["all"]:
        values = catalogue.names()
    if flag == "--processes":
        assert all(catalogue.parse(each) for each in {*values} - {"", "fedavg"})
    return [f"{flag}={values[0]},{values[1]}"] if len(values) > LONGEST[flag] else []


def in_small(name, arguments):
    """The arguments, and those that make it small."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    small = []
    if "--plugin" in given:  # As from the repository's root.
        file = documents.ROOT / given["--plugin"]
        small = [f"--plugin={file}"] if file.exists() else []
    if "--help" in given or "--list" in given or "--run_dirs" in given:
        return arguments
    if name.endswith("train_program"):
        small = ["--total_rounds=1", "--local_epochs=1"]
    elif name in ("run", "compare", "reproduce"):
        if "--split_file" in given or "--aggregator" in given:
            # These need all of their clients.
            small += ["--total_rounds=1", "--local_epochs=1"]
        else:
            # What is given beside it would stay as large as it is.
            sets = {f"--{setting}" for setting in scale.TINY_MOST}
            if given.get("--partition") == "domain":
                sets -= {"--num_clients"}  # A multiple of the domains.
            arguments = [a for a in arguments if a.partition("=")[0] not in sets]
            small += ["--scale=tiny"]
        if name != "reproduce" and not {"--model", "--recipe"} & given.keys():
            small += ["--model=resnet8"]
        if name != "run":
            small += ["--seeds=1", "--jobs=1", *cut(given, "--processes")]
        if name == "reproduce" or "--recipe" in given:
            small += ["--synthetic_data"] if "--data_dir" not in given else []
        if name == "run" and "--recipe" in given and "--output_dir" not in given:
            # Its own place has a run of the table in small.
            small += ["--output_dir=cell"]
    elif arguments[:1] == ["hessian"]:
        small = ["--examples=24", "--trace_samples=2", "--diagonal_samples=2"]
        small += [f"--clients={min(2, int(given.get('--clients', 2)))}"]
        small += cut(given, "--run_dir")
    return [*arguments, *small]


def call(command):
    program, *arguments = shlex.split(command)
    name = program.removeprefix("bin/")
    if program == "tff-reg":
        name = arguments.pop(0)
    elif name == "launch":
        assert arguments.pop(0) == "-m"
        name = arguments.pop(0)
    module = importlib.import_module(
        name if "." in name else f"tff_reg.commands.{name}"
    )
    if "." not in name:
        assert (documents.ROOT / "bin" / name).exists()
    options = {}
    if name in ("compare", "reproduce"):
        options["executor"] = commands.InThisProcess()
    return commands.call(module.main, *in_small(name, arguments), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [each for each in TO_RUN if TO_RUN[each]], ids=lambda file: file.name
)
def test_a_pages_commands_run(file, tmp_path, monkeypatch, a_method):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    for name, flags in PRESUMED.get(file.name, {}).items():
        given = f"{flags} --scale=tiny --output_dir=runs/{name}"
        done = commands.call(run.main, *given.split())
        assert done.returncode == 0, done.stderr
    failed = {}
    for command in TO_RUN[file]:
        started = time.monotonic()
        done = call(command)
        print(f"{time.monotonic() - started:.1f} s  {command}")
        if done.returncode:
            failed[command] = done.stderr
    assert not failed
