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
    local = method_lib.Local(
        weights=list(model.trainable_variables), cloud=cloud, client={}, server={}
    )
    locals_ = {each.name: local.with_state(each.begin(local)) for each in methods}
    return step.gradient(batch, locals_, compute_key)
