"""Construction of processes from method objects or from a process name."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_reg.data import digests
from tff_reg.lazy import tff
from tff_reg.methods import catalogue, method as method_lib
from tff_reg.models import learning_model
from tff_reg.runtime import devices
from tff_reg.seam import tensorflow_internals
from tff_reg.settings import near_names, settings_of
from tff_reg.training import (
    adaptation,
    aggregation,
    aggregators,
    data_forms,
    description as description_lib,
    local_training,
    optimizers,
    personal as personal_lib,
    process as process_lib,
    process_settings,
    schedules,
    server as server_lib,
)
from tff_reg.training.process_settings import ProcessSettings

Process = Union[
    tff.learning.templates.LearningProcess, process_lib.StatefulLearningProcess
]

# Arguments that `build` passes to `build_regularized`.
_ARGUMENTS = (
    "client_data",
    "client_optimizer_fn",
    "compile_steps",
    "measures_drift",
    "metrics_aggregator",
    "model_aggregator",
    "model_distributor",
    "population",
    "server_optimizer_fn",
)


@contextlib.contextmanager
def _no_garbage_collection() -> Generator[None]:
    """Stops garbage collection: tracing makes millions of objects and keeps them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_garbage_collection()
@tensorflow_internals.elementwise_equality()
def build_regularized(
    model_fn: Callable[[], tff.learning.models.VariableModel],
    methods: Sequence[method_lib.Method],
    client_optimizer_fn: tff.learning.optimizers.Optimizer,
    server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    model_distributor: Optional[tff.learning.templates.DistributionProcess] = None,
    model_aggregator: Optional[tff.aggregators.WeightedAggregationFactory] = None,
    metrics_aggregator: Optional[Callable[..., Any]] = None,
    *,
    client_data: data_forms.DataForm = data_forms.BatchedData(),
    max_gradient_norm: Optional[float] = None,
    learning_rate_schedule: schedules.Schedule = schedules.constant(),
    population: Optional[local_training.Population] = None,
    debug_eager: bool = False,
    compile_steps: Optional[bool] = None,
    measures_drift: bool = False,
) -> Process:
    """Builds federated averaging with any combination of methods.

    Positional arguments are those of `tff.learning.algorithms.build_weighted_fed_avg`,
    with the methods after the model:

        build_regularized(model_fn, [methods.FedProx(0.1)], training.build_sgd(0.01))

    Args:
      model_fn: Makes a `tff_reg.models.LearningModel`, or, for methods that do not look
        inside the network, any `tff.learning.models.VariableModel`.
      methods: The methods; an empty list is FedAvg.
      client_optimizer_fn: A TFF optimiser, such as `tff_reg.training.build_sgd`'s.
      server_optimizer_fn: A TFF optimiser; None averages (SGD, learning rate 1).
      client_weighting: The clients' weights in the average of their updates.
      model_distributor: Sends the model to the clients; None broadcasts it.
      model_aggregator: Any TFF aggregator, also for uploads; None is the weighted mean.
        With an unweighted one `client_weighting` is UNIFORM.
      metrics_aggregator: As in TFF's builders; None sums and finalises.
      client_data: The form of the client data.
      max_gradient_norm: Maximum global norm of a gradient; None disables clipping.
      learning_rate_schedule: Factor on the client learning rate, per round.
      population: Number and sizes of all clients; some methods need them.
      debug_eager: Whether hooks run eagerly (slow; in-process runtime only).
      compile_steps: Whether XLA compiles the clients' steps on full batches; None: if
        the data are in the whole-client form and TensorFlow sees a GPU. What XLA cannot
        compile runs as without it in `tff_reg.runtime`, which says so once.
      measures_drift: Whether the metrics have norms, cosines and divergence of the
        clients' updates, see `aggregation.with_drift`; not with a `model_aggregator`.

    Returns:
      A `StatefulLearningProcess` if clients have memories (MOON, drift corrections),
      else a `tff.learning.templates.LearningProcess`. The attribute `model_fn` of the
      process makes the models that its weights fit; see `adapt_model_fn`. `assumed`
      has the numbers that a run must have, None where any will do.

    Raises:
      TypeError: If `model_fn` does not fit a method, or the aggregator changes types.
      ValueError: If methods conflict with one another, the layers, the weighting, the
        server optimiser or the aggregator.
    """
    given = dict(locals())
    _check_kinds(model_fn, methods, client_optimizer_fn, server_optimizer_fn)
    if not isinstance(client_weighting, tff.learning.ClientWeighting):
        raise TypeError(
            f"client_weighting is {client_weighting!r}; give"
            " tff.learning.ClientWeighting.UNIFORM or NUM_EXAMPLES."
        )
    schedule: Any = learning_rate_schedule
    if not isinstance(schedule, schedules.Schedule):
        raise TypeError(
            f"learning_rate_schedule is {schedule!r}; give a schedule of"
            " tff_reg.training.schedules, such as listed(factors)."
        )
    if compile_steps is None:
        compile_steps = not debug_eager and _is_worth_compiling(client_data)
    training = local_training.LocalTraining(
        client_optimizer_fn,
        tuple(methods),
        max_gradient_norm,
        learning_rate_schedule,
        client_data,
        population,
        debug_eager,
        compile_steps,
    )
    server_optimizer = server_optimizer_fn or tff.learning.optimizers.build_sgdm(1.0)
    if aggregators.takes_alike(model_aggregator):
        client_weighting = tff.learning.ClientWeighting.UNIFORM
    _check_server(training.methods, server_optimizer, client_weighting)
    model_fn = adaptation.adapt_model_fn(model_fn, training.methods)
    if measures_drift and model_aggregator is not None:
        raise ValueError(
            "measures_drift needs the plain mean: leave the model_aggregator out."
        )
    process = _compose(
        description_lib.describe(model_fn, training),
        server_optimizer,
        client_weighting,
        model_distributor,
        model_aggregator,
        metrics_aggregator,
        measures_drift,
    )
    server_schedule = getattr(server_optimizer, "schedule", schedules.constant())
    process.assumed = {
        "num_clients": population and population.num_clients,
        "clients_per_round": getattr(model_aggregator, "clients_per_round", None),
        "total_rounds": learning_rate_schedule.total_rounds
        or server_schedule.total_rounds,
    }
    known = getattr(given["model_fn"], "digests", {})
    left_out = {"debug_eager", "compile_steps", "model_fn" if known else ""}
    process.built_from = known | {
        f"process.{name}": digests.described(value)
        for name, value in given.items()
        if name not in left_out
    }
    return process


