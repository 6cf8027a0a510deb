"""Models as the methods of a sum need them."""

from __future__ import annotations

from typing import Callable, Sequence

from tff_reg.regularizers import regularizer as regularizer_lib


def adapt_model_fn(
    model_fn: Callable, regularizers: Sequence[regularizer_lib.Regularizer]
) -> Callable:
    """Returns a `model_fn` whose models are as a sum of methods needs them.

    Freeze makes the classifier's weights constants, stochastic depth scales the
    residual branches in evaluation. Whoever evaluates or exports the weights of such a
    process needs this model; for the other methods it is `model_fn` itself.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`, or, where no method looks inside
        it, any TFF model.
      regularizers: The methods.

    Returns:
      A function without arguments that makes the model.
    """
    changing = [
        r
        for r in regularizers
        if type(r).adapt_network is not regularizer_lib.Regularizer.adapt_network
    ]
    if not changing:
        return model_fn

    def adapted_model_fn():
        model = model_fn()
        for regularizer in changing:
            regularizer_lib.check_has_network(regularizer, model)
            regularizer.adapt_network(model.network)
        return model

    return adapted_model_fn
