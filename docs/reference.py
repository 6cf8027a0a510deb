"""The reference: a page for each package and module, and docstrings as RST."""

import importlib
import inspect
import pkgutil
import re
import textwrap

from tff_reg.methods import overview

PACKAGE = "tff_reg"
# Modules that no reader of a reference looks for.
_SKIPPED = ("__main__",)
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):\n")


def pages():
    """The pages of the packages and their modules by file."""
    found_pages, waiting = {}, [PACKAGE]
    while waiting:
        name = waiting.pop(0)
        package = importlib.import_module(name)
        modules, packages = [], []
        for found in pkgutil.iter_modules(package.__path__, f"{name}."):
            if found.name.rpartition(".")[2] in _SKIPPED:
                continue
            (packages if found.ispkg else modules).append(found.name)
        waiting += packages
        found_pages[f"api/{name}.md"] = _package_page(package, modules, packages)
        for each in modules:
            if each not in _pages_of_methods():
                # In no list at the side, which would be as long as the library.
                text = f"# {each}\n\n{automodule(each)}\n"
                found_pages[f"api/{each}.md"] = f"---\norphan: true\n---\n\n{text}"
    return found_pages


def _pages_of_methods():
    return {
        method.__module__: f"../methods/{name}"
        for name, method in overview.ours().items()
    }


def _package_page(package, modules, packages):
    name = package.__name__
    parts = [f"# {name}", text_of(package)]
    rows = []
    for each in sorted(getattr(package, "__all__", ())):
        value = getattr(package, each)
        if callable(value) and text_of(value):
            full = f"{value.__module__}.{value.__qualname__}"
            rows.append([f"{{py:obj}}`{each} <{full}>`", _sentence(text_of(value))])
    if rows:
        parts += [f"What `{name}` itself offers:", table(["name", "what"], rows)]
    places = _pages_of_methods()
    rows = [
        [
            f"{{doc}}`{each.rpartition('.')[2]} <{places.get(each, each)}>`",
            _sentence(text_of(importlib.import_module(each))),
        ]
        for each in modules
    ]
    if rows:
        parts += ["Its modules:", table(["module", "what"], rows)]
    if packages:
        lines = "\n".join(packages)
        parts.append(f"```{{toctree}}\n:maxdepth: 1\n\n{lines}\n```")
    return "\n\n".join(parts) + "\n"


def _sentence(text):
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def automodule(name):
    """The directive that documents a module."""
    return (
        f"```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n"
        "   :show-inheritance:\n```"
    )


def to_rst(app, what, name, value, options, lines):
    """Makes a docstring, in which backticks are code and blocks are indented, RST.

    A listener to `autodoc-process-docstring`; a method's page has the text of its
    module already.
    """
    if what == "module" and name.rpartition(".")[2] in overview.ours():
        lines.clear()
        return
    chunks = re.split(r"\n{2,}", "\n".join(lines).strip("\n"))
    found, in_section = [], False
    for chunk in chunks:
        is_indented = chunk.startswith("  ")
        in_section = bool(_SECTION.match(chunk)) or (in_section and is_indented)
        if is_indented and not in_section:
            found.append(f"::\n\n{textwrap.indent(textwrap.dedent(chunk), '    ')}")
        else:
            found.append(_escape(chunk))
    if what in ("attribute", "data", "property"):
        found.insert(0, "..")  # Else what is before a colon is taken for a type.
    lines[:] = "\n\n".join(found).split("\n") + [""]


def _escape(text):
    """Leaves of RST's markup but code, lists, and what starts a section's entry."""
    pieces = re.split(r"(?<!`)`(?!`)", text)
    for number, piece in enumerate(pieces):
        if number % 2 and number + 1 < len(pieces):
            # What stands right behind code needs a gap that is not shown.
            gap = "\\ " if pieces[number + 1][:1].isalnum() else ""
            pieces[number] = f"``{' '.join(piece.split())}``{gap}"
        else:
            piece = re.sub(r"(\w)_(?!\w)", r"\1\\_", piece.replace("\\", r"\\"))
            piece = piece.replace("|", r"\|")
            # Stars that are neither a list's nor before an argument's name.
            pieces[number] = re.sub(
                r"(?m)^( *(?:\* |\*{1,2}(?=\w+:))?)(.*)$", _without_stars, piece
            )
    return "".join(pieces)


def _without_stars(match):
    return match.group(1) + match.group(2).replace("*", r"\*")


def table(header, rows):
    """A Markdown table."""
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def text_of(value):
    """The docstring; empty where there is none."""
    return inspect.getdoc(value) or ""
