"""Each client's accuracy: of the global model, and of copies that it trains further.

Under label skew client k's expected accuracy is sum_c p_k(c) recall(c): p_k are the
shares of the classes among its training examples, recall is measured on the test set.
So no example is lost for training. Data with domains have a recall of each class in
each domain. With examples that clients hold out, it is the accuracy on these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_reg import curves, files, tables
from tff_reg.experiment.rounds import directory as directory_lib, metrics
from tff_reg.experiment.rounds.evaluation import CentralEvaluation
from tff_reg.lazy import np

_MEASURED = ("accuracy", "loss")
# With more, such as the words of a text, the table of confusions would be gigabytes.
_MOST_CLASSES = 1000


class ClientResults(NamedTuple):
    """The rows of `clients.csv` and `per_class.csv`, and columns of `metrics.csv`."""

    rows: list[dict[str, Any]]
    classes: list[dict[str, Any]]
    row: dict[str, Optional[float]]

    def write(self, folder: Any) -> None:
        """Writes the tables and the picture."""
        files.write_text(folder / directory_lib.CLIENTS, tables.to_csv(self.rows))
        if self.classes:  # There is a model that clients share.
            path = folder / directory_lib.CLASSES
            files.write_text(path, tables.to_csv(self.classes))
        picture = folder / directory_lib.CLIENTS_PICTURE
        curves.write_points(picture, panels(self.rows))


class TestedClients:
    """The examples on which each client of a task is tested.

    Attributes:
      is_tested: Whether there are any, bool [clients].
    """

    def __init__(self, task: Any, examples: tuple[Any, Any]):
        """Looks at the clients' labels.

        Args:
          task: The task. If its `client_data` have `tests`, these are measured.
          examples: The test set, for other tasks.
        """
        clients = task.client_data
        self._ids = clients.client_ids
        own = [clients.client_positions(name) for name in self._ids]
        of_train, of_test, domain_names = 0, 0, [""]
        if task.test_domains is not None:
            of_train, of_test = task.domains, task.test_domains
            domain_names = task.domain_names
        self._names = [(c, d) for c in task.class_names for d in domain_names]
        labels = getattr(task, "train_labels", clients.arrays[1])
        strata = labels * len(domain_names) + of_train
        # Of each tested example: its row, its class and domain, and its cell: the
        # examples over which a mean is taken. Of each client: its shares of the cells.
        self._shares: Any = None
        if clients.tests is None:
            self._examples = examples
            self._tested = self._examples[1] * len(domain_names) + of_test
            self._rows, self._cells = np.arange(len(self._tested)), self._tested
            self._counts = np.bincount(self._cells, minlength=len(self._names))
            held = [
                np.bincount(strata[each], minlength=self._counts.size) for each in own
            ]
            self._shares = np.array(held, float) * (self._counts > 0)
            self.is_tested = self._shares.any(axis=1)
            self._shares /= np.maximum(1, self._shares.sum(axis=1, keepdims=True))
        else:  # A client's cell are the examples that it holds out.
            self._examples = clients.tests.arrays
            held = [clients.tests.client_positions(name) for name in self._ids]
            self._rows = np.concatenate(held)
            if (
                self._examples[1] is not clients.arrays[1]
            ):  # Test examples that have clients.
                strata = self._examples[1] * len(domain_names) + of_test
            self._tested = strata[self._rows]
            self._cells = np.repeat(np.arange(len(held)), [*map(len, held)])
            self._counts = np.bincount(self._cells, minlength=len(held))
            self.is_tested = self._counts > 0
        of_clients = ({"client": n, **_of(labels[e])} for n, e in zip(self._ids, own))
        self._described = [*of_clients]


class ClientEvaluation(TestedClients):
    """Measures the accuracies of all clients, sampled or not."""

    def __init__(
        self,
        evaluation: CentralEvaluation,
        task: Any,
        finetune: Optional[Callable[[Any, str], Any]] = None,
    ):
        """Looks at the clients' labels.

        Args:
          evaluation: Has the model and the test set.
          task: As for `TestedClients`.
          finetune: From `loop.Rounds` and a client to the weights of the client's copy;
            None for no copies.
        """
        super().__init__(task, evaluation.examples)
        self._evaluation, self._finetune = evaluation, finetune
        self._kinds = [*metrics.CLIENT_KINDS][: 1 if finetune is None else 2]

    @property
    def columns(self) -> list[str]:
        """The columns of `metrics.csv` that it fills."""
        return [f"{k}/{name}" for k in self._kinds for name in metrics.CLIENT_MEASURES]

    def __call__(self, run: Any) -> ClientResults:
        """Measures each client after a round; `run` is the `loop.Rounds`."""
        rows = [dict(each) for each in self._described]
        row: dict[str, Optional[float]] = {}
        own: list[Any] = [run.weights_of]
        if self._finetune is not None:
            own.append(functools.partial(self._finetune, run))
        weights = run.process.get_model_weights(run.state)
        of_all, predicted = self._test(weights, np.arange(len(self._rows)))
        for kind, prefix, weights_of in zip(self._kinds, ("", "finetuned_"), own):
            found = self._mixed(of_all)
            for k in np.flatnonzero(self.is_tested).tolist() if weights_of else ():
                own_means = self._own_test(weights_of(self._ids[k]), k)
                found[:, k : k + 1] = self._mixed(own_means, slice(k, k + 1))
            for each, values, is_tested in zip(rows, found.T.tolist(), self.is_tested):
                for what, value in zip(_MEASURED, values):
                    each[prefix + what] = value if is_tested else None
            accuracies = [each[f"{prefix}accuracy"] for each in rows]
            measures = spread(accuracies, [each["examples"] for each in rows])
            row.update((f"{kind}/{name}", value) for name, value in measures.items())
        classes = self._per_class(predicted) if run.shares_model else []
        return ClientResults(rows, classes, row)

    def _mixed(self, means: Any, which: slice = slice(None)) -> Any:
        """Returns clients' accuracies and losses, [2, n], from those of the cells."""
        if self._shares is None:
            return means[:, which]
        # No matrix product, whose bits depend on the number of clients.
        return (means[:, np.newaxis] * self._shares[which]).sum(axis=-1)

    def _own_test(self, weights: Any, k: int) -> Any:
        """Tests a client's own model on the test examples of its classes."""
        is_own = self._cells == k
        if self._shares is not None:
            is_own = self._shares[k][self._cells] > 0
        return self._test(weights, np.flatnonzero(is_own))[0]

    def _test(self, weights: Any, chosen: Any) -> tuple[Any, Any]:
        """Returns accuracies and losses by cell, [2, cells], and predicted classes."""
        (x, y), rows = self._examples, self._rows[chosen]
        predicted, losses = self._evaluation.outcomes(weights, x, y, rows)
        sums = [
            np.bincount(self._cells[chosen], each, self._counts.size)
            for each in (predicted == y[rows], losses)
        ]
        return np.array(sums) / np.maximum(1, self._counts), predicted

    def _per_class(self, predicted: Any) -> list[dict[str, Any]]:
        """Returns the rows of `per_class.csv`, also of classes without examples."""
        classes = [*dict.fromkeys(name for name, _ in self._names)]
        if len(classes) > _MOST_CLASSES:
            return []
        confusion = np.zeros([len(self._names), len(classes) + 1], int)
        np.add.at(confusion, (self._tested, predicted), 1)  # -1: none of them.
        rows = []
        for (name, domain), counts in zip(self._names, confusion.tolist()):
            count, right = sum(counts), counts[classes.index(name)]
            row = {"class": name, "domain": domain, "examples": count}
            row["recall"] = right / count if count else None
            row.update((f"predicted/{each}", n) for each, n in zip(classes, counts))
            rows.append(row)
        return rows


