"""Loss terms that keep local training close to what the federation needs.

One file a method. See `regularizer.Regularizer` for the contract.
"""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "adaptation": ["adapt_model_fn"],
        "fedalign": ["FedAlign"],
        "fedgkd": ["FedGKD"],
        "fedmlb": ["FedMLB"],
        "fedntd": ["FedNTD"],
        "fedprox": ["FedProx"],
        "fitnet": ["FitNet"],
        "freeze": ["Freeze"],
        "gradaug": ["GradAug"],
        "kd": ["KD"],
        "man": ["MAN"],
        "mixup": ["Mixup"],
        "moon": ["MOON"],
        "univarfl": ["UniVarFL"],
        "stochdepth": ["StochDepth"],
        "regularizer": ["IncompatibleMethodsError", "Regularizer", "Step", "Term"],
    },
)
