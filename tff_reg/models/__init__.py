"""Models as lists of named blocks, and the networks that come with the package.

Importing this package does not import TensorFlow; its names do when first used.
"""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.models import (
        keras_calls as keras_calls,
        keras_losses as keras_losses,
        keras_nets as keras_nets,
        layers as layers,
        learning_model as learning_model,
        names as names,
        roles as roles,
    )
    from tff_reg.models.public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazy.package(__name__)
