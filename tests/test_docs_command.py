"""`bin/docs` writes a page of every module, with everything that is public on it."""

import ast
import html
import importlib
import pathlib
import re
import subprocess

import pytest

from bin import docs
from tests import commands

ROOT = pathlib.Path(__file__).parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _modules():
    """The public modules by name: their files."""
    found = {}
    for package in ("tff_reg", "tff_reg/tasks"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            name = name.removesuffix(".__init__")
            if not re.search(r"\._", name):
                found[name] = file
    return found


def _public_names(file):
    """Public functions and classes of a module, and methods of these classes."""
    names = []
    for node in ast.parse(file.read_text("utf-8")).body:
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name[0] == "_":
            continue
        names.append(node.name)
        if isinstance(node, ast.ClassDef):
            names += [
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, FUNCTIONS) and inner.name[0] != "_"
            ]
    return names


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages by the name of their module, and where they are."""
    directory = tmp_path_factory.mktemp("docs") / "api"
    # A reference that is there already, with the page of a module that is no more.
    (directory / "tff_reg").mkdir(parents=True)
    title = "<title>tff_reg: API reference</title>"
    (directory / "index.html").write_text(f"<html><head>{title}")
    (directory / "tff_reg" / "gone.html").touch()
    # A process of its own: classes of TensorFlow have other names afterwards.
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = commands.start("docs", f"--output_dir={directory}", **pipes)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out == f"{directory / 'index.html'}\n"
    found = {}
    for file in directory.rglob("*.html"):
        name = ".".join(file.relative_to(directory).with_suffix("").parts)
        found[name] = file.read_text("utf-8")
    return found, directory


@pytest.mark.slow
def test_every_module_has_a_page_and_is_on_the_first(pages):
    found, _ = pages
    assert set(found) == {"index", *_modules()}
    for name in _modules():
        link = f'<a href="{name.replace(".", "/")}.html">{name}</a>'
        assert found["index"].count(link) in (1, 2)
    assert "<p>Where TFF computations run:" in found["index"]


@pytest.mark.slow
def test_everything_public_is_on_its_page(pages):
    found, _ = pages
    modules = _modules()
    missing = []
    for name, file in modules.items():
        own = _public_names(file)
        offered = getattr(importlib.import_module(name), "__all__", None)
        if offered is not None:
            # Of its own names those, and those that it takes from its modules.
            own = [each for each in own if each.partition(".")[0] in offered]
            own += offered
        for each in own:
            sign = f'id="{each}"'
            if f"{name}.{each}" in modules:
                sign = f'href="{name.rpartition(".")[2]}/{each}.html"'
            if sign not in found[name]:
                missing.append(f"{name}: {each}")
    assert not missing


@pytest.mark.slow
def test_a_name_that_a_package_imports_when_asked_for_has_its_text(pages):
    page = html.unescape(re.sub("<[^>]*>", "", pages[0]["tff_reg.data"]))
    assert "Clients whose examples are rows of two shared arrays." in page
    assert "clients_per_round: int" in page
    assert "tff_reg.data.program_source.SeededDataSourceIterator" in page
    # Classes have the names that users import them by.
    assert "SeededDataSource(tff.program.FederatedDataSource):" in page
    assert "tensorflow_federated.python" not in page


@pytest.mark.slow
def test_sections_of_docstrings_are_headings_with_lists(pages):
    page = pages[0]["tff_reg.data.sampling"]
    section = page[page.index('id="sample_clients"') :]
    section = section[: section.index("</section>")]
    headings = re.findall(r"<h6[^>]*>(\w+):</h6>", section)
    assert headings == ["Arguments", "Returns", "Raises"]
    assert "<li><strong>clients_per_round:</strong>" in section
    # None is left as it was written.
    for name, page in pages[0].items():
        left = re.search(r"<p>[^<]*\b(Args|Returns|Raises|Attributes|Yields):\s", page)
        assert not left, f"{name}: {left.group()}"


def test_what_pdoc_complains_of_is_told(tmp_path, monkeypatch):
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.py").write_text('__all__ = ["gone"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    (complaint,) = docs.write(["broken"], tmp_path / "out")
    assert complaint.startswith("Found 'gone' in broken.__all__, but it does not res")


@pytest.mark.parametrize("name", ["mine.txt", "index.html"])
def test_a_directory_with_something_else_is_left_alone(name, tmp_path):
    (tmp_path / name).write_text("mine")
    done = commands.call(docs.main, f"--output_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr == (
        f"bin/docs: --output_dir={tmp_path} has something else in it; give another"
        " one.\n"
    )
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    "flag, message",
    [
        ("docs", "docs is not a flag; --help lists them."),
        (
            "--output=x",
            "--output: there is no such flag (did you mean --output_dir?); --help lists"
            " them.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(flag, message):
    done = commands.call(docs.main, flag)
    assert (done.returncode, done.stderr) == (2, f"bin/docs: {message}\n")


def test_the_readmes_table_of_methods_is_that_of_their_files(monkeypatch, tmp_path):
    text = docs.README.read_text("utf-8")
    assert docs.with_table_of_methods(text) == text, "bin/docs --readme writes it"
    assert "| `fedalign`" in text and "`strength` (mu = 0.45)" in text
    monkeypatch.setattr(docs, "README", tmp_path / "README.md")
    docs.README.write_text(text.replace("mu = 0.45", "mu = 0.46"), "utf-8")
    assert commands.call(docs.main, "--readme").returncode == 0
    assert docs.README.read_text("utf-8") == text
