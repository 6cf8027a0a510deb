"""BUILD has every Python file once, with the dependencies of the code's imports."""

import ast
import graphlib
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# They offer names of all rooms.
SHOWS = ("tff_reg/__init__.py", "tff_reg/public.py")


def python_files():
    """Those that git knows; tasks/ has the name of the link to it."""
    command = ["git", "ls-files", "*.py"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split()
    names = ["tff_reg/" * name.startswith("tasks/") + name for name in names]
    return {name for name in names if (ROOT / name).exists()}


def glob(include, exclude=()):
    """The files that match, as Bazel finds them; some must."""
    found = {path for pattern in include for path in ROOT.glob(pattern)}
    found -= {path for pattern in exclude for path in ROOT.glob(pattern)}
    assert found, f"glob({include}) finds nothing"
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.fixture(scope="module")
def targets():
    """The rules by name: sources and dependencies. Python can run their Starlark."""
    found = {}

    def rule(*, name, srcs, deps=(), **_):
        assert name not in found, f"{name} is there twice"
        found[name] = srcs, {label[1:] for label in deps}

    known = dict.fromkeys(("py_library", "py_binary", "py_test", "sh_binary"), rule)
    known.update(glob=glob, len=len, list=list, package=lambda **_: None)
    exec((ROOT / "BUILD").read_text(), {"__builtins__": known})
    return found


@pytest.fixture(scope="module")
def owners(targets):
    """The target of each source file; a test is one file of what they share."""
    files = [
        (source, name)
        for name, (sources, needed) in targets.items()
        if needed != {"tests"}
        for source in sources
    ]
    assert len(dict(files)) == len(files), "a file is in two targets"
    return dict(files)


def imported_files(file):
    """What a file imports, in packages that are imported before; `lazy.module` too."""
    names = {file.removesuffix(".py").replace("/", ".")}
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy.module":
            (name,) = node.args
            if isinstance(name, ast.Constant):  # Others are made from known names.
                names.add(name.value)
    parts = [name.split(".") for name in names]
    paths = {"/".join(each[: n + 1]) for each in parts for n in range(len(each))}
    files = {f"{path}{end}" for path in paths for end in (".py", "/__init__.py")}
    return files - {file}


def test_every_python_file_is_in_one_target_and_every_file_of_tests_a_test(
    targets, owners
):
    assert not python_files() - set(owners)
    tests = {
        name: sources for name, (sources, of) in targets.items() if of == {"tests"}
    }
    assert tests == {
        file.removesuffix(".py"): [file]
        for file in python_files()
        if pathlib.Path(file).name.startswith("test_")
    }


def test_dependencies_are_those_of_the_imports_and_go_one_way(targets, owners):
    wrong = {}
    for name, (sources, declared) in targets.items():
        if declared == {"tests"}:
            continue
        found = set()
        for source in sources:
            if source.endswith(".py") and source not in SHOWS:
                found |= {owners[f] for f in imported_files(source) & {*owners}}
        if declared != found - {name}:
            wrong[name] = f"{declared} declared, {found - {name}} imported"
    assert not wrong
    needed = {name: declared for name, (_, declared) in targets.items()}
    graphlib.TopologicalSorter(needed).prepare()  # A CycleError names the circle.


@pytest.mark.skipif(not shutil.which("bazel"), reason="Bazel is not installed")
def test_bazel_reads_it_without_network(tmp_path):
    command = ["bazel", f"--output_user_root={tmp_path}", "--batch", "query", "//..."]
    subprocess.run(command, cwd=ROOT, check=True)
