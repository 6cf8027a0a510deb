"""What the API reference is made of: docstrings of the library, read without importing.

Methods of a class with bases may leave their text to the base, as `help` does.
"""

import ast
import pathlib
import re

import pytest

from tests import documents

ROOT = pathlib.Path(__file__).parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SECTION = r"(?m)^{}:\n"
# An argument or an exception, or several with the same text.
ENTRY = re.compile(r"((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*):")


class Definition:
    """A public class or function of a module, or a public method of such a class."""

    def __init__(self, file, node, owner=None):
        self.node, self.owner = node, owner
        name = f"{owner.name}.{node.name}" if owner else node.name
        self.name = f"{file.relative_to(ROOT)}:{node.lineno} {name}"
        self.text = ast.get_docstring(node) or ""

    @property
    def arguments(self):
        """Names of the arguments with their stars, without self and cls."""
        found = self.node.args
        names = [a.arg for a in [*found.posonlyargs, *found.args, *found.kwonlyargs]]
        names += [f"*{found.vararg.arg}"] if found.vararg else []
        names += [f"**{found.kwarg.arg}"] if found.kwarg else []
        return [name for name in names if name not in ("self", "cls")]

    def body(self):
        """Its nodes, without those of functions and classes inside it."""
        nodes = list(self.node.body)
        while nodes:
            node = nodes.pop()
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                yield node
                nodes.extend(ast.iter_child_nodes(node))

    def section(self, title):
        """The names that a section lists; None where there is none."""
        parts = re.split(SECTION.format(title), self.text, maxsplit=1)
        if len(parts) == 1:
            return None
        lines = parts[1].splitlines()
        indentation = re.match(" *", lines[0]).group()
        names = []
        for line in lines:
            if line and not line.startswith(indentation):
                break
            entry = ENTRY.match(line[len(indentation) :])
            if entry:
                names += entry.group(1).split(", ")
        return names


def files():
    """Those of the library; what commands are made of is for them alone."""
    found = (ROOT / "tff_reg").rglob("*.py")
    return sorted(file for file in found if "commands" not in file.parts)


def definitions(kinds):
    found = []
    for file in files():
        for node in ast.parse(file.read_text("utf-8")).body:
            found.append((file, node, None))
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found += [(file, inner, node) for inner in node.body]
    return [
        Definition(*each)
        for each in found
        if isinstance(each[1], kinds)
        and (each[1].name == "__init__" or not each[1].name.startswith("_"))
    ]


@pytest.fixture(scope="module")
def functions():
    found = definitions(FUNCTIONS)
    assert len(found) > 500
    return found


def test_every_module_and_class_says_what_it_is():
    modules = [
        str(file.relative_to(ROOT))
        for file in files()
        if not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ]
    assert not modules
    assert not [each.name for each in definitions(ast.ClassDef) if not each.text]


def test_every_function_and_method_says_what_it_does(functions):
    assert not [
        each.name
        for each in functions
        if not each.text
        and each.node.name != "__init__"
        and not (each.owner and each.owner.bases)
        and not any("setter" in ast.unparse(d) for d in each.node.decorator_list)
    ]


def test_no_line_of_running_text_begins_like_a_lists():
    """The site would make an item of it, and drop the minus of a formula."""
    item = re.compile(r"(?m)^ *(?:[-+*]|1[.)]) ")
    texts = {path: path.read_text("utf-8") for path in documents.files()}
    for file in files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
                where = f"{file}:{getattr(node, 'lineno', 1)}"
                texts[where] = ast.get_docstring(node) or ""
    assert not {
        where: paragraph
        for where, text in texts.items()
        for paragraph in re.split(r"\n\s*\n", text)
        if item.search(paragraph) and not item.match(paragraph)
    }


def test_args_are_the_arguments(functions):
    wrong = {}
    for each in functions:
        listed = each.section("Args")
        if listed is not None and sorted(listed) != sorted(each.arguments):
            wrong[each.name] = f"{listed}, not {each.arguments}"
    assert not wrong


def test_many_arguments_are_explained(functions):
    """In the text, in that of the class, or in what the text refers to in backticks."""
    assert not [
        each.name
        for each in functions
        if sum(not name.startswith("*") for name in each.arguments) > 3
        and (each.text or not (each.owner and each.owner.bases))
        and each.section("Args") is None
        and "`" not in each.text
        and not (
            each.owner
            and re.search(
                SECTION.format("(Args|Attributes)"), ast.get_docstring(each.owner) or ""
            )
        )
    ]


def test_what_is_returned_is_said_where_arguments_are(functions):
    assert not [
        each.name
        for each in functions
        if each.section("Args") is not None
        and not re.search(SECTION.format("(Returns|Yields)"), each.text)
        and any(
            isinstance(node, ast.Return)
            and node.value is not None
            and ast.unparse(node.value) != "None"
            for node in each.body()
        )
    ]


def test_what_is_raised_is_said(functions):
    wrong = {}
    for each in functions:
        for node in each.body():
            raises = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
            if each.text and raises:
                error = ast.unparse(node.exc.func).rpartition(".")[2]
                if not error.startswith("_") and error not in each.text:
                    wrong[each.name] = error
    assert not wrong
