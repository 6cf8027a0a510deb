"""The names that `tff_reg.training` offers."""

from tff_reg.training.adaptation import (
    adapt_model_fn as adapt_model_fn,
    build_evaluation as build_evaluation,
)
from tff_reg.training.composition import (
    build as build,
    build_from_settings as build_from_settings,
    build_regularized as build_regularized,
)
from tff_reg.training.data_forms import (
    BatchedData as BatchedData,
    WholeClientData as WholeClientData,
)
from tff_reg.training.local_training import (
    LocalTraining as LocalTraining,
    Population as Population,
)
from tff_reg.training.optimizers import build_sgd as build_sgd
from tff_reg.training.process import (
    StatefulLearningProcess as StatefulLearningProcess,
    StatefulLearningProcessOutput as StatefulLearningProcessOutput,
)
from tff_reg.training.process_settings import ProcessSettings as ProcessSettings
from tff_reg.training.schedules import (
    constant as constant,
    cosine as cosine,
    exponential as exponential,
)
