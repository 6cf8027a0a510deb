"""What a gradient rule is: from "the loss at these weights" to a gradient."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Sequence

from tff_reg.lazy import tf


class GradientRule:
    """Base class, and the plain rule: the gradient at the weights.

    Attributes:
      name: What the rule is called on the command line.
      runs_twice: Whether it runs a batch more than once.
    """

    name: ClassVar[str] = "plain"
    runs_twice: ClassVar[bool] = False

    def make_slots(self, variables: Sequence[Any]) -> list:
        """Makes the variables that the rule keeps during a client's training.

        Args:
          variables: The trainable weights.

        Returns:
          Variables, which are set to 0 when a client begins.
        """
        return []

    def __call__(self, compute_gradient: Callable, variables, slots) -> list:
        """Takes the gradient of one step.

        Args:
          compute_gradient: Function without arguments giving the gradient of the loss
            of the step's batch at the present weights, one tensor a weight.
          variables: The trainable weights; what is changed is changed back.
          slots: What `make_slots` made.

        Returns:
          The gradient, one tensor a weight.
        """
        return compute_gradient()

    def after_clipping(self, gradient, slots) -> None:
        """Keeps what the next step needs of this step's gradient.

        Args:
          gradient: The gradient with everything that was added, clipped.
          slots: What `make_slots` made.
        """
        return None  # AutoGraph fails on a body that is a docstring alone.


def check_has_network(rule: GradientRule, model) -> None:
    """Raises a TypeError if a rule would have a model count a batch twice.

    Args:
      rule: The rule.
      model: A `tff.learning.models.VariableModel`.
    """
    if rule.runs_twice and not hasattr(model, "network"):
        raise TypeError(
            f"{rule.name} runs every batch twice, and only a "
            "tff_reg.models.LearningModel counts it once: model_fn returned "
            f"{type(model).__name__}. See tff_reg.models.from_keras_blocks."
        )


def gradient_at(compute_gradient: Callable, variables, ascent) -> list:
    """The gradient at displaced weights, which are put back.

    Args:
      compute_gradient: As in `GradientRule.__call__`.
      variables: The trainable weights.
      ascent: The displacement, one tensor a weight.

    Returns:
      The gradient there, one tensor a weight.
    """
    start = [tf.identity(v) for v in variables]
    for variable, displacement in zip(variables, ascent):
        variable.assign_add(displacement)
    gradient = compute_gradient()
    for variable, value in zip(variables, start):
        variable.assign(value)
    return gradient


def global_norm(tensors):
    """The joint Euclidean norm of tensors of one data type."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(t)) for t in tensors]))
