"""Data of simulated clients: partitions, client data, sampling, augmentation.

Importing this package loads neither TensorFlow nor NumPy; its names do when first used.
"""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.data import (
        augmentation as augmentation,
        client_data as client_data,
        keys as keys,
        partition_report as partition_report,
        partitions as partitions,
        program_source as program_source,
        sampling as sampling,
    )
    from tff_reg.data.client_data import ArrayClientData as ArrayClientData
    from tff_reg.data.keys import client_key as client_key
    from tff_reg.data.program_source import SeededDataSource as SeededDataSource
    from tff_reg.data.sampling import (
        sample_clients as sample_clients,
        sample_clients_bernoulli as sample_clients_bernoulli,
    )

else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__, __file__)
