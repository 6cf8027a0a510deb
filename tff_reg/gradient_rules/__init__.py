"""How the gradient of a local step is taken: plainly, or where the loss is higher."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "asam": ["FedASAM"],
        "gradient_rule": ["GradientRule"],
        "sam": ["FedSAM"],
    },
)
