"""The computation that a client runs: its round over its data set.

The metrics of a round are the model's own; for each term `<method>/term` (without its
hyperparameter) and `<method>/share` (of the whole loss); the methods' other
measurements; and `rejected_clients`, the number of clients with a non-finite update,
memory, upload or term. Rejected clients have weight 0; only `<method>/not_finite`
counts them as well.
"""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_reg.lazy import tff
from tff_reg.methods import contract
from tff_reg.seam import tensorflow_internals
from tff_reg.training import (
    data_forms,
    debugging,
    description as description_lib,
    finishing,
    local_round as local_round_lib,
    local_training,
    optimizers,
    schedules,
)

_NOT_COMPILED = (
    "The model has dropout or noise, or shows no layers, and would draw other numbers"
    " if XLA compiled the clients' steps: they are not compiled."
)


def first_state(
    description: description_lib.Description,
) -> collections.OrderedDict[str, Any]:
    """Returns the client optimiser's hyperparameters and the number of rounds done."""
    training, dtype = description.training, description.hparams_dtype
    optimizer = training.optimizer
    hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], dtype)))
    _check_optimizer(training, hparams)
    return collections.OrderedDict(
        hparams=collections.OrderedDict(
            (k, tf.constant(v, dtype)) for k, v in hparams.items()
        ),
        round_num=tf.constant(0),
    )


def _check_optimizer(training: local_training.LocalTraining, hparams: Any) -> None:
    optimizers.check(hparams)
    for method in training.methods:
        if method.if_adaptive and "epsilon" in hparams:
            said = f"{method.name} {method.if_adaptive}."
            warnings.warn(f"With an adaptive client optimiser {said}", stacklevel=2)
    if "learning_rate" in hparams:
        return
    if training.learning_rate_schedule != schedules.constant():
        raise ValueError(
            "A learning-rate schedule needs a client optimiser with a learning_rate"
            f" among its hparams, but it has only {list(hparams)}."
        )


def build_client_work(
    description: description_lib.Description,
    weighting: tff.learning.ClientWeighting,
    state_type: tff.types.Type,
    client_type: tff.types.Type,
    sent_type: tff.types.Type,
) -> tff.Computation:
    """Builds (state, `ModelWeights`, data, own and sent memories) -> `ClientOutput`.

    Args:
      description: The model and the clients' half of the process.
      weighting: The clients' weights in the average of their updates.
      state_type: The type of `first_state`.
      client_type: The type of a client's memories, by key.
      sent_type: The type of the memories that the server sends, by key.
    """
    training = description.training
    element_spec = training.data_form.element_spec(description.input_spec)
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(element_spec))

    def make_round() -> local_round_lib.LocalRound:
        return local_round_lib.LocalRound(
            description.model_fn, training, weighting, description.needs
        )

    @tff.tensorflow.computation(
        state_type, description.weights_type, data_type, client_type, sent_type
    )
    def client_work(state: Any, received: Any, data: Any, client: Any, server: Any):
        if training.debug_eager:

            def eager(*arguments: Any) -> finishing.ClientOutput:
                return finishing.as_tensors(_round(make_round(), *arguments))

            run = debugging.eagerly(eager, description.output_spec, description.eager)
        else:
            local_round = make_round()
            if training.compile_steps and not local_round.compiles:
                warnings.warn(_NOT_COMPILED, stacklevel=2)
            is_whole = isinstance(training.data_form, data_forms.WholeClientData)
            run = tf.function(
                functools.partial(_round, local_round),
                autograph=not (is_whole and local_round.has_network),
            )
        with tensorflow_internals.elementwise_equality(also_in_plain_graphs=True):
            schedule = training.learning_rate_schedule
            hparams: dict[str, Any] = state["hparams"]
            rate_factor = schedule(state["round_num"])
            highest = schedule.highest(state["round_num"])
            if highest is not None:
                rate_factor, rate = rate_factor / highest, hparams["learning_rate"]
                rate *= tf.cast(highest, rate.dtype)
                hparams = collections.OrderedDict(hparams, learning_rate=rate)
        round_num = state["round_num"] + 1
        try:
            return run(hparams, round_num, rate_factor, received, data, client, server)
        except Exception as error:
            raise _plain(error) from error

    return client_work


def _round(
    local_round: local_round_lib.LocalRound,
    hparams: Any,
    round_num: Any,
    rate_factor: Any,
    received: Any,
    data: Any,
    client: Any,
    server: Any,
) -> finishing.ClientOutput:
    """Runs a client's round, traced or eagerly."""
    form = local_round.data_form
    # Only models other than `LearningModel`s need AutoGraph; its search for code to
    # convert takes a quarter of the tracing time.
    as_written = tf.autograph.experimental.do_not_convert
    run, step = form.run, local_round.step
    if local_round.has_network:
        run, step = as_written(run), as_written(step)
    counts = None
    if local_round.counts_classes:
        # A data set may give different examples in every pass, but training has to
        # use the examples that were counted.
        data = data.cache()
        counts = as_written(local_round.class_counts)(data)
    visit, progress = as_written(local_round.begin)(
        hparams, round_num, rate_factor, received, counts, client, server
    )

    def train_on_element(state: Any, element: Any):
        state = as_written(local_round.enter)(state, element)
        take = functools.partial(step, visit)
        if local_round.compiles and isinstance(form, data_forms.WholeClientData):
            take = _compiled(take, form)
        return run(take, state, element, round_num)

    if isinstance(form, data_forms.WholeClientData):
        progress = train_on_element(progress, as_written(form.element)(data))
    else:
        batches = data.filter(as_written(_has_examples))
        for batch in iter(batches):
            progress = train_on_element(progress, batch)
    return as_written(local_round.finish)(visit, progress)


def _compiled(
    step: Callable[..., Any], form: data_forms.WholeClientData
) -> Callable[..., Any]:
    """Returns the step with full batches compiled by XLA.

    XLA would compile anew for each size of a smaller last batch.
    """

    def client_step(state: Any, batch: Any, key: tf.Tensor) -> Any:
        return step(state, batch, lambda: key)

    compiled = tf.function(client_step, jit_compile=True, autograph=False)

    def take(state: Any, batch: Any, compute_key: Callable[[], tf.Tensor]) -> Any:
        arguments = state, batch, compute_key()
        if form.drop_remainder:
            return compiled(*arguments)
        return tf.cond(
            tf.equal(form.num_examples(batch), form.batch_size),
            lambda: compiled(*arguments),
            lambda: client_step(*arguments),
        )

    return take


def _has_examples(*batch: Any) -> tf.Tensor:
    """Whether a batch is not empty; oneDNN's convolutions crash on empty ones."""
    parts = [part for part in tf.nest.flatten(batch) if part.shape.rank != 0]
    return tf.reduce_all([tf.shape(part)[0] > 0 for part in parts])


def _plain(error: Exception) -> Exception:
    """Returns the error without the text that AutoGraph adds."""
    cause: Any = error
    while cause is not None:
        if isinstance(cause, contract.HookError):
            return cause
        cause = cause.__cause__ or cause.__context__
    # The last paragraph of AutoGraph's text is the original error.
    *before, last = str(error).split("\n\n")
    if not before or not before[0].startswith("in user code:"):
        return error
    kind = type(error) if isinstance(error, (TypeError, ValueError)) else ValueError
    return kind(last.strip().partition(": ")[2])
