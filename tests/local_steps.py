"""Local steps, one at a time, as a client takes them."""

import tensorflow as tf

from tff_reg.methods import method as method_lib
from tff_reg.training import local_step


def key():
    """The key of a step."""
    return tf.constant([3, 5], tf.int64)


def gradient(model, methods, batch, *, cloud=(), references=None, compute_key=key):
    """Takes the gradient of one batch, as a client's first step does.

    Args:
      model: The model.
      methods: Those of the sum.
      batch: What the model's `input_spec` says.
      cloud: The received trainable weights.
      references: The models that terms read beside the local one, by name.
      compute_key: Gives the step's key.

    Returns:
      As `LocalStep.gradient`.
    """
    step = local_step.LocalStep(model, references or {}, methods)
    weights, class_counts = list(model.trainable_variables), None
    if any(each.needs_class_counts for each in methods):
        classes = model.network.num_classes
        class_counts = tf.math.bincount(
            batch["y"], minlength=classes, maxlength=classes
        )
    client, server = {}, {}
    for each in methods:
        client.update(each.initial_client_memory(weights))
        server.update(each.initial_server_memory(weights))
    local = method_lib.Local(
        weights=weights,
        cloud=cloud,
        client=client,
        server=server,
        class_counts=class_counts,
    )
    locals_ = {each.name: local.with_state(each.begin(local)) for each in methods}
    return step.gradient(batch, locals_, compute_key)
