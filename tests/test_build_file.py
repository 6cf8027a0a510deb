"""Holds that the file BUILD is true: complete, and with the dependencies of the code."""

import ast
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("tff_reg", "tasks", "bin", "tests")


def read_targets():
    """The rules of BUILD by name: {"kind": ..., "srcs": [...], "deps": [...], ...}."""
    targets = {}
    for statement in ast.parse((ROOT / "BUILD").read_text()).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            values = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            if "name" in values:
                assert values["name"] not in targets, f"{values['name']} is there twice"
                targets[values["name"]] = {"kind": call.func.id, **values}
    return targets


def python_files():
    return {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }


def imported_files(file, files):
    """The files of ours that `file` imports, at top level or inside functions."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.split("/")[: -node.level] if node.level else []
            module = ".".join(above + ([node.module] if node.module else []))
            names.update(f"{module}.{alias.name}" for alias in node.names)
    found = set()
    for name in names:
        while name:
            path = name.replace(".", "/")
            ours = {f"{path}.py", f"{path}/__init__.py"} & files
            if ours:
                found |= ours
                break
            name = name.rpartition(".")[0]
    return found


def conftests(file, files):
    """The conftest.py files that pytest loads for `file`."""
    if not file.startswith("tests/"):
        return set()
    folders = pathlib.PurePosixPath(file).parents
    return {f"{folder}/conftest.py" for folder in folders} & files


def test_every_python_file_is_in_one_target():
    listed = [
        source
        for target in read_targets().values()
        for source in target.get("srcs", ())
        if source.endswith(".py")
    ]

    assert sorted(listed) == sorted(python_files())


def test_every_listed_file_and_dependency_exists():
    targets = read_targets()
    for name, target in targets.items():
        for source in target.get("srcs", []) + target.get("data", []):
            if not source.startswith(":"):
                assert (ROOT / source).is_file(), f"{name}: {source}"
        for label in target.get("deps", []) + target.get("data", []):
            if label.startswith(":"):
                assert label[1:] in targets, f"{name}: {label}"


def test_dependencies_are_those_of_the_imports():
    files = python_files()
    targets = read_targets()
    target_of = {
        source: name
        for name, target in targets.items()
        for source in target.get("srcs", ())
    }
    wrong = []
    for name, target in targets.items():
        needed = set()
        for source in target["srcs"]:
            if source.endswith(".py"):
                ours = imported_files(source, files) | conftests(source, files)
                needed |= {target_of[file] for file in ours if file in target_of}
        needed.discard(name)
        declared = {label[1:] for label in target.get("deps", ())}
        if needed != declared:
            wrong.append(
                f"{name}: missing {sorted(needed - declared)},"
                f" too much {sorted(declared - needed)}"
            )

    assert not wrong, "\n".join(wrong)


def test_no_target_needs_itself():
    targets = read_targets()
    done = set()

    def visit(name, above):
        assert name not in above, " -> ".join([*above, name])
        if name not in done:
            for label in targets[name].get("deps", ()):
                visit(label[1:], [*above, name])
            done.add(name)

    for name in targets:
        visit(name, [])


def test_kinds_fit_the_folders():
    for name, target in read_targets().items():
        for source in target["srcs"]:
            file = pathlib.PurePosixPath(source)
            if source.startswith("bin/"):
                kinds = ("py_binary", "sh_binary")
            elif source.startswith("tests/") and file.name.startswith("test_"):
                kinds = ("py_test",)
                assert name == source[: -len(".py")]
            else:
                kinds = ("py_library",)
            assert target["kind"] in kinds, f"{name}: {source}"


def debian_bazel_is_installed():
    """Later Bazels than Debian's have no Python rules of their own."""
    if not shutil.which("bazel"):
        return False
    done = subprocess.run(["bazel", "--version"], capture_output=True, text=True)
    return "no_version" in done.stdout


@pytest.mark.skipif(
    not debian_bazel_is_installed(), reason="Debian's bazel-bootstrap is not installed"
)
def test_bazel_reads_it_without_network(tmp_path):
    output = subprocess.run(
        ["bazel", f"--output_user_root={tmp_path}", "--batch", "query", "//..."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert output.returncode == 0, output.stderr
    names = {line[len("//:") :] for line in output.stdout.split()}
    assert names == set(read_targets())
