"""Reports on a partition: the examples of each client as a table and as a picture.

`report` counts the examples for labels and a partition, `of_task` for a task that
`tasks.build` has built.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_reg import curves
from tff_reg.data import partitions, skews as skews_lib
from tff_reg.lazy import (
    matplotlib,
    mpl_colors,
    mpl_patches,
    np,
)

# With at most this many classes, each has a column in the table and a colour.
_FEW_CLASSES = 12
# With at most this many clients, the picture has a bar for each.
_FEW_CLIENTS = 50
# Number of largest classes in a client's row if the classes have no columns.
_NAMED_CLASSES = 3
# The pictures of skews: clients, and images of each.
_CLIENTS, _EACH = 8, 4
_BAR = "#0b5fa5"


@dataclasses.dataclass(frozen=True)
class PartitionReport:
    """The examples of each client.

    Attributes:
      counts: int64 [clients, classes], numbers of examples.
      client_ids: The clients' names.
      class_names: The classes' names.
      num_examples: Number of all examples, including those that no client has.
      domain_counts: int64 [clients, domains]; no columns if there are no domains.
      domain_names: The domains' names.
      skews: Further numbers of each client by name, such as its noise.
    """

    counts: np.ndarray
    client_ids: tuple[str, ...]
    class_names: tuple[str, ...]
    num_examples: int
    domain_counts: np.ndarray
    domain_names: tuple[str, ...]
    skews: tuple[Mapping[str, float], ...] = ()

    @property
    def sizes(self) -> np.ndarray:
        """int64 [clients], examples of each client."""
        return self.counts.sum(axis=1)

    @property
    def entropies(self) -> np.ndarray:
        """Label entropy in bits, float64 [clients]: 0 for a client with one class."""
        return _entropy(self.counts)

    @property
    def label_distances(self) -> np.ndarray:
        """Total variation distance of labels, float64 [clients], in 0 to 1.

        Half the sum over classes of the differences between a client's shares and those
        of all clients' examples: half the distance of Y. Zhao et al., "Federated
        Learning with Non-IID Data", 2018, Section 3.2. NaN for an empty client.
        """
        with np.errstate(invalid="ignore"):
            shares = self.counts / self.sizes[:, np.newaxis]
        whole = self.counts.sum(axis=0) / self.sizes.sum()
        return np.abs(shares - whole).sum(axis=1) / 2

    @property
    def size_spread(self) -> tuple[float, float]:
        """Coefficient of variation (n, not n - 1) and Gini index of the sizes."""
        sizes, count = np.sort(self.sizes), len(self.sizes)
        ranks = 2 * np.arange(1, count + 1) - count - 1
        gini = (ranks * sizes).sum() / (count * sizes.sum())
        return float(sizes.std() / sizes.mean()), float(gini)

    @property
    def _names_fit(self) -> bool:
        """Whether the classes' names fit beside the rows of the map."""
        return len(self.class_names) <= 25 and max(map(len, self.class_names)) <= 12

    def rows(self) -> list[dict[str, Any]]:
        """Returns the table, with a row for each client."""
        held = (self.counts > 0).sum(axis=1)
        found = []
        for row, client_id in enumerate(self.client_ids):
            cells = {
                "client": client_id,
                "examples": int(self.sizes[row]),
                "classes": int(held[row]),
                "entropy_bits": round(float(self.entropies[row]), 4),
                "label_distance": round(float(self.label_distances[row]), 4),
                **(self.skews[row] if self.skews else {}),
            }
            for kind, names, counts in (
                ("domain", self.domain_names, self.domain_counts[row]),
                ("class", self.class_names, self.counts[row]),
            ):
                cells.update(
                    (f"{kind}/{name}", int(count)) for name, count in zip(names, counts)
                )
            found.append(cells)
        return found

    def write_csv(self, path: str | os.PathLike) -> None:
        """Writes `rows` as comma-separated values."""
        rows = self.rows()
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def markdown(self) -> str:
        """Returns the table in Markdown; of many classes, a client's largest only."""
        header = ["client", "examples", "classes", "entropy (bits)"]
        header += self.domain_names
        few = len(self.class_names) <= _FEW_CLASSES
        header += self.class_names if few else ["holds most of"]
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        if not few:
            lines[1][-1] = "---"
        for row, cells in enumerate(self.rows()):
            line = [cells["client"], cells["examples"], cells["classes"]]
            line.append(f"{cells['entropy_bits']:.2f}")
            line += self.domain_counts[row].tolist()
            line += self.counts[row].tolist() if few else [self._largest(row)]
            lines.append(line)
        text = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
        return "\n".join("| " + " | ".join(line) + " |" for line in text) + "\n"

    def _largest(self, row: int) -> str:
        counts = self.counts[row]
        order = np.argsort(-counts, kind="stable")[:_NAMED_CLASSES]
        return ", ".join(
            f"{self.class_names[c]} {counts[c]}" for c in order if counts[c]
        )

    def summary(self) -> list[str]:
        """Returns a few lines that summarise the whole partition."""
        sizes, held = self.sizes, (self.counts > 0).sum(axis=1)
        whole = _entropy(self.counts.sum(axis=0, keepdims=True))[0]
        lines = [
            f"{len(sizes)} clients hold {sizes.sum():,} of {self.num_examples:,} "
            f"examples: {_spread(sizes)} each",
            f"classes: {_spread(held)} of {len(self.class_names)} each",
            f"label entropy: {_spread(self.entropies, '.2f')} bits each; all clients' "
            f"examples together have {whole:.2f}",
        ]
        of_classes = self.counts.sum(axis=0)
        of_classes = of_classes[of_classes > 0]
        variation, gini = self.size_spread
        lines += [
            "label skew: mean total variation distance"
            f" {np.nanmean(self.label_distances):.3f} to all clients' examples",
            f"size skew: coefficient of variation {variation:.3f}, Gini {gini:.3f}",
            f"class imbalance: {of_classes.max() / of_classes.min():.4g} times as many"
            " examples of the largest class as of the smallest",
        ]
        for name in self.skews[0] if self.skews else ():
            values = np.array([each[name] for each in self.skews])
            lines.append(f"{name.replace('_', ' ')}: {_spread(values, '.4g')} each")
        if self.domain_names:
            own = (self.domain_counts > 0).sum(axis=1)
            lines.append(f"domains: {_spread(own)} of {len(self.domain_names)} each")
        return lines

    def write_figure(self, path: str | os.PathLike) -> None:
        """Draws the examples of each client as a PNG of 1440 x 900 pixels.

        With few clients and classes, it has stacked bars with a colour per class. Else
        it has a heat map with a column per client and a row per class, under bars of
        the clients' sizes; more than 50 clients are sorted by their largest class. A
        strip of colours below shows the domains.
        """
        figure = curves.new_figure()
        few = (
            len(self.client_ids) <= _FEW_CLIENTS
            and len(self.class_names) <= _FEW_CLASSES
        )
        left = 0.09 if few or not self._names_fit else 0.14
        order = np.arange(len(self.client_ids))
        if len(order) > _FEW_CLIENTS:
            order = np.lexsort((-self.counts.max(axis=1), self.counts.argmax(axis=1)))
        bottom = 0.21 if self.domain_names else 0.11
        width = (0.81 if few else 0.9) - left
        if few:
            axes = figure.add_axes((left, bottom, width, 0.95 - bottom))
            self._draw_bars(axes)
        else:
            axes = figure.add_axes((left, bottom, width, 0.77 - bottom))
            self._draw_sizes(figure.add_axes((left, 0.8, width, 0.15)), order)
            self._draw_map(axes, figure.add_axes((0.915, bottom, 0.015, 0.3)), order)
        last = axes
        if self.domain_names:
            axes.tick_params(labelbottom=False)
            last = figure.add_axes((left, bottom - 0.045, width, 0.03))
            self._draw_domains(last, order)
        label = "client"
        if len(order) > _FEW_CLIENTS:
            label = "clients, sorted by their largest class"
        last.set_xlabel(label, fontsize=13, color=curves.INK)
        pathlib.Path(path).write_bytes(curves.as_png(figure))

    def _draw_bars(self, axes) -> None:
        palette: Any = matplotlib.colormaps[
            "tab10" if len(self.class_names) <= 10 else "tab20"
        ]
        colours = palette.colors
        base = np.zeros(len(self.client_ids))
        for c, name in enumerate(self.class_names):
            axes.bar(
                np.arange(base.size),
                self.counts[:, c],
                0.85,
                bottom=base,
                color=colours[c],
                label=_short(name),
            )
            base += self.counts[:, c]
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            # From top to bottom, as the bars are stacked.
            handles[::-1],
            labels[::-1],
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            frameon=False,
            fontsize=11,
        )
        axes.set_xlim(-0.6, base.size - 0.4)
        _style(axes)

    def _draw_sizes(self, axes, order) -> None:
        axes.bar(np.arange(order.size), self.sizes[order], 1.0, color=_BAR)
        axes.set_xlim(-0.5, order.size - 0.5)
        axes.set_ylim(0, None)
        _style(axes, ticks=3)
        axes.tick_params(labelbottom=False)

    def _draw_map(self, axes, bar_axes, order) -> None:
        # Only zero is white; one example is visible.
        blues = matplotlib.colormaps["Blues"](np.linspace(0.15, 1.0, 256))
        colours = mpl_colors.LinearSegmentedColormap.from_list("held", blues)
        colours.set_bad("white")
        shown = np.ma.masked_equal(self.counts[order].T, 0)
        picture = axes.imshow(
            shown,
            aspect="auto",
            interpolation="nearest",
            cmap=colours,
            norm=mpl_colors.PowerNorm(0.5, vmin=0, vmax=max(1, self.counts.max())),
        )
        if self._names_fit:
            axes.set_yticks(np.arange(len(self.class_names)), self.class_names)
        else:
            axes.set_ylabel("class", fontsize=13, color=curves.INK)
            curves.tick(axes.yaxis)
        axes.figure.colorbar(picture, cax=bar_axes)
        bar_axes.set_title("examples", fontsize=10, color=curves.INK, loc="left")
        bar_axes.tick_params(labelsize=10, colors=curves.INK)
        axes.tick_params(labelsize=11, colors=curves.INK)
        curves.tick(axes.xaxis)

    def _draw_domains(self, axes, order) -> None:
        palette: Any = matplotlib.colormaps["Set2"]
        number = len(self.domain_names)
        colours = [palette.colors[i % palette.N] for i in range(number)]
        main = self.domain_counts[order].argmax(axis=1)[np.newaxis]
        axes.imshow(
            main,
            aspect="auto",
            interpolation="nearest",
            cmap=mpl_colors.ListedColormap(colours),
            vmin=-0.5,
            vmax=len(colours) - 0.5,
        )
        mixed = ((self.domain_counts > 0).sum(axis=1) > 1).any()
        axes.set_yticks([])
        axes.tick_params(labelsize=11, colors=curves.INK)
        curves.tick(axes.xaxis)
        axes.figure.legend(
            [
                mpl_patches.Patch(color="none"),
                *(mpl_patches.Patch(color=colour) for colour in colours),
            ],
            ["main domain:" if mixed else "domain:", *map(_short, self.domain_names)],
            ncols=len(colours) + 1,
            loc="lower right",
            bbox_to_anchor=(0.91, 0.0),
            frameon=False,
            fontsize=11,
            columnspacing=1.2,
            handlelength=1.2,
        )


