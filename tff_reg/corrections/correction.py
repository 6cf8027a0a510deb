"""What a drift correction is.

The symbols are those of the MAN authors' code, on whose runs all four are checked: w_i
are a client's weights, cloud those it received, n_i its number of examples,
wt_i = n_i / mean(n), N the number of all clients, K the local steps and lr0 the client
learning rate before any decay. A memory is a list of tensors in the shapes of the
trainable weights; all begin at 0.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Mapping, Optional, Sequence

from tff_reg.lazy import tf
from tff_reg.regularizers import regularizer


@dataclasses.dataclass(frozen=True)
class Population:
    """What a correction knows of all clients.

    Attributes:
      num_clients: N, of all clients, in the cohort or not.
      mean_examples: The mean of n, for wt_i; None takes all clients as equally large.
        With it the client data must be in the whole-client form.
      local_steps: K; None for the steps that the client took.
    """

    num_clients: int
    mean_examples: Optional[float] = None
    local_steps: Optional[int] = None

    def __post_init__(self):
        regularizer.check_count("population", num_clients=self.num_clients)
        if self.mean_examples is not None and not self.mean_examples > 0:
            raise ValueError(
                f"mean_examples must be above 0, but is {self.mean_examples!r}."
            )
        if self.local_steps is not None:
            regularizer.check_count("population", local_steps=self.local_steps)


@dataclasses.dataclass(frozen=True)
class Local:
    """Where a client stands.

    Attributes:
      weights: w, the trainable weights.
      cloud: The received trainable weights.
      client: The client's memories by name.
      server: The memories that the server sent, by name.
      relative_size: wt_i, a scalar.
      step_size: K lr0, a scalar; only at the end of training.
    """

    weights: Sequence[Any]
    cloud: Sequence[Any]
    client: Mapping[str, Sequence[Any]]
    server: Mapping[str, Sequence[Any]]
    relative_size: Any
    step_size: Any = None


class Correction:
    """Base class: a frozen dataclass of strengths.

    Attributes:
      name: What the correction is called on the command line.
      client_memories: Names of what a client remembers.
      server_memories: Names of what the server remembers. After a round the sum of
        what the clients upload under a name, divided by N, is added to it.
      sent: Those of them that are sent with the model.
      from_update: Those of them whose uploads are w_i - cloud: the server has them from
        the model updates, and nothing is uploaded.
      added_to_model: The one of them that is added to the mean of the clients' models,
        or None. The server optimiser must then be plain averaging.
      has_own_gradient_rule: Whether `gradient_rule` takes the place of another.
      infers_gradient: Whether (cloud - w_i) / (K lr0) stands for the mean gradient of
        a client's steps, as it does for SGD without momentum; with momentum m it is
        about 1 / (1 - m) times that.
    """

    name: ClassVar[str]
    client_memories: ClassVar[tuple[str, ...]] = ()
    server_memories: ClassVar[tuple[str, ...]] = ()
    sent: ClassVar[tuple[str, ...]] = ()
    from_update: ClassVar[tuple[str, ...]] = ()
    added_to_model: ClassVar[Optional[str]] = None
    has_own_gradient_rule: ClassVar[bool] = False
    infers_gradient: ClassVar[bool] = False

    @property
    def gradient_rule(self):
        """The `GradientRule` that belongs to the correction."""
        raise NotImplementedError

    def before_clipping(self, local: Local) -> Optional[list]:
        """What is added to the gradient of the loss, one tensor a weight, or None."""
        return None

    def after_clipping(self, local: Local) -> Optional[list]:
        """What is added to the clipped gradient, one tensor a weight, or None."""
        return None

    def finish(self, local: Local) -> tuple[dict, dict]:
        """Ends a client's training.

        Args:
          local: Where the client ended.

        Returns:
          Its new memories by name, and its uploads by the name of the server's memory.
        """
        raise NotImplementedError


def alpha_of(strength: float, local: Local):
    """alpha_i = alpha / wt_i, a scalar; 0 for a client without examples."""
    size = local.relative_size
    # tf.cast would round a Python number to float32 on the way.
    return tf.math.divide_no_nan(tf.constant(strength, size.dtype), size)


def moved(local: Local) -> list:
    """w_i - cloud, one tensor a weight."""
    return [w - c for w, c in zip(local.weights, local.cloud)]
