"""Federated learning processes: every method by its name, and by its builder."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "builders": [
            "build_fed_align",
            "build_fed_avg",
            "build_fed_prox",
            "build_man",
            "build_regularized",
        ],
        "catalog": ["Settings", "names", "parse", "settings", "strength_fields"],
        "composition": ["build", "build_from_settings", "build_process"],
        "stateful": ["StatefulLearningProcess", "StatefulLearningProcessOutput"],
    },
)
