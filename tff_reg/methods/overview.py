"""Tables for the documentation: all methods, and which can be combined."""

from __future__ import annotations

from tff_reg.methods import cards, catalogue, checks, method as method_lib, words


def ours() -> dict[str, type[method_lib.Method]]:
    """Returns the built-in methods by name, without installed packages' methods."""
    package = __name__.rpartition(".")[0]
    return {
        name: method
        for name, method in catalogue.methods().items()
        if method.__module__.startswith(f"{package}.")
    }


def by_role() -> dict[str, list[str]]:
    """Returns the names of the built-in methods by role."""
    found: dict[str, list[str]] = {role: [] for role in cards.ROLES}
    for name, method in ours().items():
        assert method.card is not None
        found[method.card.role].append(name)
    return found


def alternatives() -> list[dict[str, str]]:
    """Returns, for each exclusive role, its methods: Markdown cells by column.

    Methods joined by a plus can be combined, unless another row has both.
    """
    known = ours()
    having = {
        what: [
            f"`{name}`" for name in known if what in checks.exclusive_of(known[name])
        ]
        for what in words.EXCLUSIVE
    }
    one_label = [n for n in known if method_lib.ONE_LABEL in known[n].needs]
    having["mix the classes of examples, or need one class per example"] = [
        *having[words.EXAMPLES],
        " + ".join(f"`{name}`" for name in one_label),
    ]
    plain = [n for n in known if method_lib.UNIFORM_WEIGHTING in known[n].needs]
    having["define the clients' weights, or take the plain mean of their models"] = [
        *having[words.WEIGHTS],
        " + ".join(f"`{name}`" for name in plain),
    ]
    return [
        {"what": what, "one of": ", ".join(names)}
        for what, names in having.items()
        if names[1:]
    ]


def combinations() -> list[list[str]]:
    """Returns which pairs of methods can be combined, as rows of Markdown cells.

    The first row and the first column are names; a plus marks pairs that can be
    combined, a minus pairs that conflict.
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
