"""Data of simulated clients: partitions, client data, sampling, augmentation.

Importing this package loads neither TensorFlow nor NumPy; its names do when first used.
"""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "augmentation": [],
        "client_data": ["ArrayClientData"],
        "keys": ["client_key"],
        "partition_report": [],
        "partitions": [],
        "program_source": ["SeededDataSource"],
        "sampling": ["sample_clients", "sample_clients_bernoulli"],
    },
)
