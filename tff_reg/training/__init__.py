"""How methods train: the local loop, client work, the server, whole processes."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "adaptation": ["adapt_model_fn", "build_evaluation"],
        "aggregation": [],
        "aggregators": [],
        "client_work": ["build_client_work"],
        "composition": ["build", "build_from_settings", "build_regularized"],
        "data_forms": ["BatchedData", "WholeClientData"],
        "finalizer": ["build_finalizer"],
        "local_step": [],
        "local_training": ["LocalTraining", "Population"],
        "optimizers": ["build_sgd"],
        "process_settings": ["ProcessSettings"],
        "stateful": ["StatefulLearningProcess", "StatefulLearningProcessOutput"],
        "schedules": ["constant", "cosine", "exponential"],
        "trial": [],
    },
)
