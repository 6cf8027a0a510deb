"""The training of methods: the local loop, client work, the server, whole processes."""

from typing import TYPE_CHECKING

from tff_reg import lazy

if TYPE_CHECKING:
    from tff_reg.training import (
        adaptation as adaptation,
        aggregation as aggregation,
        aggregators as aggregators,
        composition as composition,
        data_forms as data_forms,
        finalizer as finalizer,
        local_step as local_step,
        local_training as local_training,
        optimizers as optimizers,
        process_settings as process_settings,
        schedules as schedules,
        stateful as stateful,
        trial as trial,
    )
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
    from tff_reg.training.finalizer import build_finalizer as build_finalizer
    from tff_reg.training.local_training import (
        LocalTraining as LocalTraining,
        Population as Population,
    )
    from tff_reg.training.optimizers import build_sgd as build_sgd
    from tff_reg.training.process_settings import ProcessSettings as ProcessSettings
    from tff_reg.training.schedules import (
        constant as constant,
        cosine as cosine,
        exponential as exponential,
    )
    from tff_reg.training.stateful import (
        StatefulLearningProcess as StatefulLearningProcess,
        StatefulLearningProcessOutput as StatefulLearningProcessOutput,
    )

else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__, __file__)
