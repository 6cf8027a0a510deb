"""`report.html`: a comparison or a run in one file, to hand on.

It has the table, the curves and the clients' accuracies as SVG, the protocol, the data,
the versions and the commands. It needs no network and no script.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

from tff_reg import curves, scores, tables
from tff_reg.data import digests
from tff_reg.experiment.report.finished_runs import FinishedRun
from tff_reg.experiment.rounds import directory
from tff_reg.lazy import matplotlib
from tff_reg.methods import catalogue

FILE = directory.REPORT
# The largest number of points of a curve: 40 methods take half a megabyte.
_POINTS = 150
# The size of a figure, readable on a phone.
_INCHES = (5.4, 3.8)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem;
  margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p, dl { max-width: 48rem; } figure { margin: 1rem 0; max-width: 40rem; }
svg { width: 100%; height: auto; } figcaption { font-size: .85rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
td { white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
p { overflow-wrap: anywhere; font-size: .85rem; }
dt { font-weight: bold; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
dd span { display: inline-block; }
@page { size: A4; margin: 15mm; }
@media print { body { padding: 0; font-size: 10pt; } table { font-size: 7pt; }
  th, td { padding: 1pt 3pt; white-space: normal; } .wide { overflow: visible; }
  figure { max-width: 12cm; } figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; } }
"""

Groups = Mapping[str, Sequence[FinishedRun]]


def page(title: str, parts: Iterable[str], groups: Groups, command: str) -> str:
    """Returns a whole page: the parts, then where the runs' numbers come from."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{html.escape(title)}</h1>",
            *parts,
            "<h2>Origin</h2>",
            _origin(groups, command),
            "</body></html>\n",
        ]
    )


def table(cells: tables.Columns, below: Sequence[str]) -> str:
    """Returns a table and the text below it."""
    heads, columns = zip(*tables.pairs(cells))

    def row(kind: str, texts: Iterable[str]) -> str:
        return (
            f"<tr>{''.join(f'<{kind}>{_bold(text)}</{kind}>' for text in texts)}</tr>"
        )

    head = row("th", map(tables.in_one, heads))
    rows = [row("td", each) for each in zip(*columns)]
    # The lines are wrapped for a terminal.
    text = re.sub(r"\n(?!\n|- )(?<!\n\n)", " ", "\n".join(below))
    body = f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>\n{paragraph(text)}'


def paragraph(text: str) -> str:
    """Returns paragraphs, with a line for each that begins with a dash."""
    text = html.escape(text)
    for plain, tag in (("\n\n", "</p>\n<p>"), ("\n- ", "<br>\n- ")):
        text = text.replace(plain, tag)
    return f"<p>{text}</p>"


def _bold(text: str) -> str:
    return re.sub(r"^\*\*(.*)\*\*$", r"<strong>\1</strong>", html.escape(text))


def heading(text: str) -> str:
    """Returns the heading of a section."""
    return f"<h2>{html.escape(text)}</h2>"


def curves_of(drawn: Sequence[curves.Curve], score: scores.Score, up: str = "") -> str:
    """Returns a figure of curves; empty if there are none."""
    if not drawn:
        return ""
    step = 1 + max(len(curve.rounds) for curve in drawn) // _POINTS
    thin = [
        curves.Curve(
            catalogue.published_name(curve.name),
            *(
                [*values][(len(values) - 1) % step :: step]
                for values in (curve.rounds, curve.mean, curve.deviation)
            ),
        )
        for curve in drawn
    ]
    figure = curves.draw_panels({"": thin}, up=up, score=score, inches=_INCHES)
    name = score.name.capitalize()
    return _figure(figure, f"{name} by round, mean over seeds; bands of one deviation.")


def clients_of(groups: Groups) -> str:
    """Returns box plots of the clients' accuracies; empty if no run measured them."""
    found: dict[str, list[float]] = {}
    for name, runs in groups.items():
        for run in runs:
            for key in ("accuracy", "finetuned_accuracy"):
                known = [100 * each for each in run.of_clients(key)]
                of = catalogue.published_name(name)
                if known:
                    label = of if key == "accuracy" else f"{of}, finetuned"
                    found.setdefault(label, []).extend(known)
    if not found:
        return ""
    figure = curves.new_figure(_INCHES[0], height=1 + 0.4 * len(found))
    axes = figure.add_subplot()
    axes.boxplot([*reversed(found.values())], vert=False, widths=0.6)
    axes.set_yticks(range(1, len(found) + 1), [*reversed(found)])
    curves.style(axes, "Accuracy of a client (%)", "")
    figure.tight_layout()
    return _figure(
        figure,
        "Each client's accuracy, of all seeds: median, quartiles, and whiskers of 1.5"
        " times the distance of the quartiles.",
    )


def _figure(figure: Any, caption: str) -> str:
    buffer = io.StringIO()
    # Equal figures give equal text; letters are the reader's.
    with matplotlib.rc_context({"svg.hashsalt": "tff_reg", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    picture = re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", text)
    picture = picture[picture.index("<svg") :]
    return f"<figure>{picture}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _origin(groups: Groups, command: str) -> str:
    """Returns the command, the data and the versions of runs as a list."""
    runs = [run for group in groups.values() for run in group]

    def distinct(read: Callable[[FinishedRun], Optional[str]]) -> str:
        return "\n".join(dict.fromkeys(filter(None, map(read, runs))))

    def joined(run: FinishedRun, *names: str) -> str:
        return ", ".join(filter(None, map(run.config.get, names)))

    facts = {
        "Command": command,
        "Data (digest)": distinct(lambda run: joined(run, digests.DATA)),
        "Clients": distinct(_clients),
        "Versions": distinct(
            lambda run: ", ".join(
                map(" ".join, (run.config.get("versions") or {}).items())
            )
        ),
        "Machine": distinct(lambda run: joined(run, "machine", "clients_run")),
        "Runs": "\n".join(str(run.path) for run in runs),
    }
    known = {name: text for name, text in facts.items() if text}
    texts = [f"<dt>{n}</dt><dd>{_lines(text)}</dd>" for n, text in known.items()]
    return f"<dl>{''.join(texts)}</dl>"


def _lines(text: str) -> str:
    """Returns lines of words, which are broken only if they are too long."""
    return "<br>".join(
        " ".join(f"<span>{html.escape(word)}</span>" for word in line.split(" "))
        for line in text.splitlines()
    )


def _clients(run: FinishedRun) -> str:
    """Describes the split of the data, and the sizes and classes of the clients."""
    words = [f"seed {run.summary['seed']}"]
    if run.config.get(digests.DEALT):
        words.append(f"split {run.config[digests.DEALT]}")
    for name in ("examples", "classes", "entropy_bits") if run.clients else ():
        found = run.of_clients(name)
        words.append(f"{min(found):.3g} to {max(found):.3g} {name.replace('_', ' ')}")
    return ", ".join(words) if len(words) > 1 else ""
