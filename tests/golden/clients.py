"""Training on the networks of the I, J and M files: whole rounds and single steps."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import local_steps
from tests.golden import mlp
from tff_reg import training as training_lib
from tff_reg.methods import method
from tff_reg.training import local_round, trial


def process(sizes, dtype, training, weighting, server_rate=1.0, server_momentum=0.0):
    """The process of what clients do."""
    return training_lib.build_regularized(
        mlp.model_fn(sizes, dtype),
        training.methods,
        training.optimizer,
        training_lib.build_sgd(server_rate, server_momentum),
        client_weighting=weighting,
        client_data=training.data_form,
        max_gradient_norm=training.max_gradient_norm,
        learning_rate_schedule=training.learning_rate_schedule,
        population=training.population,
    )


def data_set(x, y):
    """A client's examples as one element."""
    element = collections.OrderedDict(x=x, y=y, key=tf.zeros([2], tf.int64))
    return tf.data.Dataset.from_tensors(element)


def own_names(memory):
    """Memories of a sum by the names that their methods give them."""
    return {name.rpartition("/")[2]: value for name, value in memory.items()}


@dataclasses.dataclass(frozen=True)
class _Observer(method.Method):
    """The last of a sum, which keeps the gradients that it sees."""

    name = "observer"
    seen: dict = dataclasses.field(default_factory=dict)

    def keep(self, local, gradient):
        self.seen["clipped"] = mlp.flatten(gradient)
        return ()

    def correct_clipped(self, local, gradient):
        self.seen["corrected"] = mlp.flatten(gradient)
        return gradient


@dataclasses.dataclass(frozen=True)
class Step:
    """What came of a step; all float [parameters], in PyTorch's order.

    Attributes:
      clipped: The clipped gradient.
      corrected: The same with what methods add to it then.
      weights: The weights after the step.
    """

    clipped: np.ndarray
    corrected: np.ndarray
    weights: np.ndarray


class Client:
    """A client that takes its steps one by one, by the product's `LocalRound`."""

    def __init__(self, sizes, dtype, training, weighting, has_bias=True):
        self._network = (sizes, dtype, has_bias)
        self._dtype = dtype
        self._observer = _Observer()
        observed = dataclasses.replace(
            training, methods=(*training.methods, self._observer)
        )
        made = []

        def make():
            made.append(mlp.model_fn(*self._network)())
            return made[-1]

        # The local model is the first that is made.
        needs = trial.Trial(mlp.model_fn(*self._network), observed).needs
        self._round = local_round.LocalRound(make, observed, weighting, needs)
        self._model = made[0]
        spec = tf.TensorSpec([], dtype)
        hparams = training.optimizer.get_hparams(training.optimizer.initialize(spec))
        self._hparams = {k: tf.constant(v, dtype) for k, v in hparams.items()}

    def begin(
        self,
        received,
        data,
        *,
        round_num=1,
        rate_factor=1.0,
        client=None,
        server=None,
    ):
        """Begins a round; returns the weights with which the client begins."""
        weights = mlp.unflatten(received, *self._network)
        model = tff.learning.models.ModelWeights(weights, [])
        self._visit, progress = self._round.begin(
            self._hparams,
            tf.constant(round_num),
            rate_factor,
            model,
            self._round.class_counts(data) if self._round.counts_classes else None,
            client or {},
            server or {},
        )
        (element,) = data
        self._progress = self._round.enter(progress, element)
        return mlp.flatten(self._visit.start)

    def step(self, weights, x, y) -> Step:
        """Takes a step from these weights, float [parameters], on these examples."""
        variables = self._model.trainable_variables
        for variable, value in zip(variables, mlp.unflatten(weights, *self._network)):
            variable.assign(value)
        batch = {"x": tf.constant(x), "y": tf.constant(y)}
        before = self._progress
        self._progress = self._round.step(self._visit, before, batch, local_steps.key)
        assert self._progress.num_examples - before.num_examples == len(y)
        return Step(**self._observer.seen, weights=mlp.flatten(variables))