def report(
    labels: np.ndarray,
    partition: Sequence[np.ndarray],
    *,
    class_names: Sequence[str],
    client_ids: Sequence[str] | None = None,
    domains: np.ndarray | None = None,
    domain_names: Sequence[str] = (),
    skews: Sequence[Mapping[str, float]] = (),
) -> PartitionReport:
    """Counts the examples of each client by class and domain.

    >>> from tff_reg.data import partition_report
    >>> dealt, names = [[0, 1], [2]], ["cat", "dog"]
    >>> held = report([0, 1, 0], dealt, class_names=names)
    >>> print(held.markdown())
    | client | examples | classes | entropy (bits) | cat | dog |
    | --- | ---: | ---: | ---: | ---: | ---: |
    | 0 | 2 | 2 | 1.00 | 1 | 1 |
    | 1 | 1 | 1 | 0.00 | 1 | 0 |
    """
    names = range(len(partition)) if client_ids is None else client_ids
    counts = partitions.class_counts(labels, partition, len(class_names))
    domain_counts = np.zeros((len(partition), 0), np.int64)
    if domains is not None:
        domain_counts = partitions.class_counts(domains, partition, len(domain_names))
    return PartitionReport(
        counts=counts,
        client_ids=tuple(map(str, names)),
        class_names=tuple(map(str, class_names)),
        num_examples=len(labels),
        domain_counts=domain_counts,
        domain_names=() if domains is None else tuple(map(str, domain_names)),
        skews=tuple(skews),
    )


