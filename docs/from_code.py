"""The pages that follow from the code: methods, flags, notebooks, the reference.

`conf.py` has them written to `docs/generated`, which git ignores.
"""

import concurrent.futures
import csv
import dataclasses
import functools
import importlib
import multiprocessing
import pathlib
import re

from docs import evidence, reference, verdicts
from tff_reg import curves, files, settings, tasks
from tff_reg.experiment.config import run_config
from tff_reg.methods import (
    cards,
    checks,
    method as method_lib,
    overview,
    words,
)
from tff_reg.tasks import notebooks

HERE = pathlib.Path(__file__).parent
_COMBINATIONS = """\
---
orphan: true
---

# Which methods go together

A plus: the two can be combined. A minus: both would do the same thing
({doc}`../pages/methods`).
"""
# Curves that `bin/compare` left, and what their panel is called.
_CURVES = {
    "digits.csv": "Digits, Dir(0.1)",
    "cifar10.csv": "CIFAR-10 in small, Dir(0.3)",
    "cifar10_resnet8.csv": "CIFAR-10 in small, ResNet-8, Dir(0.5)",
    "cifar10_resnet20.csv": "CIFAR-10 in small, ResNet-20, Dir(0.5)",
    "cifar10_resnet10.csv": "CIFAR-10 in small, ResNet-10, Dir(0.3)",
    "cifar10_feddyn_cnn.csv": "CIFAR-10 in small, FedDyn's CNN, Dir(0.6)",
}
# In the order of a round.
_HOOKS = (
    "adapt_network",
    "broadcast",
    "personal",
    "start",
    "begin",
    "change_batch",
    "change_pass",
    "change_logits",
    "term",
    "gradient",
    "correct",
    "keep",
    "correct_clipped",
    "finish",
    "update_memory",
    "next_model",
    "own_model",
)


def write(folder):
    """Writes all pages; those of names that are no more go.

    Args:
      folder: Where to, a `pathlib.Path`.
    """
    pages = {f"methods/{name}.md": method_page(name) for name in overview.ours()}
    pages["alternatives.md"] = _table_of(overview.alternatives())
    pages["roles.md"] = _roles()
    pages["by_role.md"] = _by_role()
    pages["flags.md"] = flags_page()
    head, *rows = _combinations()
    matrix = f":::{{table}}\n:class: matrix\n\n{reference.table(head, rows)}\n:::\n"
    pages["combinations.md"] = f"{_COMBINATIONS}\n{matrix}"
    pages.update(reference.pages())
    for path in notebooks.paths():
        pages[f"notebooks/{path.name}"] = path.read_text("utf-8")
    pictures = {f"methods/{name}.png": name for name in overview.ours() if _drawn(name)}
    for old in folder.rglob("*.*") if folder.exists() else ():
        name = old.relative_to(folder).as_posix()
        if old.is_file() and name not in pages and name not in pictures:
            old.unlink()
    for name, text in pages.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # What has not changed need not be read again.
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
    made_of = [HERE / "figures" / "curves" / name for name in _CURVES]
    newest = max(file.stat().st_mtime for file in made_of)
    missing = {
        folder / picture: name
        for picture, name in pictures.items()
        if not (folder / picture).exists()
        or (folder / picture).stat().st_mtime < newest
    }
    spawning = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=spawning) as pool:
        list(pool.map(draw_curves, missing, missing.values()))


def draw_curves(path, name):
    """Draws a method's accuracy by round beside FedAvg's, a PNG."""
    panels = {}
    for file, title in _CURVES.items():
        known = _curves(file)
        if name in known:
            panels[title] = [known[each] for each in dict.fromkeys(("fedavg", name))]
    figure = curves.draw_panels(panels, up="Test accuracy (%)")
    files.write_bytes(path, curves.as_png(figure))


def _drawn(name):
    return any(name in _curves(file) for file in _CURVES)


