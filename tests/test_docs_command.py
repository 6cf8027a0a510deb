"""`bin/docs` builds the site, with everything that is public in its reference."""

import ast
import collections
import csv
import html
import importlib
import inspect
import pathlib
import re
import subprocess

import pytest
from sphinx.util import inventory

from bin import docs
from docs import from_code
from tests import commands, documents
from tff_reg import settings
from tff_reg.methods import overview

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
                if isinstance(inner, FUNCTIONS)
                and inner.name[0] != "_"
                # The others are described where they are overridden.
                and ast.get_docstring(inner)
            ]
    return names


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
    assert out == f"{directory / 'index.html'}\n"
    return directory


@pytest.fixture(scope="module")
def known(site):
    """The places of all names that the reference has."""
    with (site / "objects.inv").open("rb") as file:
        found = inventory.InventoryFile.load(file, "", lambda base, place: place)
    return {
        name: place
        for kind, entries in found.items()
        if kind.startswith("py:")
        for name, (_, _, place, _) in entries.items()
    }


@pytest.mark.slow
def test_an_older_site_is_replaced_and_nothing_is_left_beside_it(site):
    assert not (site / "gone.html").exists()
    assert list(site.parent.iterdir()) == [site]


@pytest.mark.slow
def test_everything_public_is_in_the_reference(site, known):
    missing = []
    for name, file in _modules().items():
        package = file.name == "__init__.py"
        page = f"generated/api/{name}.html"
        if package:
            assert (site / page).exists()
            continue
        if name not in known:
            missing.append(name)
        missing += [
            f"{name}.{each}"
            for each in _public_names(file)
            if f"{name}.{each}" not in known
        ]
    assert not missing


@pytest.mark.slow
def test_a_package_lists_what_it_offers(site):
    for name, file in _modules().items():
        if file.name == "__init__.py":
            page = (site / f"generated/api/{name}.html").read_text("utf-8")
            for each in getattr(importlib.import_module(name), "__all__", ()):
                value = getattr(importlib.import_module(name), each)
                if inspect.isclass(value) or inspect.isfunction(value):
                    assert f">{each}<" in page, f"{name}.{each}"


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
def test_a_methods_page_has_its_formula_and_its_strengths(site, name):
    page = (site / f"generated/methods/{name}.html").read_text("utf-8")
    assert 'class="formula"><math ' in page
    for each in settings.settings_of(overview.ours()[name]):
        assert f"--{name}_{each.name}" in page
    assert f'{name}.png" />' in page and (site / f"_images/{name}.png").exists()


def test_below_a_table_of_what_was_measured_stands_what_made_it():
    pages = [
        page.read_text("utf-8") for page in (ROOT / "docs" / "pages").rglob("*.md")
    ]
    figures = r"figures/[\w-]+\.csv\n:header-rows: 1\n```\n"
    made = figures + r"\nMade at `[0-9a-f]{7}`, 2\d{3}-\d\d-\d\d[.,]"
    tables = list((ROOT / "docs" / "figures").glob("*.csv"))
    for pattern in (figures, made):
        assert sum(len(re.findall(pattern, page)) for page in pages) == len(tables)


def test_the_mean_of_the_last_five_rounds_is_that_of_the_curves():
    figures = ROOT / "docs" / "figures"
    rows = csv.DictReader((figures / "which-by-skew.csv").read_text().splitlines())
    curves = csv.DictReader(
        (figures / "curves" / "digits.csv").read_text().splitlines()
    )
    last = collections.defaultdict(list)
    for row in curves:
        if int(row["round"]) > 15:
            last[row["process"]].append(100 * float(row["accuracy_mean"]))
    said = {row["method"]: row["Dir(0.1) last five"] for row in rows}
    assert said == {name: f"{sum(five) / 5:.1f}" for name, five in last.items()}


@pytest.mark.parametrize("name", overview.ours())
def test_a_methods_page_has_its_curve_beside_fedavgs(name, tmp_path):
    from_code.draw_curves(tmp_path / "drawn.png", name)
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    assert f"({name}.png)" in from_code.method_page(name)


def test_the_page_on_deployment_names_the_methods_whose_clients_remember():
    page = (ROOT / "docs" / "pages" / "deployment.md").read_text("utf-8")
    (row,) = re.findall(r"^\| (.*); all with `--averages_all_clients` \|", page, re.M)
    assert re.findall(r"`(\w+)`", row) == [
        name for name, method in overview.ours().items() if method().client_memory
    ]


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
    from_code.to_rst(None, "function", "f", None, None, lines)
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


def test_no_line_of_running_text_begins_like_a_lists():
    """The site would make an item of it, and drop the minus of a formula."""
    item = re.compile(r"(?m)^ *(?:[-+*]|1[.)]) ")
    texts = {path: path.read_text("utf-8") for path in documents.files()}
    for file in (ROOT / "tff_reg").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
                where = f"{file}:{getattr(node, 'lineno', 1)}"
                texts[where] = ast.get_docstring(node) or ""
    assert not {
        where: paragraph
        for where, text in texts.items()
        if "commands" not in str(where).split("/")  # They print theirs as they are.
        for paragraph in re.split(r"\n\s*\n", text)
        if item.search(paragraph) and not item.match(paragraph)
    }


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


@pytest.mark.parametrize(
    "flag, message",
    [
        ("docs", "docs is not a flag; --help lists them."),
        (
            "--output=x",
            "--output: there is no such flag (did you mean --output_dir?); --help lists"
            " them.",
        ),
        (
            "--output_dir=/proc/x",
            "--output_dir=/proc/x: it cannot be written to (No such file or directory);"
            " give another one.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(flag, message):
    done = commands.call(docs.main, flag)
    assert (done.returncode, done.stderr) == (2, f"bin/docs: {message}\n")


def test_the_readmes_table_of_methods_is_that_of_their_files(monkeypatch, tmp_path):
    text = docs.README.read_text("utf-8")
    assert docs.with_table_of_methods(text) == text, "bin/docs --readme writes it"
    assert "| `fedalign` | Lipschitz alignment" in text
    monkeypatch.setattr(docs, "README", tmp_path / "README.md")
    docs.README.write_text(text.replace("Lipschitz alignment", "Alignment"), "utf-8")
    assert commands.call(docs.main, "--readme").returncode == 0
    assert docs.README.read_text("utf-8") == text