def of_task(task: Any, settings: Mapping[str, Any] = {}) -> PartitionReport:
    """Returns the report of a task that `tasks.build` has built.

    Args:
      task: The task. Classes are the right ones, and wrong labels a number of each
        client.
      settings: The settings of skews by name, which the report repeats.
    """
    labels = task.client_data.arrays[1]
    skews = skews_lib.of_clients(settings, len(task.partition))
    for own, skew in zip(task.partition, skews):
        if "wrong_labels" in skew:
            wrong = labels[own] != task.train_labels[own]
            skew["wrong_labels"] = round(float(wrong.mean()), 4) if own.size else 0.0
    return report(
        task.train_labels,
        task.partition,
        class_names=task.class_names,
        client_ids=task.client_data.client_ids,
        domains=task.domains,
        domain_names=task.domain_names,
        skews=skews,
    )


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Computes the entropy in bits of each row's distribution; 0 for an empty row."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    # Turns -0.0 into 0.0.
    return np.maximum(-(shares * logs).sum(axis=1), 0.0)


def _spread(values: np.ndarray, form: str = "g") -> str:
    least, middle, most = np.min(values), np.median(values), np.max(values)
    if least == most:
        return f"{least:{form}}"
    return f"{least:{form}} to {most:{form}} (median {middle:{form}})"


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _style(axes: Any, ticks: int = 8) -> None:
    curves.style(axes, "", "examples", grid="y")
    curves.tick(axes.xaxis)
    curves.tick(axes.yaxis, ticks)


