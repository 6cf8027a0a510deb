"""Puts a method's parts together into a `tff.learning.templates.LearningProcess`."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_reg.client import client_work as client_work_lib
from tff_reg.client import data_forms
from tff_reg.client import optimizers
from tff_reg.client import schedules
from tff_reg.corrections import correction as correction_lib
from tff_reg.processes import catalog
from tff_reg.processes import stateful
from tff_reg.processes.process_settings import ProcessSettings
from tff_reg.regularizers import adaptation
from tff_reg.server import aggregators
from tff_reg.server import averaging
from tff_reg.server import finalizer as finalizer_lib
from tff_reg.server import memory as memory_lib
from tff_reg.settings import settings_of

Process = Union[
    tff.learning.templates.LearningProcess, stateful.StatefulLearningProcess
]


def build_process(
    model_fn: Callable[[], tff.learning.models.VariableModel],
    training: client_work_lib.LocalTraining,
    server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    model_distributor: Optional[tff.learning.templates.DistributionProcess] = None,
    model_aggregator: Optional[tff.aggregators.WeightedAggregationFactory] = None,
    metrics_aggregator: Optional[Callable] = None,
    loop_implementation: tff.learning.LoopImplementation = (
        tff.learning.LoopImplementation.DATASET_ITERATOR
    ),
) -> Process:
    """Builds a learning process from what its clients do.

    All builders of this package end here, and take these arguments in this order.

    Args:
      model_fn: A function without arguments that makes the model: a
        `tff_reg.models.LearningModel`, or, for methods that do not look inside it,
        any `tff.learning.models.VariableModel`.
      training: The client's half: regularisers, optimiser, form of the data.
      server_optimizer_fn: Any TFF optimiser; by default SGD with learning rate 1,
        which makes the new model the average of the clients' models.
      client_weighting: How clients weigh in that average.
      model_distributor: How the model reaches the clients; by default a broadcast.
      model_aggregator: Any weighted TFF aggregator (robust, compressing, private,
        secure); by default the weighted mean. An unweighted one is taken as such.
        What a correction's clients upload besides goes through it, too.
      metrics_aggregator: As in TFF's builders; by default sums and finalises.
      loop_implementation: How clients go through their data.

    Returns:
      A `tff.learning.templates.LearningProcess`; a `stateful.StatefulLearningProcess`
      if clients remember something (MOON, corrections). Clients' statistics that are
      not trained (BatchNorm's) are averaged with the weights. The weights are those of
      the models of `regularizers.adapt_model_fn(model_fn, training.regularizers)`.

    Raises:
      TypeError: If `model_fn` does not fit a regulariser, or the aggregator changes
        the type of the update.
      ValueError: If the model's layers cannot do what a regulariser asks, or a
        correction's server does not go with the server optimiser or the weighting.
    """
    model_fn = adaptation.adapt_model_fn(model_fn, training.regularizers)
    if server_optimizer_fn is None:
        server_optimizer_fn = tff.learning.optimizers.build_sgdm(1.0)
    _check_server(training.correction, server_optimizer_fn, client_weighting)

    @tff.tensorflow.computation
    def initial_weights():
        return tff.learning.models.ModelWeights.from_model(model_fn())

    weights_type = initial_weights.type_signature.result
    if model_distributor is None:
        model_distributor = tff.learning.templates.build_broadcast_process(weights_type)
    if training.averaged_rounds:
        model_distributor = averaging.build_averaging_distributor(
            model_distributor,
            client_work_lib.received_type(weights_type, training),
            training.averaged_rounds,
        )
    update_type = client_work_lib.update_type(weights_type)
    aggregator = aggregators.create(model_aggregator, update_type)
    client_work = client_work_lib.build_client_work(
        model_fn,
        training=training,
        client_weighting=client_weighting,
        metrics_aggregator=metrics_aggregator,
        loop_implementation=loop_implementation,
    )
    parts = (
        initial_weights,
        model_distributor,
        client_work,
        aggregator,
        finalizer_lib.build_finalizer(server_optimizer_fn, weights_type),
    )
    if not training.is_stateful:
        return tff.learning.templates.compose_learning_process(*parts)
    uploads_type = client_work.next.type_signature.result.uploads.member
    return stateful.compose_stateful_learning_process(
        *parts,
        aggregators.build_upload_aggregator(model_aggregator, uploads_type),
        memory_lib.build_memory_update(training, client_work, weights_type, update_type),
    )


def _check_server(correction, server_optimizer, client_weighting) -> None:
    """Checks that a correction's server half has the mean that it needs."""
    if correction is None:
        return
    is_uniform = client_weighting == tff.learning.ClientWeighting.UNIFORM
    if correction.from_update and not is_uniform:
        raise ValueError(
            f"{correction.name} takes the plain mean of the clients' models: give "
            "client_weighting UNIFORM ('uniform')."
        )
    spec = tf.TensorSpec([], tf.float32)
    hparams = server_optimizer.get_hparams(server_optimizer.initialize(spec))
    if correction.added_to_model and dict(hparams) != {"learning_rate": 1.0}:
        raise ValueError(
            f"{correction.name} sets the model to the mean of the clients' models plus "
            "what the server remembers, so a server optimiser has no place: leave it "
            "SGD with learning rate 1."
        )


def build(name: str, model_fn: Callable, **overrides: Any) -> Process:
    """Builds a process by its name, with its paper's settings.

    Example:

        build("fedalign", model_fn, fedalign_strength=0.3, client_learning_rate=0.05)

    Args:
      name: A method's name or a sum of them, see `catalog.names`.
      model_fn: Makes the `tff_reg.models.LearningModel`.
      **overrides: Those of `ProcessSettings`, strengths as `<method>_<field>`, and
        keyword arguments of `build_process` (`client_data`, `server_optimizer_fn`,
        `client_weighting`, `model_aggregator`, ...). `client_optimizer_fn` stands
        in place of the client's learning rate, momentum, Nesterov and weight decay. A
        drift correction needs `num_clients`, or a `tff_reg.corrections.Population` as
        `population`, which says more.

    Returns:
      The process. Its client data are ordinary batches unless `client_data` is a
      `tff_reg.client.WholeClientData`.

    Raises:
      catalog.UnknownProcessError: If the name is not one.
      TypeError: If an override is unknown or contradicts another.
      ValueError: If a value is out of range.
    """
    setting_names = {each.name for each in settings_of(ProcessSettings)}
    strength_names = {field.flag for field in catalog.strength_fields()}
    arguments = {
        "client_data",
        "client_optimizer_fn",
        "population",
        "server_optimizer_fn",
        "model_distributor",
        "model_aggregator",
        "metrics_aggregator",
        "loop_implementation",
    }
    chosen, strengths, rest = {}, {}, {}
    for key, value in overrides.items():
        is_tffs = isinstance(value, tff.learning.ClientWeighting)
        if key in arguments or (key == "client_weighting" and is_tffs):
            rest[key] = value
        elif key in setting_names:
            chosen[key] = value
        elif key in strength_names:
            strengths[key] = value
        else:
            raise TypeError(
                f"build got an unknown setting {key!r}: it is neither a field of "
                "ProcessSettings, nor a strength of a method "
                f"({', '.join(sorted(strength_names))}), nor one of "
                f"{', '.join(sorted(arguments))}."
            )
    if catalog.build_parts(name, strengths).correction and not (
        "num_clients" in chosen or "population" in rest
    ):
        raise TypeError(
            f"{name} has to know how many clients there are in all, in a round or not: "
            "give num_clients, or a population."
        )
    settings = ProcessSettings.of(name, **chosen)
    return _build(name, model_fn, settings, strengths, rest)


def build_from_settings(
    name: str,
    model_fn: Callable,
    settings: ProcessSettings,
    strengths: Mapping[str, Any],
    *,
    mean_examples: Optional[float] = None,
    client_preprocess_fn: Optional[Callable] = None,
    example_dtype: Optional[str] = None,
    **arguments: Any,
) -> Process:
    """Builds a process over whole-client data from all settings of a run.

    Args:
      name: A process name.
      model_fn: Makes the `tff_reg.models.LearningModel`.
      settings: The run's settings.
      strengths: Strengths by flag name.
      mean_examples: Mean number of examples of all clients, which corrections and
        `same_local_steps` use; without it they take clients as equally large.
      client_preprocess_fn: Function of (examples, key) giving the model's input.
      example_dtype: Data type of the clients' examples, if not the model's.
      **arguments: Further keyword arguments of `build_process`.

    Returns:
      The process.

    Raises:
      ValueError: If a value is out of range.
    """
    local_steps = None
    if mean_examples is not None:
        steps_per_epoch = math.ceil(mean_examples / settings.batch_size)
        local_steps = settings.local_epochs * steps_per_epoch
    client_data = data_forms.WholeClientData(
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        local_steps=local_steps if settings.same_local_steps else None,
        preprocess_fn=client_preprocess_fn,
        example_dtype=example_dtype,
    )
    population = correction_lib.Population(
        settings.num_clients, mean_examples, local_steps
    )
    arguments = dict(arguments, client_data=client_data, population=population)
    return _build(name, model_fn, settings, strengths, arguments)


def _build(name, model_fn, settings, strengths, arguments):
    arguments = dict(arguments)
    client_optimizer = arguments.pop("client_optimizer_fn", None)
    if client_optimizer is None:
        client_optimizer = optimizers.build_sgd(
            settings.client_learning_rate,
            settings.client_momentum,
            nesterov=settings.client_nesterov,
            weight_decay=settings.client_weight_decay,
        )
    parts = catalog.build_parts(name, strengths)
    training = client_work_lib.LocalTraining(
        optimizer=client_optimizer,
        regularizers=parts.regularizers,
        gradient_rule=parts.gradient_rule,
        correction=parts.correction,
        population=arguments.pop("population", None)
        or correction_lib.Population(settings.num_clients),
        averages_all_clients=settings.averages_all_clients,
        max_gradient_norm=settings.max_gradient_norm or None,
        learning_rate_schedule=_schedule(settings),
        data_form=arguments.pop("client_data", data_forms.BatchedData()),
    )
    arguments.setdefault("server_optimizer_fn", _server_optimizer(settings))
    arguments.setdefault("client_weighting", _client_weighting(settings))
    return build_process(model_fn, training, **arguments)


def _schedule(settings: ProcessSettings) -> schedules.Schedule:
    builders = {
        "constant": schedules.constant,
        "exponential": lambda: schedules.exponential(settings.learning_rate_decay),
        "cosine": lambda: schedules.cosine(settings.total_rounds),
    }
    return builders[settings.learning_rate_schedule]()


def _server_optimizer(settings: ProcessSettings) -> tff.learning.optimizers.Optimizer:
    rate, epsilon = settings.server_learning_rate, settings.server_epsilon
    library = tff.learning.optimizers
    builders = {
        "sgd": lambda: library.build_sgdm(rate, settings.server_momentum or None),
        "adam": lambda: library.build_adam(rate, epsilon=epsilon),
        "yogi": lambda: library.build_yogi(rate, epsilon=epsilon),
        "adagrad": lambda: library.build_adagrad(rate, epsilon=epsilon),
    }
    return builders[settings.server_optimizer]()


def _client_weighting(settings: ProcessSettings) -> tff.learning.ClientWeighting:
    return {
        "num_examples": tff.learning.ClientWeighting.NUM_EXAMPLES,
        "uniform": tff.learning.ClientWeighting.UNIFORM,
    }[settings.client_weighting]