def _is_worth_compiling(client_data: data_forms.DataForm) -> bool:
    """Returns whether steps are compiled by default."""
    is_whole = isinstance(client_data, data_forms.WholeClientData)
    return is_whole and devices.are_gpus(None)


def _compose(
    description: description_lib.Description,
    server_optimizer: tff.learning.optimizers.Optimizer,
    client_weighting: tff.learning.ClientWeighting,
    model_distributor: Optional[tff.learning.templates.DistributionProcess],
    model_aggregator: Optional[aggregators.AggregationFactory],
    metrics_aggregator: Optional[Callable[..., Any]],
    measures_drift: bool,
) -> Process:
    """Composes the process of a described model and its methods."""
    training, weights_type = description.training, description.weights_type
    personal = description.personal
    # It refuses what does not fit before the clients' work is traced, for seconds.
    # Other aggregators than the mean take weights in float32 alone.
    weight_dtype = np.float32
    weighs = [m.name for m in training.methods if method_lib.overrides(m, "weigh")]
    if weighs and model_aggregator is None:
        weight_dtype = weights_type.trainable[0].dtype
    aggregator = aggregation.build_update_aggregator(
        model_aggregator,
        description.update_type,
        is_sent=personal and personal.is_sent_up,
        has_statistics=description.has_statistics,
        needing_exact=sorted(description.needs.exact),
        weighing=weighs,
        weight_dtype=weight_dtype,
    )
    if measures_drift:
        groups = aggregation.drift_groups(description.model_fn(), personal)
        aggregator = aggregation.with_drift(aggregator, description.update_type, groups)
    if model_distributor is None:
        is_sent = personal and personal.is_sent_down
        model_distributor = personal_lib.send_part(
            tff.learning.templates.build_broadcast_process(
                personal_lib.sent_type(weights_type, is_sent)
            ),
            weights_type,
            is_sent,
        )
    process = process_lib.compose(
        description,
        server_lib.Server(
            server_optimizer, training, said=description.said, eager=description.eager
        ),
        client_weighting,
        model_distributor,
        aggregator,
        functools.partial(aggregation.build_upload_aggregator, model_aggregator),
        functools.partial(
            aggregation.build_weigh, training.methods, dtype=weight_dtype
        ),
        (metrics_aggregator or tff.learning.metrics.sum_then_finalize)(
            description.metric_finalizers
        ),
    )
    process.model_fn = description.model_fn
    process.description = description
    return process


