"""Cost of a method: multiply-adds per step, stored weights, bytes per round.

The costs are counted in the graph of the clients' local step, with all narrowed
networks, constant models and corrections of the method. An operation counts if the
gradient or a measurement depends on it; a path that reads only constants has no
backward pass.

Papers print "FLOPs" for the multiply-adds of convolutions and dense layers, which
`forward_mflops` counts. As in FedAlign's Table 5, `stored_params_m` counts the weights
of these layers without norms. The other fields count the rest.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_reg import models, training as training_lib
from tff_reg.analysis import graph_counts
from tff_reg.lazy import tf
from tff_reg.methods import catalogue, memories, method as method_lib
from tff_reg.models import roles

# Number of steps to average if the count depends on random draws.
DEFAULT_DRAWS = 256
_CLIENTS = 10  # Any number: it does not change the graph.
_NORM_WEIGHTS = ("gamma", "beta", "moving_mean", "moving_variance")


@dataclasses.dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds per example in a local step, averaged over random draws.

    Attributes:
      layers: Convolutions and dense layers, in all forward passes of the step.
      rest: Other matrix products of the forward passes: FedAlign's transmitting
        matrices and power iterations, resized images, products of examples' features;
        and MAN's squares, one per activation (MAN's Table 3).
      backward: All backward passes.
    """

    layers: float
    rest: float
    backward: float

    @property
    def total(self) -> float:
        """The sum of all fields."""
        return self.layers + self.rest + self.backward


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a method for a client.

    Attributes:
      process: The process name.
      projector: The layers before the classifier.
      forward_mflops: 10^6 multiply-adds of convolutions and dense layers in the
        forward passes of a training step, for one example.
      stored_params_m: 10^6 weights of convolutions and dense layers that a client
        keeps during a step: the model and every constant model or memory of the same
        shape that the step reads.
      forward_rest_mflops: 10^6 multiply-adds of other products in the forward passes,
        as `MultiplyAdds.rest`.
      backward_mflops: 10^6 multiply-adds of the backward passes.
      stored_values_m: As `stored_params_m`, with the norms' weights and the model's
        running statistics.
      megabytes_down: 10^6 bytes per round that a client receives.
      megabytes_up: 10^6 bytes per round that a client sends.
    """

    process: str
    projector: str
    forward_mflops: float
    stored_params_m: float
    forward_rest_mflops: float
    backward_mflops: float
    stored_values_m: float
    megabytes_down: float
    megabytes_up: float


def measure(
    process: str,
    *,
    model: str,
    image_shape: Sequence[int],
    num_classes: int,
    norm: str = "batch",
    projector: Optional[str] = None,
    strengths: Mapping[str, Any] = {},
    draws: int = DEFAULT_DRAWS,
) -> Cost:
    """Counts the cost of a method on one of the package's networks.

    `projector` is by default that of the method's paper. What only serves an evaluation
    (`averages_all_clients`) is not counted.

    >>> from tff_reg.analysis import cost
    >>> network = dict(model="cnn", norm="group", image_shape=(8, 8, 1), num_classes=3)
    >>> cost.measure("fedavg", **network).forward_mflops
    0.346496
    """
    paper = catalogue.settings(process, ["projector"] if projector else [])
    projector = projector or str(paper.get("projector", "none"))
    model_fn = models.build_model_fn(
        model,
        image_shape=image_shape,
        num_classes=num_classes,
        norm=norm,
        projector=projector,
    )
    step = _trace(catalogue.build(process, strengths), model_fn)
    counts = step.count(draws)
    is_sent = process.strip().lower() not in catalogue.REFERENCES
    return Cost(
        process=process,
        projector=projector,
        forward_mflops=counts.layers / 1e6,
        stored_params_m=step.stored_layers / 1e6,
        forward_rest_mflops=counts.rest / 1e6,
        backward_mflops=counts.backward / 1e6,
        stored_values_m=step.stored_values / 1e6,
        megabytes_down=is_sent * step.bytes_down / 1e6,
        megabytes_up=is_sent * step.bytes_up / 1e6,
    )


def columns(costs: Sequence[Cost]) -> dict[str, list[str]]:
    """Returns the columns of a table of costs by heading, with rounded numbers."""
    heads = {
        "forward_mflops": "forward (M)",
        "forward_rest_mflops": "other products (M)",
        "backward_mflops": "backward (M)",
        "stored_params_m": "stored (M)",
        "stored_values_m": "with norms (M)",
        "megabytes_down": "down (MB)",
        "megabytes_up": "up (MB)",
    }
    cells = {"method": [cost.process for cost in costs]}
    if {cost.projector for cost in costs} != {"none"}:
        cells["projector"] = [cost.projector for cost in costs]
    for name, head in heads.items():
        digits = 1 if name.endswith("mflops") else 2
        cells[head] = [f"{getattr(cost, name):.{digits}f}" for cost in costs]
    return cells


def count_multiply_adds(
    process: str,
    model_fn,
    *,
    strengths: Mapping[str, Any] = {},
    draws: int = DEFAULT_DRAWS,
) -> MultiplyAdds:
    """Counts the multiply-adds of a method's local step, for one example."""
    return _trace(catalogue.build(process, strengths), model_fn).count(draws)