def _of(labels: Any) -> dict[str, Any]:
    """Returns what `clients.csv` says of a client before it is measured."""
    shares = np.unique(labels, return_counts=True)[1] / max(1, labels.size)
    entropy = float(abs((shares * np.log2(shares)).sum()))
    found = {"examples": labels.size, "classes": shares.size}
    return {**found, "entropy_bits": round(entropy, 4)}


def spread(
    accuracies: Sequence[Optional[float]], sizes: Sequence[int]
) -> dict[str, Optional[float]]:
    """Returns the measures of the clients' accuracies, by `metrics.CLIENT_MEASURES`.

    The deviation is over all clients (n). The worst tenth is the mean over the tenth of
    the clients, weighted over the tenth of the examples, with the lowest accuracies; a
    client on its border counts in part. Clients without an accuracy are left out.
    """
    known = [(a, size) for a, size in zip(accuracies, sizes) if a is not None]
    found: dict[str, Optional[float]] = dict.fromkeys(metrics.CLIENT_MEASURES)
    if not sum(size for _, size in known):
        return found
    values, of_examples = np.array(sorted(known), float).T
    found["worst"] = float(values[0])
    for prefix, weights in (("", np.ones(len(known))), ("weighted_", of_examples)):
        shares = weights / weights.sum()
        found[f"{prefix}mean"] = mean = float((shares * values).sum())
        variance = (shares * (values - mean) ** 2).sum()
        found[f"{prefix}deviation"] = float(np.sqrt(variance))
        for name, step in (("worst_tenth", 1), ("best_tenth", -1)):
            within = np.diff(np.minimum(0.1, np.cumsum(shares[::step])), prepend=0)
            found[prefix + name] = float((within * values[::step]).sum() / 0.1)
    return found


def panels(clients: Sequence[Mapping[str, Any]]) -> list[curves.Points]:
    """Returns the picture: the clients' accuracies over their sizes and skews."""
    found = []
    for across, label in (
        ("examples", "Training examples of the client"),
        ("entropy_bits", "Label entropy of the client (bits); 0: one class"),
    ):
        series = {}
        for name in ("accuracy", "finetuned_accuracy"):
            known = [c for c in clients if c.get(name) is not None]
            points = [(c[across], 100 * c[name]) for c in known]
            if points:
                series[name.replace("_", " ")] = tuple(zip(*points))
        found.append((label, curves.ACCURACY, series))
    return found