def _check_kinds(
    model_fn: Any, methods: Any, client_optimizer: Any, server_optimizer: Any
) -> None:
    """Checks the arguments' types; the error messages contain examples."""
    learning_model.check_model_fn(model_fn)
    is_one = isinstance(methods, (str, type, method_lib.Method))
    for method in [methods] if is_one else methods:
        if is_one or not isinstance(method, method_lib.Method):
            raise TypeError(
                f"methods is {methods!r}; give a list of methods, such as"
                " [tff_reg.methods.FedProx(0.1)]. For names use"
                " tff_reg.training.build('fedprox', model_fn)."
            )
    example = {
        "client_optimizer_fn": "tff_reg.training.build_sgd(0.01)",
        "server_optimizer_fn": "tff.learning.optimizers.build_adam(0.01)",
    }
    given = {
        "client_optimizer_fn": client_optimizer,
        "server_optimizer_fn": server_optimizer,
    }
    for name, optimizer in given.items():
        is_default = optimizer is None and name == "server_optimizer_fn"
        is_tffs = isinstance(optimizer, tff.learning.optimizers.Optimizer)
        if not is_default and not is_tffs:
            raise TypeError(
                f"{name} is a {type(optimizer).__name__}; give a TFF optimiser,"
                f" such as {example[name]}."
            )


def _check_server(
    methods: Sequence[method_lib.Method],
    server_optimizer: tff.learning.optimizers.Optimizer,
    client_weighting: tff.learning.ClientWeighting,
) -> None:
    """Checks that the server and the weighting fit the methods."""
    is_uniform = client_weighting == tff.learning.ClientWeighting.UNIFORM
    spec = tf.TensorSpec([], tf.float32)
    hparams = optimizers.check(
        server_optimizer.get_hparams(server_optimizer.initialize(spec))
    )
    for method in methods:
        needs_uniform = method_lib.UNIFORM_WEIGHTING in method.needs
        if needs_uniform and not is_uniform:
            raise ValueError(
                f"{method.name} needs the plain mean of the clients' models: give "
                "client_weighting UNIFORM ('uniform')."
            )
        is_plain = dict(hparams) == {"learning_rate": 1.0}
        is_plain = is_plain and not hasattr(server_optimizer, "schedule")
        if method.server_step and not is_plain:
            raise ValueError(server_lib.NO_OPTIMIZER.format(method.name))


def build(name: str, model_fn: Callable[[], Any], **overrides: Any) -> Process:
    """Builds a process by name, with its paper's settings as defaults.

    Example:
        build("fedalign", model_fn, fedalign_strength=0.3, client_learning_rate=0.05)

    Args:
      name: A method's name or a combination such as 'fedalign+man'.
      model_fn: Makes the `tff_reg.models.LearningModel`.
      **overrides: Fields of `ProcessSettings`, hyperparameters of the methods as
        `<method>_<field>`, and keyword arguments of `build_regularized` (`client_data`,
        `server_optimizer_fn`, `client_weighting`, `model_aggregator`, ...).
        `client_learning_rate` may be a function of the round (1, 2, ...) if
        `total_rounds` is given. `plugin` lists Python files with methods of your own.
        `client_optimizer_fn` replaces the client's learning
        rate, momentum, Nesterov and weight decay. A drift correction needs
        `num_clients`, or a `tff_reg.training.Population` as `population`.

    Returns:
      The process. It takes ordinary batches as client data, unless `client_data` is a
      `tff_reg.training.WholeClientData`.

    Raises:
      UnknownProcessError: If there is no such method or combination.
      TypeError: If an override is unknown.
      SettingError: If a value is out of range or contradicts another.
    """
    of_runs = settings_of(ProcessSettings)
    catalogue.add_files(overrides.pop("plugin", ()), of_runs)
    setting_names = {each.name for each in of_runs}
    hyperparameter_names = catalogue.named(overrides)
    chosen: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in overrides.items():
        is_tffs = isinstance(value, tff.learning.ClientWeighting)
        if key in _ARGUMENTS or (key == "client_weighting" and is_tffs):
            rest[key] = value
        elif key in setting_names:
            chosen[key] = value
        elif key in hyperparameter_names:
            hyperparameters[key] = value
        else:
            raise TypeError(_unknown(name, key, setting_names))
    catalogue.build(name, hyperparameters)
    is_of_round = callable(chosen.get("client_learning_rate"))
    if is_of_round and "total_rounds" not in chosen:
        raise TypeError(
            "client_learning_rate is a function of the round: give total_rounds, for"
            " whose rounds it is called."
        )
    # The paper's number of clients need not be this population's.
    if "num_clients" not in chosen:
        rest.setdefault("population", None)
    beside = {each: rest.get(each) is not None for each in _ARGUMENTS}
    beside |= {"client_data": True, "given": chosen}
    settings = process_settings.of_process(name, chosen, beside)
    process = _build(name, model_fn, settings, hyperparameters, rest)
    if is_of_round:
        process.assumed["total_rounds"] = settings.total_rounds
    return process


