"""Data of simulated clients: partitions, client data, sampling, augmentation.

Importing this package loads neither TensorFlow nor NumPy; `ArrayClientData` and
`SeededDataSource` load TFF when they are first used.
"""

from tff_reg import lazy
from tff_reg.data import augmentation, keys, partition_report, partitions, sampling
from tff_reg.data.keys import client_key
from tff_reg.data.sampling import sample_clients, sample_clients_bernoulli

__getattr__, _, _LAZY_NAMES = lazy.exports(
    __name__,
    {"client_data": ["ArrayClientData"], "program_source": ["SeededDataSource"]},
)

__all__ = _LAZY_NAMES + [
    "augmentation",
    "client_key",
    "keys",
    "partition_report",
    "partitions",
    "sample_clients",
    "sample_clients_bernoulli",
    "sampling",
]


def __dir__() -> list:
    return sorted(__all__)
