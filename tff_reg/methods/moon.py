r"""MOON: a contrastive term between local, global and previous local features.

Qinbin Li, Bingsheng He, Dawn Song. "Model-Contrastive Federated Learning." CVPR 2021.
https://arxiv.org/abs/2103.16257

$$
-\mu \log \frac{e^{\cos(v, v_g) / \tau}}
{e^{\cos(v, v_g) / \tau} + e^{\cos(v, v_p) / \tau}}
$$

With v the local embedding, v_g the global model's and v_p the embedding of the client's
own model at the end of its previous round, the term is Eq. 3's, averaged over the
batch; v_g and v_p are constants. In a client's first round the initial model is its
previous model. The embedding should come from a projection head
(`build_model_fn(..., projector="moon")`).

As in the FedAlign authors' code, all three models run in training mode: BatchNorm uses
the batch's statistics. Their code also updates the running statistics of the global and
the previous model, which are never read; ours does not.
"""

from __future__ import annotations

import dataclasses

from tff_reg import settings
from tff_reg.lazy import tf
from tff_reg.methods import cards, memories, method, papers


@dataclasses.dataclass(frozen=True)
class MOON(method.Method):
    """The model-contrastive term."""

    name = "moon"
    title = (
        "Contrastive term: features near the global model's, away from the previous "
        "local model's"
    )
    paper = "Li et al., CVPR 2021"
    card = cards.Card(
        cards.FEATURES,
        "A contrastive loss pulls a client's features towards the global model's and "
        "away from those of its own previous model.",
        "Long training in which clients take part repeatedly.",
    )
    paper_settings = papers.FEDALIGN
    required_settings = {"projector": "moon"}
    client_memory = {method.PREVIOUS: memories.shared(memories.initial_weights)}

    strength: float = settings.setting(
        1.0,
        symbol="mu",
        help="mu of Eq. 4, factor of the contrastive term. 0 is FedAvg.",
        minimum=0,
    )
    temperature: float = settings.setting(
        0.5,
        symbol="tau",
        help="tau of Eq. 3, the temperature of the cosine similarities, above 0.",
        above=0,
    )

    def finish(self, local: method.Local) -> method.Finished:
        last = [tf.identity(w) for w in local.weights]
        return method.Finished({method.PREVIOUS: last})

    def term(self, step: method.Step) -> method.Term:
        local = tf.math.l2_normalize(step.outputs.embedding, axis=-1)

        def cosines(model: str):
            other = tf.math.l2_normalize(step.outputs_of(model).embedding, axis=-1)
            return tf.reduce_sum(local * other, axis=-1)

        towards, away = cosines(method.GLOBAL), cosines(method.PREVIOUS)
        losses = tf.math.softplus((away - towards) / self.temperature)
        value = batch_mean(losses)
        return method.Term(
            raw=value,
            weighted=self.strength * value,
            measurements={
                "global_cosine": batch_mean(towards),
                "previous_cosine": batch_mean(away),
            },
        )


def batch_mean(values: tf.Tensor) -> tf.Tensor:
    """Computes the mean of float [batch]; 0 for an empty batch."""
    count = tf.cast(tf.size(values), values.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(values), count)
