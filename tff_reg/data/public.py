"""The names that `tff_reg.data` offers."""

from tff_reg.data.client_data import ArrayClientData as ArrayClientData
from tff_reg.data.keys import client_key as client_key
from tff_reg.data.program_source import SeededDataSource as SeededDataSource
from tff_reg.data.sampling import (
    sample_clients as sample_clients,
    sample_clients_bernoulli as sample_clients_bernoulli,
)