@dataclasses.dataclass(frozen=True)
class _Step:
    """The traced step of one example."""

    graph: Any
    key: Any
    outputs: Sequence[Any]
    stored_layers: int
    stored_values: int
    bytes_down: int
    bytes_up: int

    def count(self, draws: int) -> MultiplyAdds:
        with self.graph.as_default():
            counts = graph_counts.multiply_adds(self.outputs)
            drawn = {kind: c for kind, c in counts.items() if tf.is_tensor(c)}
            if drawn:
                with tf.compat.v1.Session(graph=self.graph) as session:
                    session.run(tf.compat.v1.global_variables_initializer())
                    found = [
                        session.run(drawn, {self.key: [0, draw]})
                        for draw in range(draws)
                    ]
                for kind in drawn:
                    counts[kind] = statistics.fmean(float(one[kind]) for one in found)
        return MultiplyAdds(**counts)


def _recording_step(*args) -> Any:
    """Returns a `LocalStep` that stores the gradient of every pass in `gradients`."""

    class RecordingStep(training_lib.local_step.LocalStep):
        def __init__(self):
            super().__init__(*args)
            self.gradients = []

        def run(self, *args, **kwargs):
            result = super().run(*args, **kwargs)
            self.gradients.extend(result[0])
            return result

    return RecordingStep()


class _Received:
    """The model and the memories that a client begins with, as placeholders."""

    def __init__(self, model, methods):
        self.weights = list(model.trainable_variables)
        self.client: dict[str, Any] = {}
        self.server: dict[str, Any] = {}
        self._start = _like(self.weights)
        self._num_classes = model.network.num_classes
        self._facts = roles.facts_of(model.network, self.weights)
        for m in methods:
            self.client |= _like(memories.initial(m, "client_memory", self.weights))
            server = memories.initial(m, "server_memory", self.weights)
            sent = memories.sent_keys(m.name, m.server_memory)
            self.server |= _like({name: server[name] for name in sent})

    def local_of(self, m) -> method_lib.Local:
        """Returns a method's view of the client before its first step."""
        dtype = self.weights[0].dtype
        local = method_lib.Local(
            weights=self.weights,
            start=self._start,
            global_weights=self._start,
            memory=memories.own(m.name, m.client_memory, self.client),
            server_memory=memories.own(m.name, m.server_memory, self.server),
            state=(),
            class_counts=tf.zeros([self._num_classes], tf.int32),
            relative_size=tf.constant(1.0, dtype),
            relative_weight=tf.constant(1.0, dtype),
            round_num=tf.constant(1),
            num_steps=tf.constant(0),
            total_steps=tf.constant(1),
            epoch=tf.constant(0),
            begins_epoch=tf.constant(True),
            num_examples=tf.constant(0, tf.int64),
            weight=tf.constant(1.0, dtype),
            hparams={"learning_rate": tf.constant(0.0)},
            local_steps=1,
            step_size=tf.constant(0.0, dtype),
            **self._facts,
        )
        return dataclasses.replace(local, state=m.begin(local))

    def read_by(self, outputs) -> set:
        """Returns the names of the stored model and memories that outputs depend on."""
        stored: dict[Any, Any] = {method_lib.GLOBAL: self._start}
        stored.update({("client", name): v for name, v in self.client.items()})
        stored.update({("server", name): v for name, v in self.server.items()})
        operations = graph_counts.operations_behind(outputs)
        flat = {name: tf.nest.flatten(value) for name, value in stored.items()}
        return {
            name
            for name, tensors in flat.items()
            if self._is_copy(tensors) and any(t.op in operations for t in tensors)
        }

    def _is_copy(self, tensors) -> bool:
        """Returns whether these are as many as the weights, not a few numbers."""
        return len(tensors) >= len(self.weights)


