"""Drift corrections: what clients and the server remember to pull clients together."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "correction": ["Correction", "Population"],
        "feddc": ["FedDC"],
        "feddyn": ["FedDyn"],
        "fedspeed": ["FedSpeed"],
        "scaffold": ["Scaffold"],
    },
)
