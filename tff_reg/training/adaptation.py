"""Models as the methods of a sum need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tff_reg.methods import method as method_lib


def adapt_model_fn(
    model_fn: Callable[[], Any], methods: Sequence[method_lib.Method]
) -> Callable[[], Any]:
    """Returns a `model_fn` whose models are as a sum of methods needs them.

    Freeze makes the classifier's weights constants, stochastic depth scales the
    residual branches in evaluation. Whoever evaluates or exports the weights of such a
    process needs this model; for the other methods it is `model_fn` itself.

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
            method_lib.check_model(method, model)
            method.adapt_network(model.network)
        return model

    return adapted_model_fn
