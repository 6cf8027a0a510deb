r"""FedProto: embeddings near the mean embeddings of their classes.

Yue Tan, Guodong Long, Lu Liu, Tianyi Zhou, Qinghua Lu, Jing Jiang, Chengqi Zhang.
"FedProto: Federated Prototype Learning across Heterogeneous Clients." AAAI 2022.
https://arxiv.org/abs/2105.00243

$$
\ell(w) + \lambda \operatorname{mean}_{b, d} (h_{bd} - C_{y_b d})^2, \qquad
C'_y = \operatorname{mean}_i \operatorname{mean}_{b:\, y_b = y} h_b
$$

h are a batch's embeddings. Beside its update, a client uploads a table: the mean
embedding of each of its classes in its last epoch, as the steps see them; of a partial
last epoch that is its part, and of batched data, which show no epochs, all. The server
sends the mean of the tables over the clients that have the class; classes that no
client of the last round had add nothing, nor does the first round.

In the paper only the tables are sent, and every client keeps a model of its own; here
models are averaged, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, contract, memories, method, papers


@dataclasses.dataclass(frozen=True)
class FedProto(method.Method):
    """Prototypes of classes."""

    name = "fedproto"
    title = "Embeddings near the mean embeddings of their classes"
    paper = "Tan et al., AAAI 2022"
    card = cards.Card(
        cards.FEATURES,
        "Draws each embedding to its class's mean over the clients, which the server "
        "sends as a table.",
        "Clients that share classes whose features drift apart.",
        cards.BY_HAND,
    )
    paper_settings = papers.MAN
    needs = (method.ONE_LABEL,)
    uploads = ("table",)

    strength: float = settings.setting(
        1.0,
        symbol="lambda",
        help="lambda, factor of the distance. 0 is FedAvg.",
        minimum=0,
    )

    @property
    def server_memory(self) -> method.Declarations:  # pyright: ignore
        return {"table": memories.sent(lambda weights: _table(**_no_sums(weights)))}

    def term(self, step: method.Step) -> method.Term:
        table, labels = step.local.server_memory["table"], step.labels
        found = step.outputs.embedding
        is_known = tf.gather(table["known"], labels)
        squares = tf.math.squared_difference(found, tf.gather(table["means"], labels))
        distance = tf.reduce_mean(is_known[:, tf.newaxis] * squares)
        constant = tf.stop_gradient(found)
        return method.Term(
            distance,
            self.strength * distance,
            kept={
                "sums": tf.math.unsorted_segment_sum(
                    constant, labels, table["known"].shape[0]
                ),
                "counts": tf.math.unsorted_segment_sum(
                    tf.ones_like(constant[:, 0]), labels, table["known"].shape[0]
                ),
            },
        )

    def begin(self, local: method.Local) -> dict[str, Any]:
        return _no_sums(local.weights)

    def keep(self, local: method.Local, gradient: method.Tensors) -> dict[str, Any]:
        def one(old: Any, new: Any) -> Any:
            return tf.where(local.begins_epoch, new, old + new)

        return {name: one(local.state[name], local.kept[name]) for name in local.state}

    def finish(self, local: method.Local) -> method.Finished:
        return method.Finished(upload={"table": _table(**local.state)})

    def update_memory(self, server: method.Server) -> method.Memory:
        uploads = server.uploads["table"]
        return {"table": _table(uploads["means"], uploads["known"])}


def _table(sums: Any, counts: Any) -> dict[str, Any]:
    """Returns the means of classes, and 1 for those that have one, else 0."""
    means = tf.math.divide_no_nan(sums, counts[:, tf.newaxis])
    return {"means": means, "known": tf.minimum(counts, 1)}


def _no_sums(weights: Sequence[Any]) -> dict[str, Any]:
    """Returns empty sums, whose sizes are those of the classifier's kernel."""
    kernels = [w for w in weights if len(w.shape) == 2]
    if not kernels:
        raise contract.NeedError("it needs a linear classifier as the last layer.")
    size, classes = kernels[-1].shape
    return {
        "sums": tf.zeros([classes, size], kernels[-1].dtype),
        "counts": tf.zeros([classes], kernels[-1].dtype),
    }
