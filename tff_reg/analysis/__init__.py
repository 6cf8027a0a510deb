"""Analysis of trained models: curvature, differences between clients, cost.

Importing this package does not import TensorFlow; the first use of a name does.
"""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.analysis.public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.package(__name__)
