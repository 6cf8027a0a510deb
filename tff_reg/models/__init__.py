"""Models as lists of named blocks, and the networks that come with the package.

Importing this package does not import TensorFlow; its names do when first used.
"""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.models import (
        block_model as block_model,
        forward as forward,
        keras_calls as keras_calls,
        keras_models as keras_models,
        layers as layers,
        learning_model as learning_model,
        names as names,
        norms as norms,
        pooling as pooling,
        resize as resize,
        simplex as simplex,
    )
    from tff_reg.models.block_model import (
        Block as Block,
        BlockModel as BlockModel,
        Classifier as Classifier,
        ImageSizeError as ImageSizeError,
        MissingCapabilityError as MissingCapabilityError,
    )
    from tff_reg.models.forward import ForwardPass as ForwardPass, Outputs as Outputs
    from tff_reg.models.keras_models import (
        KerasModelFn as KerasModelFn,
        from_keras as from_keras,
        from_keras_blocks as from_keras_blocks,
    )
    from tff_reg.models.learning_model import (
        LearningModel as LearningModel,
        build_model_fn as build_model_fn,
        initial_weights as initial_weights,
    )
    from tff_reg.models.names import (
        MODEL_NAMES as MODEL_NAMES,
        NORM_NAMES as NORM_NAMES,
        PROJECTOR_NAMES as PROJECTOR_NAMES,
        norms_of as norms_of,
    )
    from tff_reg.models.resize import resize_bilinear as resize_bilinear

else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__, __file__)
