"""Models as the methods of a sum need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.lazy import tff
from tff_reg.methods import checks, method as method_lib


def adapt_model_fn(
    model_fn: Callable[[], Any], methods: Sequence[method_lib.Method]
) -> Callable[[], Any]:
    """Returns a `model_fn` whose models are as a sum of methods needs them.

    Freeze makes the classifier's weights constants, FedETF has a classifier of its own,
    stochastic depth scales the residual branches in evaluation. Whoever evaluates or
    exports the weights of such a process needs this model, which is the process's
    `model_fn`; for the other methods it is `model_fn` itself.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`, or, where no method looks inside
        it, any TFF model.
      methods: The methods.

    Returns:
      A function without arguments that makes the model.
    """
    changing = [m for m in methods if method_lib.does(m, "adapt_network")]
    if not changing:
        return model_fn

    def adapted_model_fn():
        model = model_fn()
        for method in changing:
            checks.check_model(method, model)
            method.adapt_network(model.network)
        return model

    return adapted_model_fn


def build_evaluation(process: Any, **arguments: Any) -> Any:
    """Builds the federated evaluation of the model that a process trains.

    Args:
      process: What `build` or `build_regularized` returned.
      **arguments: As of `tff.learning.algorithms.build_fed_eval`.

    Returns:
      A `tff.learning.templates.LearningProcess`.

    Raises:
      TypeError: If the process is another.
    """
    model_fn = getattr(process, "model_fn", None)
    if model_fn is None:
        raise TypeError(
            f"process is a {type(process).__name__} that tff_reg.training did not"
            " build; tff.learning.algorithms.build_fed_eval(model_fn) evaluates it."
        )
    return tff.learning.algorithms.build_fed_eval(model_fn, **arguments)