def _unknown(name: str, key: str, setting_names: set[str]) -> str:
    own = {each.setting.symbol: each.flag for each in catalogue.hyperparameters(name)}
    choices = [*own.values(), *setting_names, *_ARGUMENTS]
    return (
        f"build got an unknown setting {key!r}"
        f"{near_names(own.get(key, key), choices)}; it takes hyperparameters of its"
        f" methods ({', '.join(own.values()) or 'none'}), fields of ProcessSettings,"
        f" and {', '.join(_ARGUMENTS)}."
    )


def build_from_settings(
    name: str,
    model_fn: Callable[[], Any],
    settings: ProcessSettings,
    hyperparameters: Mapping[str, Any],
    *,
    mean_examples: Optional[float] = None,
    client_preprocess_fn: Optional[Callable[..., Any]] = None,
    example_dtype: Any = None,
    told: tuple[str, ...] = (),
    **arguments: Any,
) -> Process:
    """Builds a process over whole-client data from the settings of a run.

    Args:
      name: A process name.
      model_fn: Makes the `tff_reg.models.LearningModel`.
      settings: The run's settings.
      hyperparameters: Hyperparameters by flag name.
      mean_examples: Mean number of examples per client, for drift corrections and
        `same_local_steps`; None assumes equally large clients.
      client_preprocess_fn: Function of (examples, key) giving the model's input.
      example_dtype: Data type of the clients' examples, if not the model's; of dicts
        or tuples one of each.
      told: As in `WholeClientData`.
      **arguments: Further keyword arguments of `build_regularized`.

    Returns:
      The process.

    Raises:
      ValueError: If a value is out of range.
    """
    steps = settings.steps_of(mean_examples)
    are_alike = settings.same_local_steps or settings.local_steps
    client_data = data_forms.WholeClientData(
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        drop_remainder=settings.drop_remainder,
        local_steps=steps if are_alike else None,
        told=told,
        preprocess_fn=client_preprocess_fn,
        example_dtype=example_dtype,
    )
    population = local_training.Population(
        # Where clients do part of their work, K is each client's own number of steps.
        *(settings.num_clients, mean_examples, None if "work" in told else steps)
    )
    arguments = dict(arguments, client_data=client_data, population=population)
    return _build(name, model_fn, settings, hyperparameters, arguments)


def _build(
    name: str,
    model_fn: Callable[[], Any],
    settings: ProcessSettings,
    hyperparameters: Mapping[str, Any],
    arguments: Mapping[str, Any],
):
    methods = settings.build_methods(name, hyperparameters)
    given: dict[str, Any] = {
        "client_optimizer_fn": optimizers.of_clients(settings),
        "server_optimizer_fn": optimizers.of_server(settings),
        "client_weighting": tff.learning.ClientWeighting[
            settings.client_weighting.upper()
        ],
        "max_gradient_norm": settings.max_gradient_norm or None,
        "learning_rate_schedule": schedules.of(settings),
        "population": local_training.Population(settings.num_clients),
        **arguments,
    }
    process = build_regularized(model_fn, methods, **given)
    if rates := settings.client_learning_rates:  # There may be more, later.
        process.built_from |= {
            "client_learning_rates": rates,
            "process.learning_rate_schedule": "listed",
        }
    return process
