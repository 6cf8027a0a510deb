"""Data of simulated clients: partitions, client data, sampling, augmentation.

Importing this package loads neither TensorFlow nor NumPy; its names do when first used.
"""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.data.public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.package(__name__)
