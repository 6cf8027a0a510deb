"""The score: the number of a model by which runs are judged, ranked and drawn."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from tff_reg.lazy import keras, tf
from tff_reg.settings import SettingError

# What models are judged by if nobody says otherwise, and if they are no classifiers.
DEFAULT, OF_OTHERS = "accuracy", "loss"
# The beginnings of the columns of `metrics.csv`.
_SERVER, _TRAINING, _ALL_CLIENTS = "evaluation", "training", "evaluation_all_clients"
# Last words of metrics' names, as Keras has them, by what is better.
_LOWER = frozenset(
    ("loss", "error", "crossentropy", "divergence", "poisson", "hinge", "cosh")
    + ("mae", "mse", "mape", "msle", "rmse", "kld", "logcosh")
)
_HIGHER = frozenset(
    (DEFAULT, "auc", "precision", "recall", "iou", "similarity", "sensitivity")
    + ("specificity", "f1_score", "beta_score", "fbeta_score", "r2_score")
)
_WORD = re.compile("IoU|AUC|[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


@dataclasses.dataclass(frozen=True)
class Score:
    """A score, and how people read it.

    Attributes:
      name: The name of the metric, as an evaluation returns it.
      lower_is_better: Whether a lower one is better.
    """

    name: str = DEFAULT
    lower_is_better: bool = False

    @property
    def is_share(self) -> bool:
        """Whether it is a share of the examples, which people read in percent."""
        return self.name.endswith(DEFAULT)

    @property
    def scale(self) -> float:
        """Factor of the numbers for people."""
        return 100 if self.is_share else 1

    @property
    def form(self) -> str:
        """Format of its numbers for people."""
        return ".2f" if self.is_share else ".4g"

    @property
    def unit(self) -> str:
        """Its unit for people, after a space; empty for none."""
        return " (%)" if self.is_share else ""

    @property
    def best(self) -> Callable[..., float]:
        """`min` or `max`."""
        return min if self.lower_is_better else max

    @property
    def worst(self) -> Callable[..., float]:
        """The other one."""
        return max if self.lower_is_better else min

    server = property(lambda self: f"{_SERVER}/{self.name}", doc="Its column.")
    training = property(lambda self: f"{_TRAINING}/{self.name}", doc="Of clients.")
    all_clients = property(lambda self: f"{_ALL_CLIENTS}/{self.name}", doc="Of a mean.")

    def rank(self, value: float) -> float:
        """Returns a number that is the higher, the better the value is."""
        return -value if self.lower_is_better else value

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return self.rank(value) >= self.rank(target)

    def text(self, value: Optional[float], form: str = "") -> str:
        """Formats a value for people; a dash for None or NaN."""
        if value is None or math.isnan(value):
            return "-"
        text = f"{self.scale * value:{form if form and self.is_share else self.form}}"
        return f"{text} %" if self.is_share else text


def of(settings: Mapping[str, Any]) -> Score:
    """Returns the score of a run, of settings by name.

    Raises:
      SettingError: If it is not known whether lower is better.
    """
    name = settings.get("score") or DEFAULT
    lower = settings.get("lower_is_better")
    return Score(name, _is_lower(name) if lower is None else lower)


def _is_lower(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    ends = {"_".join(words[-count:]) for count in (1, 2)}
    is_turned = words[:1] in (["neg"], ["negative"])
    if not is_turned and ends & (_LOWER | _HIGHER):
        return bool(ends & _LOWER)
    why = "say whether lower is better: lower_is_better=true, or false."
    raise SettingError("score", name, why)


def metric(name: str, known: Iterable[str]) -> dict[str, Any]:
    """Returns a score that is no known metric as one of Keras, by its name.

    Raises:
      SettingError: If Keras has no such metric.
    """
    if name in {DEFAULT, OF_OTHERS, *known}:
        return {}
    names = dir(keras.metrics)
    kinds = {n.lower(): n for n in names if isinstance(getattr(keras.metrics, n), type)}
    short = kinds.get(name.replace("_", "").lower(), "")
    # A class, if there is one: it says what labels it takes.
    found = getattr(keras.metrics, short, None) or getattr(keras.metrics, name, None)
    if not callable(found):
        why = "Keras has no such metric; from Python give metrics={name: metric}."
        raise SettingError("score", name, why)
    return {name: found() if isinstance(found, type) else found}


def of_probabilities(metric: Any, model_fn: Any) -> Any:
    """Returns a Keras metric of probabilities as one of the model's outputs."""
    # Our networks return logits.
    probabilities = getattr(model_fn, "probabilities", tf.nn.softmax)
    if probabilities is None:
        return metric

    def measured(labels: Any, outputs: Any) -> Any:
        given = labels, probabilities(outputs).numpy()
        if not hasattr(metric, "update_state"):
            return metric(*given)
        metric.reset_state()
        metric.update_state(*given)
        return metric.result()

    return measured
