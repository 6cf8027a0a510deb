"""One builder a method, with TFF's argument order.

After the method's own strengths every builder takes `client_optimizer_fn` (a
`tff.learning.optimizers.Optimizer`; `tff_reg.client.build_sgd` is the papers') and
then the arguments of `composition.build_process`, where they are described, in that
order; and, by keyword only:

* `client_data`: the form of the client data, `tff_reg.client.BatchedData()` (the
  default) or a `tff_reg.client.WholeClientData`;
* `max_gradient_norm`: global-norm clipping of the gradient, `None` for none;
* `learning_rate_schedule`: a `tff_reg.client.schedules.Schedule` over rounds.

All return a `tff.learning.templates.LearningProcess`, and raise what
`composition.build_process` raises and a ValueError for strengths out of range.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import tensorflow_federated as tff

from tff_reg import regularizers as regularizers_lib
from tff_reg.client import client_work
from tff_reg.client import data_forms
from tff_reg.client import schedules
from tff_reg.processes import composition
from tff_reg.regularizers import regularizer as regularizer_lib


def build_regularized(
    model_fn: Callable,
    regularizers: Sequence[regularizer_lib.Regularizer],
    client_optimizer_fn: tff.learning.optimizers.Optimizer,
    *args: Any,
    client_data=data_forms.BatchedData(),
    max_gradient_norm: Optional[float] = None,
    learning_rate_schedule: schedules.Schedule = schedules.constant(),
    **kwargs: Any,
) -> tff.learning.templates.LearningProcess:
    """Builds federated averaging with any sum of regularisers.

    Args:
      model_fn: Makes the model.
      regularizers: The terms added to the task loss; none is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: As in `composition.build_process`, from `server_optimizer_fn` on.
      client_data: The form of the client data.
      max_gradient_norm: Global-norm clipping; None for none.
      learning_rate_schedule: The client learning rate's factor by round.
      **kwargs: As in `composition.build_process`.

    Returns:
      The process.
    """
    training = client_work.LocalTraining(
        optimizer=client_optimizer_fn,
        regularizers=tuple(regularizers),
        max_gradient_norm=max_gradient_norm,
        learning_rate_schedule=learning_rate_schedule,
        data_form=client_data,
    )
    return composition.build_process(model_fn, training, *args, **kwargs)


def build_fed_avg(model_fn, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg (McMahan et al., AISTATS 2017): averaging, nothing added.

    Args and result: see the module's docstring.
    """
    return build_regularized(model_fn, (), client_optimizer_fn, *args, **kwargs)


def build_fed_prox(model_fn, proximal_strength, client_optimizer_fn, *args, **kwargs):
    """Builds FedProx (Li et al., MLSys 2020).

    Args:
      model_fn: Makes the model.
      proximal_strength: mu of Eq. 2; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    terms = [regularizers_lib.FedProx(strength=proximal_strength)]
    return build_regularized(model_fn, terms, client_optimizer_fn, *args, **kwargs)


def build_fed_align(
    model_fn,
    alignment_strength,
    client_optimizer_fn,
    *args,
    width: float = 0.25,
    lipschitz_scaling: str = "relative",
    stop_gradients: bool = True,
    power_iterations: int = 10,
    max_gradient_norm: Optional[float] = 10.0,
    **kwargs,
):
    """Builds FedAlign (Mendieta et al., CVPR 2022).

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel` whose layers can run at a
        fraction of their width.
      alignment_strength: mu of Eq. 5; 0.0 is FedAvg with clipped gradients.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      width: omega_S, the sub-block's fraction of the channels.
      lipschitz_scaling: 'relative' (the authors' code) or 'absolute' (Eq. 5).
      stop_gradients: Whether only the sub-block learns from the term.
      power_iterations: Steps of the power iteration for the spectral norms.
      max_gradient_norm: Global-norm clipping; 10 in the authors' code.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    terms = [
        regularizers_lib.FedAlign(
            strength=alignment_strength,
            width=width,
            lipschitz_scaling=lipschitz_scaling,
            stop_gradients=stop_gradients,
            power_iterations=power_iterations,
        )
    ]
    return build_regularized(
        model_fn,
        terms,
        client_optimizer_fn,
        *args,
        max_gradient_norm=max_gradient_norm,
        **kwargs,
    )


def build_man(
    model_fn,
    activation_strength,
    client_optimizer_fn,
    *args,
    scaling: str = "code",
    **kwargs,
):
    """Builds FedAvg with MAN (Yashwanth et al., WACV 2024).

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      activation_strength: zeta of Eq. 15; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      scaling: 'code' (zeta / 2, as published) or 'paper' (zeta, Eq. 15).
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    terms = [regularizers_lib.MAN(strength=activation_strength, scaling=scaling)]
    return build_regularized(model_fn, terms, client_optimizer_fn, *args, **kwargs)