def write_skews(task: Any, skews: Sequence[Mapping[str, float]], path: Any) -> None:
    """Draws four images of each of the first eight clients, a client to a column.

    A title is the label that the client trains on, red if it is wrong.

    Args:
      task: A task of images that `tasks.build` has built.
      skews: Each client's skews by name, written above its column.
      path: The PNG file.
    """
    x, labels = task.client_data.arrays
    parts = task.partition[:_CLIENTS]
    figure = curves.new_figure(1.6 * len(parts), 8.0)
    figure.set_dpi(100)
    grid = figure.subplots(_EACH, len(parts), squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for column, (own, skew) in enumerate(zip(parts, skews)):
        said = [f"{n.replace('_', ' ')} {value:.3g}" for n, value in skew.items()]
        where = ((column + 0.5) / len(parts), 0.99)
        text = "\n".join([f"client {column}", *said])
        figure.text(*where, text, ha="center", va="top", fontsize=9)
        chosen = own[
            np.linspace(0, max(0, own.size - 1), _EACH).astype(int)[: own.size]
        ]
        for axes, row in zip(grid[:, column], chosen):
            image = x[row].astype(np.float32)
            image = (image - image.min()) / (np.ptp(image) or 1)
            axes.imshow(image.repeat(3 // image.shape[-1] or 1, axis=-1))
            is_wrong = labels[row] != task.train_labels[row]
            name = task.class_names[labels[row]][:12]
            axes.set_title(name, fontsize=9, color="red" if is_wrong else "black")
    figure.subplots_adjust(
        0.01, 0.01, 0.99, 0.93 - 0.02 * max(map(len, skews)), 0.05, 0.2
    )
    pathlib.Path(path).write_bytes(curves.as_png(figure))
