"""Models with the methods' changes to the network, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.lazy import tff
from tff_reg.methods import checks, method as method_lib
from tff_reg.models import learning_model
from tff_reg.seam import tensorflow_internals


def adapt_model_fn(
    model_fn: Callable[[], Any], methods: Sequence[method_lib.Method]
) -> Callable[[], Any]:
    """Returns a `model_fn` whose models include the methods' changes to the network.

    Freeze makes the classifier's weights constants, FedETF replaces the classifier, and
    stochastic depth scales the residual branches in evaluation. To evaluate or export
    such a process, use its attribute `model_fn`, which makes this model. Other methods
    do not change `model_fn`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`, or, if no method looks inside
        the network, any TFF model.
      methods: The methods.

    Returns:
      A function without arguments that makes the model.
    """
    changing = [m for m in methods if method_lib.overrides(m, "adapt_network")]
    if not changing:
        return model_fn

    def adapted_model_fn():
        model = model_fn()
        learning_model.check_model(model)
        for method in changing:
            checks.check_model(method, model)
            method.adapt_network(model.network)
        return model

    return adapted_model_fn


@tensorflow_internals.elementwise_equality()
def build_evaluation(process: Any, **arguments: Any) -> Any:
    """Builds the federated evaluation of a process's model.

    Args:
      process: The result of `build` or `build_regularized`.
      **arguments: Arguments of `tff.learning.algorithms.build_fed_eval`.

    Returns:
      A `tff.learning.templates.LearningProcess`.

    Raises:
      TypeError: If `tff_reg.training` did not build the process.
    """
    model_fn = getattr(process, "model_fn", None)
    if model_fn is None:
        raise TypeError(
            f"process is a {type(process).__name__} that tff_reg.training did not"
            " build; tff.learning.algorithms.build_fed_eval(model_fn) evaluates it."
        )
    return tff.learning.algorithms.build_fed_eval(model_fn, **arguments)
