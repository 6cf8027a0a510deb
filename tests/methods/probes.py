"""Methods made to test what a method may do, and the parts of their rounds by hand."""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.methods import linear
from tff_reg import methods
from tff_reg.methods import fedsam, method

RATE = linear.RATE


def _start():
    """Weights to begin with."""
    rng = np.random.default_rng(6)
    return [
        rng.normal(size=(linear.FEATURES, linear.CLASSES)),
        rng.normal(size=linear.CLASSES),
    ]


def _plus(first, second, factor=1.0):
    return [a + factor * b for a, b in zip(first, second)]


def _minus(first, second):
    return _plus(first, second, -1.0)


def _batched(features, labels, size=4):
    """A client's data set as batches."""
    element = {"x": features, "y": labels}
    return tf.data.Dataset.from_tensor_slices(element).batch(size)


def _measured(output):
    return output.metrics["client_work"]["train"]


def _weights(process, output):
    return linear.weights_of(process, output.state)


@dataclasses.dataclass(frozen=True)
class _Priors(method.Method):
    """Adds to each logit the logarithm of how many examples of its class there are."""

    name = "priors"

    def change_logits(self, logits, class_counts):
        return logits + tf.math.log(tf.cast(class_counts, logits.dtype))


@dataclasses.dataclass(frozen=True)
class _Counting(method.Method):
    """Keeps the class counts that a client begins with, and scales gradients by one."""

    name = "counting"

    def begin(self, local):
        return local.class_counts

    def correct(self, local, gradient):
        factor = tf.cast(local.state[1], gradient[0].dtype)
        return [factor * g for g in gradient]


@dataclasses.dataclass(frozen=True)
class _Returning(method.Method):
    """Takes the gradient nearer to the model that the client received before."""

    name = "returning"
    client_memory = {
        "old": methods.initial_weights,
        "first": methods.initial_weights,
        "visits": lambda weights: tf.constant(0),
    }
    radius: float = 0.5

    def gradient(self, local, gradient_at):
        back = [old - s for old, s in zip(local.memory["old"], local.start)]
        norm = fedsam.global_norm(back)
        return gradient_at([tf.math.divide_no_nan(self.radius * b, norm) for b in back])

    def finish(self, local):
        visits = local.memory["visits"] + 1
        return methods.Finished(memory={"old": list(local.start), "visits": visits})


@dataclasses.dataclass(frozen=True)
class _Rebelling(method.Method):
    """Takes the gradient further from the global model, in weights and in logits."""

    name = "rebelling"
    radius: float = 0.1

    def gradient(self, local, gradient_at):
        away = gradient_at(loss=self._loss)
        return gradient_at([self.radius * g for g in away])

    def _loss(self, step):
        received = step.outputs_of(method.GLOBAL).logits
        away = [
            tf.reduce_sum(tf.math.squared_difference(w, g))
            for w, g in zip(step.weights, step.start)
        ]
        gap = tf.math.squared_difference(step.outputs.logits, received)
        return tf.reduce_mean(gap) + 0.5 * tf.add_n(away)


@dataclasses.dataclass(frozen=True)
class _LookingAhead(method.Method):
    """Server momentum whose next step clients have before them."""

    name = "ahead"
    server_memory = {"momentum": methods.zeros}
    server_step = "momentum of its own"
    decay: float = 0.8

    def broadcast(self, weights, memory):
        return _plus(weights, memory["momentum"], self.decay)

    def update_memory(self, server):
        decayed = [self.decay * momentum for momentum in server.memory["momentum"]]
        return {"momentum": _plus(decayed, server.mean_delta)}

    def next_model(self, server):
        return _plus(server.weights, server.old_memory["momentum"], self.decay)


@dataclasses.dataclass(frozen=True)
class _Following(method.Method):
    """Mixes every gradient with the direction of the last round."""

    name = "following"
    exclusive = (method.DRIFT,)
    server_memory = {
        "direction": methods.sent(methods.zeros),
        "rounds": lambda weights: tf.constant(0),
        "first": methods.initial_weights,
    }
    share: float = 0.3
    step_size: float = 4 * RATE

    def correct(self, local, gradient):
        assert list(local.server_memory) == ["direction"]
        return [
            self.share * g + (1 - self.share) * d
            for g, d in zip(gradient, local.server_memory["direction"])
        ]

    def update_memory(self, server):
        size = self.step_size * tf.cast(server.count, tf.float64)
        direction = [-moved / size for moved in server.delta_sum]
        return {"direction": direction, "rounds": server.memory["rounds"] + 1}


@dataclasses.dataclass(frozen=True)
class _Normalised(method.Method):
    """Averages the clients' steps, and takes as many of them as they do on average."""

    name = "normalised"
    uploads = ("steps",)

    def finish(self, local):
        share = local.relative_weight
        steps = share * tf.cast(local.num_steps, share.dtype)
        return methods.Finished(
            upload={"steps": {"all": steps, "shares": share}},
            scale=1 / tf.cast(local.num_steps, tf.float64),
        )

    def next_model(self, server):
        steps = server.uploads["steps"]["all"] / server.uploads["steps"]["shares"]
        step = _minus(server.weights, server.before)
        return _plus(server.before, step, steps)


@dataclasses.dataclass(frozen=True)
class _Rolling(method.Method):
    """Adds a part of the last step's clipped gradient to each gradient."""

    name = "rolling"

    def begin(self, local):
        zeros = [tf.zeros_like(c) for c in local.start]
        return {"last": zeros, "steps": tf.constant(0)}

    def correct(self, local, gradient):
        return _plus(gradient, local.state["last"], 0.5)

    def keep(self, local, gradient):
        return {"last": list(gradient), "steps": local.state["steps"] + 1}

    def correct_clipped(self, local, gradient):
        # Those before this one.
        factor = 1 + 0.1 * tf.cast(local.state["steps"], gradient[0].dtype)
        return [factor * g for g in gradient]
