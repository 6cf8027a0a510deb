"""Steps of the product's own local training on a case with a model's weights."""

from __future__ import annotations

import tensorflow as tf

from tests import local_steps
from tests.golden import replay, replayed
from tff_reg import methods
from tff_reg.models import forward
from tff_reg.training import numbers


class Trainer:
    """Steps of the product's own local training on a case's model."""

    def __init__(self, case: replay.Case):
        self.case = case
        self.replayed = replayed.Replayed(case)
        self.optimizer = case.optimizer()
        self.reset_optimizer()

    @property
    def variables(self):
        return list(self.replayed.model.trainable_variables)

    def reset_optimizer(self):
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self.variables)
        self.state = self.optimizer.initialize(specs)

    def gradient(self, batch, *parts, start=(), references=None):
        """The gradient by the product's local step, and what it measured.

        Statistics of norms are as after one forward pass.
        """
        gradients, _, measurements = local_steps.gradient(
            self.replayed.model, parts, batch, start=start, references=references
        )
        return gradients, measurements

    def gradient_of(self, value, tape):
        return tape.gradient(
            value, self.variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    def without_statistics(self, function, *args, **kwargs):
        """Calls a function and undoes its updates of running statistics."""
        variables = self.replayed.model.non_trainable_variables
        before = [v.numpy() for v in variables]
        result = function(*args, **kwargs)
        for variable, value in zip(variables, before):
            variable.assign(value)
        return result

    def forward(self, batch):
        return self.replayed.model.network(
            batch["x"], forward.ForwardPass(training=True)
        )

    def apply(self, gradients):
        """A step of the optimiser; returns the update in the file's order."""
        before = self.replayed.weights_in_torch_order()
        self.state, weights = self.optimizer.next(
            self.state, tuple(self.variables), tuple(gradients)
        )
        for variable, value in zip(self.variables, weights):
            variable.assign(value)
        after = self.replayed.weights_in_torch_order()
        return before, [a - b for a, b in zip(after, before)]

    def check_summary(self, key, tensors, **kwargs):
        self.case.check_summary(key, self.replayed.in_torch_order(tensors), **kwargs)

    def check_step(self, prefix, gradients, step=1):
        """Applies a clipped gradient and compares the weights after it."""
        before, update = self.apply(gradients)
        self.case.check_summary(f"{prefix}delta", update, step=step, weights=before)
        after = self.replayed.weights_in_torch_order()
        self.case.check_summary(f"{prefix}param_after", after, step=step)

    def check_clipped_step(self, prefix, gradients, max_norm, step=1, rtol32=5e-3):
        """Clips a gradient and applies it, and compares all that comes of it."""
        self.check_summary(f"{prefix}grad_total_preclip", gradients, step=step)
        clipped = self.check_clipping(prefix, gradients, max_norm, step, rtol32)
        self.check_step(prefix, clipped, step)

    def check_clipping(self, prefix, gradients, max_norm, step=1, rtol32=5e-3):
        """Compares a clipped gradient, and returns it."""
        if max_norm is None:
            return gradients
        clipped, norm = numbers.clip_by_global_norm(gradients, max_norm)
        key = f"{prefix}clip_total_norm"
        self.case.check(key, norm, step=step, rtol64=1e-8, rtol32=rtol32)
        self.check_summary(f"{prefix}grad_postclip", clipped, step=step)
        return clipped

    def check_statistics(self, prefix, step=1):
        if f"{prefix}.running_mean.norm" not in self.case:
            return
        for part in ("running_mean", "running_var"):
            values = self.replayed.statistics(part)
            self.case.check_summary(f"{prefix}.{part}", values, step=step)


def check_loss_and_logits(trainer, batch, prefix="", step=1):
    outputs = trainer.forward(batch)
    ce = trainer.replayed.model.loss_fn(batch["y"], outputs.logits)
    trainer.case.check(f"{prefix}loss_ce", ce, step=step)
    trainer.case.check(f"{prefix}logits", outputs.logits, step=step)
    return ce, outputs


def bare_step(trainer, start=(), batch=None, outputs=None, task_loss=None):
    return methods.Step(
        network=trainer.replayed.model.network,
        outputs=outputs,
        features=None if batch is None else batch["x"],
        labels=None if batch is None else batch["y"],
        task_loss=task_loss,
        weights=trainer.variables,
        start=start,
        global_weights=start,
    )