@functools.cache
def _curves(file):
    """A file's curves by process; all methods' pictures are of the same files."""
    text = (HERE / "figures" / "curves" / file).read_text("utf-8")
    by_process = {}
    for row in csv.DictReader(text.splitlines()):
        by_process.setdefault(row["process"], []).append(row)
    columns = ("round", "accuracy_mean", "accuracy_std")
    return {
        # One seed has no deviation.
        name: curves.Curve(
            name, *([float(row[key] or 0) for row in rows] for key in columns)
        )
        for name, rows in by_process.items()
    }


def method_page(name):
    """A method's page, Markdown, of its card, its file and what was measured."""
    method = overview.ours()[name]
    module = importlib.import_module(method.__module__)
    title, _, text = reference.text_of(module).partition("\n")
    title, _, _ = title.partition(": ")
    before, formula, after = text.split("$$", 2)
    parts = [
        f"# {title}",
        _card_of(name).idea,
        f"$${formula}$$",
        _card(name, method),
        "## In detail",
        before.strip(),
        after.strip(),
        "## Hyperparameters",
        _strengths(name, method),
        "## Default settings",
        _paper_settings(method),
        "## In a round",
        _properties(method),
        *_measured(method, name),
        "## Reference",
        reference.automodule(module.__name__),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _card(name, method):
    """The facts of a method in a table of two columns."""
    card = method.card
    source = getattr(method.paper_settings, "source", None)
    rows = {
        "command": f"`bin/run --process={name}`",
        "Python": f"`methods.{method.__name__}`",
        "paper": method.paper,
        "role": card.role,
        "made for": card.use,
        "measured here": _accuracies(name),
        "cost of a step": _cost(name),
        "default settings": f"from {source}" if source else "the task's",
        "checked against": card.checked,
        "combines with": _partners(name),
    }
    table = reference.table(
        ["", ""], [[key, text] for key, text in rows.items() if text]
    )
    return f":::{{table}}\n:class: card\n\n{table}\n:::"


@functools.cache
def _rows_of(file):
    """The rows of a table of the results by method, each by column."""
    text = (HERE / "figures" / file).read_text("utf-8")
    return {row["method"]: row for row in csv.DictReader(text.splitlines())}


def _accuracies(name):
    """What the studies found of a method, by condition."""
    return "; ".join(
        f"{condition}: {verdicts.gain(rows[name])}"
        for condition, rows in evidence.all_tested().items()
        if name in rows
    )


def _card_of(name):
    card = overview.ours()[name].card
    assert card is not None, name
    return card


def _cost(name):
    value = _rows_of("step-costs.csv").get(name, {}).get("cost")
    if _card_of(name).role == cards.SERVER and not value:
        return "FedAvg's"
    return f"{value} of FedAvg's ({{ref}}`step-costs`)" if value else ""


@functools.cache
def _combinations():
    """Which pairs can be combined; all pages of the methods ask for it."""
    return overview.combinations()


def _partners(name):
    """Which methods a method cannot be combined with."""
    head, *rows = _combinations()
    for first, *cells in rows:
        if first == f"`{name}`":
            refused = [o for o, c in zip(head[1:], cells) if c == "-" and o != first]
            but = f" but {', '.join(refused)}" if refused else ""
            return f"all{but} ({{doc}}`../combinations`)"
    return "all, which add to it"


def _roles():
    """The methods by role, a line for each role, for the first page."""
    return "".join(
        f"- **{role}**: {', '.join(map(_link, names))}\n"
        for role, names in overview.by_role().items()
    )


def _by_role():
    """The methods by role with a line for each, a table for each role."""
    known = overview.ours()
    parts = []
    for role, names in overview.by_role().items():
        rows = [
            [
                f"{{doc}}`{name} <../generated/methods/{name}>`",
                known[name].title,
                known[name].paper,
            ]
            for name in names
        ]
        parts += [
            f"## {role}",
            reference.table(["method", "what it does", "paper"], rows),
        ]
    return "\n\n".join(parts) + "\n"


def _link(name):
    return f"{{doc}}`{name} <generated/methods/{name}>`"


def flags_page():
    """The page of all flags of `bin/run`, heading by heading."""
    groups = {}
    for each in run_config.listed():
        groups.setdefault(each.group, []).append(each)
    parts = [
        "# All flags",
        "The flags of `bin/run`, which `bin/compare` and `bin/reproduce` take as well."
        " `--helpfull` prints them. In Python they are arguments of `tff_reg.run`.",
    ]
    for group, flags in groups.items():
        rows = [[_flag(each), _cell(each.help), _choices(each)] for each in flags]
        parts += [
            f"## {group}",
            reference.table(["flag", "what it is", "values"], rows),
        ]
    return "\n\n".join(parts) + "\n"


def _flag(setting):
    return f"`--{'[no]' if setting.type is bool else ''}{setting.name}`"


def _cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def _choices(setting):
    special = {
        "process": "a method, or several joined by `+`",
        "task": ", ".join(f"`{name}`" for name in tasks.names()),
    }
    default = _default(setting)
    kinds = special.get(setting.name) or _bounds(setting)
    return kinds if default in ("none", "`None`") else f"{kinds}; default {default}"


def _strengths(name, method):
    rows = [
        [f"`--{name}_{each.name}`", _symbol(each), _default(each), _bounds(each),
         each.help]
        for each in settings.settings_of(method)
    ]  # fmt: skip
    if not rows:
        return "None."
    return reference.table(["flag", "symbol", "default", "values", "what it is"], rows)


def _symbol(setting):
    return f"`{setting.symbol}`" if setting.symbol else ""


def _default(setting):
    if setting.default is dataclasses.MISSING:
        return "none"
    text = settings.as_text(setting.default)
    return f"`{text}`" if text else "none"


def _bounds(setting):
    if setting.choices is not None:
        return ", ".join(f"`{settings.as_text(each)}`" for each in setting.choices)
    bounds = {
        "at least": setting.minimum,
        "above": setting.above,
        "at most": setting.maximum,
        "below": setting.below,
    }
    words = [
        f"{word} {settings.as_text(value)}"
        for word, value in bounds.items()
        if value is not None
    ]
    return " and ".join(words) or setting.kind


def _paper_settings(method):
    given = {**method.paper_settings, **method.required_settings}
    if not given:
        return "It has none of its own: what is not given is as it is by default."
    rows = [
        [f"`--{key}`", f"`{settings.as_text(value)}`"]
        for key, value in given.items()
        if value is not None
    ]
    source = getattr(method.paper_settings, "source", None)
    whose = f"Where nobody says otherwise they are from {source}.\n\n" if source else ""
    return whose + reference.table(["setting", "value"], rows)


def _properties(method):
    overridden = [
        f"{{py:meth}}`{hook} <tff_reg.methods.method.Method.{hook}>`"
        for hook in _HOOKS
        if method_lib.overrides(method, hook)
    ]
    facts = [f"It overrides {', '.join(overridden)}."] if overridden else []
    exclusive = checks.exclusive_of(method)
    if exclusive:
        ordered = [what for what in words.EXCLUSIVE if what in exclusive]
        facts.append(f"Only one method of a combination can {' and '.join(ordered)}.")
    facts.append(
        "Its clients remember something from round to round."
        if method().client_memory
        else "Its clients remember nothing."
    )
    return " ".join(facts)


def _measured(method, name):
    """What the tables of the results say of a method, and its curves."""
    picture = f"![Accuracy by round, beside FedAvg's]({name}.png)"
    found = [picture] if _drawn(name) else []
    for file in sorted((HERE / "figures").glob("*.csv")):
        header, *rows = csv.reader(file.read_text("utf-8").splitlines())
        matching = [row for row in rows if _is_of(row[0], method, name)]
        if matching:
            found += [f"{{ref}}`{file.stem}`:", reference.table(header, matching)]
    return ["## Measured", *found] if found else []


def _is_of(cell, method, name):
    words = re.sub(r"[^a-z]", "", cell.lower())
    return words in (name, method.__name__.lower())


def _table_of(rows):
    return reference.table(list(rows[0]), [list(row.values()) for row in rows]) + "\n"
