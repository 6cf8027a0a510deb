"""What a client does in a round: one local training loop for all methods."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "client_work": ["LocalTraining", "StatefulClientWork", "build_client_work"],
        "data_forms": ["BatchedData", "WholeClientData"],
        "optimizers": ["build_sgd"],
        "schedules": ["constant", "cosine", "exponential"],
    },
)
