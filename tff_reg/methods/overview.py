"""The tables of methods that documents have: what there is, and what goes together."""

from __future__ import annotations

from tff_reg.methods import catalogue, checks, method as method_lib, words


def rows() -> list[dict[str, str]]:
    """A row for each method of this package, as Markdown cells by column.

    Columns: the process, what it is, and its paper.
    """
    return [
        {
            "process": f"`{name}`",
            "what it is": method.title,
            "paper": method.paper,
        }
        for name, method in ours().items()
    ]


def ours() -> dict[str, type[method_lib.Method]]:
    """The methods of this package by name; others are of installed packages."""
    package = __name__.rpartition(".")[0]
    return {
        name: method
        for name, method in catalogue.methods().items()
        if method.__module__.startswith(f"{package}.")
    }


def alternatives() -> list[dict[str, str]]:
    """Of which methods of this package a sum can have one, as Markdown cells by column.

    Columns: what two would both do, and the methods.
    """
    known = ours()
    having = {
        what: [name for name in known if what in checks.exclusive_of(known[name])]
        for what in words.EXCLUSIVE
    }
    one_label = [name for name in known if method_lib.ONE_LABEL in known[name].needs]
    having["have examples of two classes, and need their one class"] = [
        *having[words.EXAMPLES],
        *one_label,
    ]
    return [
        {"what": what, "one of": ", ".join(f"`{name}`" for name in names)}
        for what, names in having.items()
        if names[1:]
    ]


def sums() -> list[list[str]]:
    """Which two methods of this package can be in one sum, as rows of Markdown cells.

    The first row and the first column have their names. A cell has a plus where the two
    go together, a minus where they do not.
    """
    known = {name: each for name, each in ours().items() if name != "fedavg"}
    head = ["", *(f"`{name}`" for name in known)]
    return [
        head,
        *(
            [
                f"`{name}`",
                *("+" if _go(one, other) else "-" for other in known.values()),
            ]
            for name, one in known.items()
        ),
    ]


def _go(one: type[method_lib.Method], other: type[method_lib.Method]) -> bool:
    try:
        checks.check_combination([one, other])
    except checks.IncompatibleMethodsError:
        return False
    return True