def _trace(methods, model_fn) -> _Step:
    training = training_lib.LocalTraining(
        training_lib.build_sgd(0.0),
        methods,
        data_form=training_lib.WholeClientData(batch_size=1),
        population=training_lib.Population(_CLIENTS),
    )
    model_fn = training_lib.adapt_model_fn(model_fn, methods)
    needs = training_lib.trial.find_needs(model_fn, training)
    with tf.Graph().as_default() as graph:
        model = model_fn()
        references = {name: model_fn() for name in needs.references}
        key = tf.compat.v1.placeholder(tf.int64, [2])
        received = _Received(model, methods)
        locals_ = {m.name: received.local_of(m) for m in methods}
        spec = model.input_spec["x"]
        batch = {
            "x": tf.zeros([1, *spec.shape[1:]], spec.dtype),
            "y": tf.zeros([1], tf.int32),
        }
        step = _recording_step(model, references, methods, needs)
        gradient, made = step.gradient(batch, locals_, lambda: key)
        outputs = [*gradient, *step.gradients, *tf.nest.flatten(made.measured)]
        for m in methods:
            gradient = m.correct(locals_[m.name], gradient)
            gradient = m.correct_clipped(locals_[m.name], gradient)
        outputs += gradient
        uploads = [m.finish(locals_[m.name]).upload for m in methods]
        weights, fixed = received.weights, list(model.non_trainable_variables)
        states = [tf.nest.flatten(own.state) for own in locals_.values()]
        keeps = any(map(received._is_copy, states))
        copies = 1 + len(received.read_by(outputs) | set(references)) + keeps
        model_bytes = _bytes(weights) + _bytes(fixed)
        sent = _bytes(tf.nest.flatten(received.server))
        sent += _bytes(weights) * bool(training.averaged_rounds)
        return _Step(
            graph=graph,
            key=key,
            outputs=outputs,
            stored_layers=copies
            * sum(map(graph_counts.size, filter(_is_of_layer, weights)))
            + sum(map(graph_counts.size, filter(_is_of_layer, fixed))),
            stored_values=copies * sum(map(graph_counts.size, weights))
            + sum(map(graph_counts.size, fixed)),
            bytes_down=model_bytes + sent,
            bytes_up=model_bytes + _bytes(tf.nest.flatten(uploads)),
        )


def _like(structure):
    return tf.nest.map_structure(
        lambda w: tf.compat.v1.placeholder(w.dtype, w.shape), structure
    )


def _is_of_layer(variable) -> bool:
    return variable.name.split("/")[-1].split(":")[0] not in _NORM_WEIGHTS


def _bytes(variables) -> int:
    return sum(graph_counts.size(v) * v.dtype.size for v in variables)
