"""Loss terms that keep local training close to what the federation needs.

One file a method. See `regularizer.Regularizer` for the contract.
"""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "fedalign": ["FedAlign"],
        "fedprox": ["FedProx"],
        "man": ["MAN"],
        "regularizer": ["Regularizer", "Step", "Term"],
    },
)
