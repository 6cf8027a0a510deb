"""Holds that the file BUILD is complete, with the dependencies of the code."""

import ast
import functools
import graphlib
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
RULES = ("py_library", "py_binary", "py_test", "sh_binary")


@functools.cache
def files():
    """The repository's files, without what is hidden or what Bazel ignores."""
    ignored = (ROOT / ".bazelignore").read_text().split()
    ignored.append("tasks")  # Their name is tff_reg/tasks, which is a link there.
    found = set()
    for folder, inner, names in os.walk(ROOT, followlinks=True):
        path = pathlib.Path(folder).relative_to(ROOT)
        inner[:] = [
            name
            for name in inner
            if name[0] != "." and (path / name).as_posix() not in ignored
        ]
        found.update((path / name).as_posix() for name in names)
    return found


def python_files():
    return {file for file in files() if file.endswith(".py")}


def glob(include, exclude=()):
    """The files that match, as Bazel finds them; some must."""

    def matching(patterns):
        found = {path for pattern in patterns for path in ROOT.glob(pattern)}
        return {path.relative_to(ROOT).as_posix() for path in found} & files()

    found = matching(include) - matching(exclude)
    assert found, f"glob({include}) finds nothing"
    return sorted(found)


@functools.cache
def read_targets():
    """The rules of BUILD by name: {"kind": ..., "srcs": [...], "deps": [...], ...}.

    BUILD is in Starlark, which Python can run.
    """
    targets = {}

    def define(kind, *, name, **values):
        assert name not in targets, f"{name} is there twice"
        targets[name] = {"kind": kind, "deps": [], "data": [], **values}

    known = {kind: functools.partial(define, kind) for kind in RULES}
    known.update(glob=glob, len=len, list=list, package=lambda **_: None)
    exec((ROOT / "BUILD").read_text(), {"__builtins__": known})
    return targets


def owners():
    """The library or command of each source file; of a test, what the tests share."""
    listed = [
        (source, name)
        for name, target in read_targets().items()
        for source in target["srcs"]
        if target["kind"] != "py_test"
    ]
    assert len(dict(listed)) == len(listed), "a file is in two targets"
    return dict(listed)


def imported_files(file):
    """The files of ours that `file` imports, those of `lazy.module` too.

    With the packages that they are in, which are imported before them.
    """
    names = {file.removesuffix(".py").replace("/", ".")}
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.split("/")[: -node.level] if node.level else []
            module = ".".join(above + ([node.module] if node.module else []))
            names.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy.module":
            names.add(ast.literal_eval(node.args[0]))
    paths = set()
    for name in names:
        parts = name.split(".")
        paths.update("/".join(parts[: end + 1]) for end in range(len(parts)))
    found = {f"{path}{end}" for path in paths for end in (".py", "/__init__.py")}
    return (found & files()) - {file}


def test_every_python_file_is_in_one_library_or_command():
    assert not python_files() - set(owners())


def test_every_file_of_tests_is_a_test_of_that_name():
    tests = {
        name: target["srcs"]
        for name, target in read_targets().items()
        if target["kind"] == "py_test"
    }

    assert tests == {
        file.removesuffix(".py"): [file]
        for file in python_files()
        if pathlib.Path(file).name.startswith("test_")
    }


def test_every_listed_file_and_dependency_exists():
    targets = read_targets()
    for name, target in targets.items():
        for label in target["srcs"] + target["data"] + target["deps"]:
            if label.startswith(":"):
                assert label[1:] in targets, f"{name}: {label}"
            else:
                assert label in files(), f"{name}: {label}"


def test_dependencies_are_those_of_the_imports():
    owner = owners()
    wrong = []
    for name, target in read_targets().items():
        needed = {
            owner[file]
            for source in target["srcs"]
            if source.endswith(".py")
            for file in imported_files(source) & set(owner)
        }
        if target["kind"] == "py_test":
            needed = {"tests"}  # which has the tests' files, too
        declared = {label[1:] for label in target["deps"]}
        missing, too_much = needed - {name} - declared, declared - needed
        if missing or too_much:
            wrong.append(
                f"{name}: missing {sorted(missing)}, too much {sorted(too_much)}"
            )

    assert not wrong, "\n".join(wrong)


def test_imports_go_one_way():
    needed = {
        name: [label[1:] for label in target["deps"]]
        for name, target in read_targets().items()
    }

    graphlib.TopologicalSorter(needed).prepare()  # A CycleError names the circle.


def test_what_is_in_bin_is_a_binary():
    for name, target in read_targets().items():
        if any(source.startswith("bin/") for source in target["srcs"]):
            assert target["kind"] in ("py_binary", "sh_binary"), name


def debian_bazel_is_installed():
    """Later Bazels than Debian's have no Python rules of their own."""
    if not shutil.which("bazel"):
        return False
    done = subprocess.run(["bazel", "--version"], capture_output=True, text=True)
    return "no_version" in done.stdout


@pytest.mark.skipif(
    not debian_bazel_is_installed(), reason="Debian's bazel-bootstrap is not installed"
)
def test_bazel_reads_it_without_network_and_finds_the_same(tmp_path):
    query = ["query", "//... union labels(srcs, //...)"]
    output = subprocess.run(
        ["bazel", f"--output_user_root={tmp_path}", "--batch", *query],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert output.returncode == 0, output.stderr
    names = {line[len("//:") :] for line in output.stdout.split()}
    sources = {
        source for target in read_targets().values() for source in target["srcs"]
    }
    assert names == set(read_targets()) | sources
