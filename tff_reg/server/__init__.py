"""What the server does with the aggregated update."""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__, {"finalizer": ["build_finalizer"]}
)
