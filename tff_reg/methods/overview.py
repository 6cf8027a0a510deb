"""The table of methods that documents have."""

from __future__ import annotations

from tff_reg import settings
from tff_reg.methods import catalogue


def rows() -> list[dict[str, str]]:
    """A row for each method of this package, as Markdown cells by column.

    Columns: the process, what it is, its paper, and its strengths with what the paper
    calls them and their defaults.
    """
    package = __name__.rpartition(".")[0]
    return [
        {
            "process": f"`{name}`",
            "what it is": method.title,
            "paper": method.paper,
            "strengths (default)": ", ".join(
                map(_strength, settings.settings_of(method))
            ),
        }
        for name, method in catalogue.methods().items()
        if method.__module__.startswith(f"{package}.")
    ]


def _strength(setting: settings.Setting) -> str:
    default = setting.default
    is_number = isinstance(default, float)
    shown = f"{default:g}" if is_number else settings.as_text(default)
    symbol = f"{setting.symbol} = " if setting.symbol else ""
    return f"`{setting.name}` ({symbol}{shown})"
