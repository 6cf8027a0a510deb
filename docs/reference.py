"""The reference: a page for each public package and module; docstrings as RST."""

import importlib
import inspect
import re
import textwrap

from tff_reg.methods import overview

# What the reference has: the public names of packages, and modules as a whole.
PACKAGES = (
    "tff_reg",
    "tff_reg.experiment",
    "tff_reg.training",
    "tff_reg.methods",
    "tff_reg.models",
    "tff_reg.data",
    "tff_reg.data.partitions",
    "tff_reg.runtime",
    "tff_reg.analysis",
)
MODULES = (
    "tff_reg.testing",
    "tff_reg.settings",
    "tff_reg.data.augmentation",
    "tff_reg.data.partition_report",
    "tff_reg.training.aggregators",
    "tff_reg.experiment.rounds.programs",
    "tff_reg.analysis.figures",
    "tff_reg.tasks.task_defaults",
)
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):\n")


def pages():
    """The pages of the packages and modules by file, and the page that lists them."""
    found = {f"api/{name}.md": _package_page(name) for name in PACKAGES}
    for name in MODULES:
        found[f"api/{name}.md"] = f"# {name}\n\n{automodule(name)}\n"
    listed = "\n".join(f"../generated/api/{name}" for name in (*PACKAGES, *MODULES))
    found["api/index.md"] = f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    return found


def _package_page(name):
    package = importlib.import_module(name)
    parts = [f"# {name}", text_of(package)]
    for each in sorted(package.__all__):
        value = getattr(package, each)
        kind = "class" if inspect.isclass(value) else "function"
        # A constant says what it is in its module.
        if text_of(value) and getattr(value, "__module__", "").startswith("tff_reg"):
            full = f"{value.__module__}.{value.__qualname__}"
            options = "   :members:\n   :show-inheritance:\n" * (kind == "class")
            parts.append(f"```{{eval-rst}}\n.. auto{kind}:: {full}\n{options}```")
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
