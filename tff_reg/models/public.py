"""The names that `tff_reg.models` offers."""

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
from tff_reg.models.torch_states import (
    load_torch_state as load_torch_state,
    torch_state as torch_state,
)
from tff_reg.models.weight_files import Fit as Fit
