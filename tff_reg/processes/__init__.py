"""Federated learning processes: every method by its name, and by its builder."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "builders": [
            "build_fed_align",
            "build_fed_avg",
            "build_fed_gkd",
            "build_fed_mlb",
            "build_fed_ntd",
            "build_fed_prox",
            "build_fit_net",
            "build_freeze",
            "build_grad_aug",
            "build_kd",
            "build_man",
            "build_mixup",
            "build_moon",
            "build_regularized",
            "build_stochastic_depth",
            "build_uni_var_fl",
        ],
        "catalog": ["names", "parse", "settings", "strength_fields"],
        "composition": ["build", "build_from_settings", "build_process"],
        "process_settings": ["ProcessSettings"],
        "stateful": ["StatefulLearningProcess", "StatefulLearningProcessOutput"],
    },
)
