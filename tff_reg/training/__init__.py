"""The training of methods: the local loop, client work, the server, whole processes."""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.training import (
        aggregators as aggregators,
        local_step as local_step,
        trial as trial,
    )
    from tff_reg.training.public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.package(__name__)
