"""One builder a method, with TFF's argument order.

After the method's own strength every builder takes `client_optimizer_fn` (a
`tff.learning.optimizers.Optimizer`; `tff_reg.client.build_sgd` is the papers') and
then the arguments of `composition.build_process`, where they are described, in that
order; and, by keyword only:

* the other strengths of the method, the fields of its dataclass in
  `tff_reg.regularizers`, with their defaults;
* `client_data`: the form of the client data, `tff_reg.client.BatchedData()` (the
  default) or a `tff_reg.client.WholeClientData`;
* `max_gradient_norm`: global-norm clipping of the gradient, `None` for none;
* `learning_rate_schedule`: a `tff_reg.client.schedules.Schedule` over rounds.

All return what `composition.build_process` returns, a
`tff.learning.templates.LearningProcess` except for `build_moon`, and raise what it
raises and a ValueError for strengths out of range.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Sequence

import tensorflow_federated as tff

from tff_reg import regularizers as regularizers_lib
from tff_reg.client import client_work
from tff_reg.client import data_forms
from tff_reg.client import schedules
from tff_reg.corrections import correction as correction_lib
from tff_reg.gradient_rules import gradient_rule as gradient_rule_lib
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
    gradient_rule: gradient_rule_lib.GradientRule = gradient_rule_lib.GradientRule(),
    correction: Optional[correction_lib.Correction] = None,
    population: Optional[correction_lib.Population] = None,
    averages_all_clients: bool = False,
    **kwargs: Any,
) -> composition.Process:
    """Builds federated averaging with any sum of parts.

    Args:
      model_fn: Makes the model.
      regularizers: The terms added to the task loss; none is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: As in `composition.build_process`, from `server_optimizer_fn` on.
      client_data: The form of the client data.
      max_gradient_norm: Global-norm clipping; None for none.
      learning_rate_schedule: The client learning rate's factor by round.
      gradient_rule: How clients take gradients, from `tff_reg.gradient_rules`.
      correction: A drift correction from `tff_reg.corrections`, or None.
      population: What it knows of all clients.
      averages_all_clients: Whether the mean of all clients' last models is kept.
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
        gradient_rule=gradient_rule,
        correction=correction,
        population=population,
        averages_all_clients=averages_all_clients,
    )
    return composition.build_process(model_fn, training, *args, **kwargs)


def build_fed_avg(model_fn, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg (McMahan et al., AISTATS 2017): averaging, nothing added.

    Args and result: see the module's docstring.
    """
    return build_regularized(model_fn, (), client_optimizer_fn, *args, **kwargs)


def _build(method, model_fn, strength, client_optimizer_fn, args, kwargs):
    """Builds one method; its fields are taken out of the keyword arguments."""
    own = [f.name for f in dataclasses.fields(method) if f.name in kwargs]
    fields = dict(strength, **{name: kwargs.pop(name) for name in own})
    return build_regularized(
        model_fn, [method(**fields)], client_optimizer_fn, *args, **kwargs
    )


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
    strength = dict(strength=proximal_strength)
    method = regularizers_lib.FedProx
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_fed_align(
    model_fn,
    alignment_strength,
    client_optimizer_fn,
    *args,
    max_gradient_norm: Optional[float] = 10.0,
    **kwargs,
):
    """Builds FedAlign (Mendieta et al., CVPR 2022); see `regularizers.FedAlign`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel` whose layers can run at a
        fraction of their width.
      alignment_strength: mu of Eq. 5; 0.0 is FedAvg with clipped gradients.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      max_gradient_norm: Global-norm clipping; 10 in the authors' code.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=alignment_strength)
    kwargs["max_gradient_norm"] = max_gradient_norm
    method = regularizers_lib.FedAlign
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_moon(model_fn, contrastive_strength, client_optimizer_fn, *args, **kwargs):
    """Builds MOON (Li et al., CVPR 2021); see `regularizers.MOON`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`, in the paper with a projector.
      contrastive_strength: mu of Eq. 4; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process, a `stateful.StatefulLearningProcess`.
    """
    strength = dict(strength=contrastive_strength)
    method = regularizers_lib.MOON
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_mixup(model_fn, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with Mixup (Zhang et al., ICLR 2018); see `regularizers.Mixup`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    method = regularizers_lib.Mixup
    return _build(method, model_fn, {}, client_optimizer_fn, args, kwargs)


def build_stochastic_depth(model_fn, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with stochastic depth (Huang et al., ECCV 2016).

    See `regularizers.StochDepth`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel` with residual branches.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    method = regularizers_lib.StochDepth
    return _build(method, model_fn, {}, client_optimizer_fn, args, kwargs)


def build_grad_aug(
    model_fn, augmentation_strength, client_optimizer_fn, *args, **kwargs
):
    """Builds GradAug (Yang et al., NeurIPS 2020); see `regularizers.GradAug`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel` whose layers can run at a
        fraction of their width.
      augmentation_strength: mu of Eq. 2; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=augmentation_strength)
    method = regularizers_lib.GradAug
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_man(model_fn, activation_strength, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with MAN (Yashwanth et al., WACV 2024); see `regularizers.MAN`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      activation_strength: zeta of Eq. 15; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=activation_strength)
    method = regularizers_lib.MAN
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_fed_mlb(model_fn, branch_strength, client_optimizer_fn, *args, **kwargs):
    """Builds FedMLB (Kim et al., ICML 2022); see `regularizers.FedMLB`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      branch_strength: Factor of both losses of the paths, 1 in the paper; 0.0 is
        FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=branch_strength)
    method = regularizers_lib.FedMLB
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_kd(model_fn, distillation_strength, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with KD (Hinton et al., 2015); see `regularizers.KD`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      distillation_strength: Factor of the divergence; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=distillation_strength)
    method = regularizers_lib.KD
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_fit_net(model_fn, hint_strength, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with FitNet (Romero et al., ICLR 2015); see `regularizers.FitNet`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      hint_strength: Factor of the squared difference; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=hint_strength)
    method = regularizers_lib.FitNet
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_fed_ntd(
    model_fn, distillation_strength, client_optimizer_fn, *args, **kwargs
):
    """Builds FedNTD (Lee et al., NeurIPS 2022); see `regularizers.FedNTD`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      distillation_strength: beta; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=distillation_strength)
    method = regularizers_lib.FedNTD
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_fed_gkd(
    model_fn, distillation_strength, client_optimizer_fn, *args, **kwargs
):
    """Builds FedGKD (Yao et al., 2021); see `regularizers.FedGKD`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      distillation_strength: gamma; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=distillation_strength)
    method = regularizers_lib.FedGKD
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_uni_var_fl(
    model_fn, regularization_strength, client_optimizer_fn, *args, **kwargs
):
    """Builds UniVarFL (Gupta et al.); see `regularizers.UniVarFL`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      regularization_strength: Factor of both losses, 1 in the paper; 0.0 is FedAvg.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    strength = dict(strength=regularization_strength)
    method = regularizers_lib.UniVarFL
    return _build(method, model_fn, strength, client_optimizer_fn, args, kwargs)


def build_freeze(model_fn, client_optimizer_fn, *args, **kwargs):
    """Builds FedAvg with a frozen classifier; see `regularizers.Freeze`.

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`.
      client_optimizer_fn: The client optimiser.
      *args: See the module's docstring.
      **kwargs: See the module's docstring.

    Returns:
      The process.
    """
    method = regularizers_lib.Freeze
    return _build(method, model_fn, {}, client_optimizer_fn, args, kwargs)
