"""Local steps, one at a time, as a client takes them."""

import dataclasses

import tensorflow as tf

from tff_reg.methods import memories, method as method_lib
from tff_reg.models import roles
from tff_reg.training import local_step, local_training, optimizers, trial


def key():
    """The key of a step."""
    return tf.constant([3, 5], tf.int64)


def gradient(
    model, methods, batch, *, start=(), references=None, compute_key=key, needs=None
):
    """Takes the gradient of one batch, as a client's first step does.

    Args:
      model: The model.
      methods: Those of the combination.
      batch: What the model's `input_spec` says.
      start: The received trainable weights, which the client begins with.
      references: The models that terms read beside the local one, by name.
      compute_key: Gives the step's key.
      needs: What the methods need, if it is known; to find it takes a whole round.

    Returns:
      As `LocalStep.gradient`, the measurements by `<method>/<name>`.
    """
    needs = needs or find_needs(model, methods)
    step = local_step.LocalStep(model, references or {}, methods, needs)
    weights, class_counts = list(model.trainable_variables), None
    if needs.class_counts:
        classes = model.network.num_classes
        class_counts = tf.math.bincount(
            batch["y"], minlength=classes, maxlength=classes
        )
    locals_ = {}
    for each in methods:
        local = method_lib.Local(
            weights=weights,
            start=start,
            global_weights=start,
            memory=first_memory(each, "client_memory", weights),
            server_memory=first_memory(each, "server_memory", weights),
            class_counts=class_counts,
            hparams={"learning_rate": tf.constant(0.1)},
            **roles.facts_of(model.network, weights),
        )
        locals_[each.name] = dataclasses.replace(local, state=each.begin(local))
    gradients, made = step.gradient(batch, locals_, compute_key)
    return gradients, made.num_examples, named(made.measured)


def named(measured):
    """Measurements as rounds report them, by `<method>/<name>`."""
    return {f"{m}/{name}": v for m, own in measured.items() for name, v in own.items()}


def first_memory(method, attribute, weights):
    """The first values of a method's declared memories, by its own names."""
    first = memories.initial(method, attribute, weights)
    return memories.own(method.name, getattr(method, attribute), first)


def find_needs(model, methods):
    """What the methods need on such a model, which stays as it was."""
    training = local_training.LocalTraining(optimizers.build_sgd(0.1), methods)
    with tf.init_scope():
        variables = [
            *model.trainable_variables,
            *model.non_trainable_variables,
            *model.local_variables,
        ]
        before = [tf.identity(v) for v in variables]
        needs = trial.Trial(lambda: model, training).needs
        for variable, value in zip(variables, before):
            variable.assign(value)
    return needs
