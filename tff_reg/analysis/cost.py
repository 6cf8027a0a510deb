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

from tff_reg import lazy, models, training as training_lib
from tff_reg.analysis import graph_counts
from tff_reg.lazy import tf, tff
from tff_reg.methods import catalogue, memories, method as method_lib

local_round = lazy.module("tff_reg.training.local_round")
needs = lazy.module("tff_reg.training.needs")
personal_lib = lazy.module("tff_reg.training.personal")
traffic = lazy.module("tff_reg.training.traffic")

# Number of steps to average if the count depends on random draws.
DEFAULT_DRAWS = 256
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
        shape that the step reads, but not the optimiser's state.
      forward_rest_mflops: 10^6 multiply-adds of other products in the forward passes,
        as `MultiplyAdds.rest`.
      backward_mflops: 10^6 multiply-adds of the backward passes.
      stored_values_m: As `stored_params_m`, with the norms' weights and the model's
        running statistics.
      megabytes_down: 10^6 bytes per round that a client receives; None if they are not
        known, see `training.traffic`.
      megabytes_up: 10^6 bytes per round that a client sends, or None.
    """

    process: str
    projector: str
    forward_mflops: float
    stored_params_m: float
    forward_rest_mflops: float
    backward_mflops: float
    stored_values_m: float
    megabytes_down: Optional[float]
    megabytes_up: Optional[float]


def measure(
    name: str,
    *,
    model: str,
    image_shape: Sequence[int],
    num_classes: int,
    norm: str = "batch",
    projector: Optional[str] = None,
    hyperparameters: Mapping[str, Any] = {},
    draws: int = DEFAULT_DRAWS,
) -> Cost:
    """Counts the cost of a method on one of the package's networks.

    `projector` is by default that of the method's paper, and so are the settings that
    no argument names, such as the client optimiser's.

    >>> from tff_reg.analysis import cost
    >>> network = dict(model="cnn", norm="group", image_shape=(8, 8, 1), num_classes=3)
    >>> cost.measure("fedavg", **network).forward_mflops
    0.346496
    """
    paper = catalogue.settings(name, ["projector"] if projector else [])
    projector = projector or str(paper.get("projector", "none"))
    model_fn = models.build_model_fn(
        model,
        image_shape=image_shape,
        num_classes=num_classes,
        norm=norm,
        projector=projector,
    )
    process = training_lib.build(
        name,
        model_fn,
        client_data=training_lib.WholeClientData(batch_size=1),
        # Any numbers: they do not change the cost.
        num_clients=10,
        total_rounds=1,
        **hyperparameters,
    )
    return of_process(process, name, projector, draws=draws)


def of_process(
    process: Any, name: str, projector: str = "none", *, draws: int = DEFAULT_DRAWS
) -> Cost:
    """Counts the cost of a process, with its model, methods and client optimiser.

    Args:
      process: A process that `tff_reg.training` built.
      name: The process name.
      projector: The layers before the classifier, for the `Cost`.
      draws: Number of steps to average if the count depends on random draws.
    """
    step = _trace(process)
    counts = step.count(draws)
    sent = traffic.bytes_per_client(process, name)
    down, up = (None, None) if sent is None else (each / 1e6 for each in sent)
    return Cost(
        process=name,
        projector=projector,
        forward_mflops=counts.layers / 1e6,
        stored_params_m=step.stored_layers / 1e6,
        forward_rest_mflops=counts.rest / 1e6,
        backward_mflops=counts.backward / 1e6,
        stored_values_m=step.stored_values / 1e6,
        megabytes_down=down,
        megabytes_up=up,
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
        values = [getattr(cost, name) for cost in costs]
        cells[head] = ["-" if v is None else f"{v:.{digits}f}" for v in values]
    return cells


def count_multiply_adds(process: Any, *, draws: int = DEFAULT_DRAWS) -> MultiplyAdds:
    """Counts the multiply-adds of a process's local step, for one example.

    Args:
      process: A process that `tff_reg.training` built.
      draws: Number of steps to average if the count depends on random draws.
    """
    return _trace(process).count(draws)


@dataclasses.dataclass(frozen=True)
class _Step:
    """The traced step of one example."""

    graph: Any
    key: Any
    outputs: Sequence[Any]
    frozen: Sequence[Any]
    stored_layers: int
    stored_values: int

    def count(self, draws: int) -> MultiplyAdds:
        with self.graph.as_default():
            counts = graph_counts.multiply_adds(self.outputs, self.frozen)
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


def _round(description: Any) -> Any:
    """Returns a `LocalRound` on a model of its own.

    Its `outputs` are the gradients of all passes, the corrected gradients and the
    measurements.
    """

    class Step(training_lib.local_step.LocalStep):
        def run(self, *args, **kwargs):
            result = super().run(*args, **kwargs)
            Round.outputs.extend(result[0])
            return result

    class Round(local_round.LocalRound):
        _step_type = Step
        outputs: list[Any] = []

        @property
        def model(self):
            return self._model

        def _corrected(self, hook, locals_, gradients):
            gradients = super()._corrected(hook, locals_, gradients)
            self.outputs.extend(gradients)
            return gradients

        def _summed(self, sums, measured, batch_examples):
            self.outputs.extend(tf.nest.flatten(measured))
            return sums

    weighting = tff.learning.ClientWeighting.UNIFORM
    return Round(
        description.model_fn, description.training, weighting, description.needs
    )


def _trace(process: Any) -> _Step:
    description = process.description
    training = description.training
    with tf.Graph().as_default() as graph:
        key = tf.compat.v1.placeholder(tf.int64, [2])
        client_round = _round(description)
        model = client_round.model
        weights = list(model.trainable_variables)
        start = _like(weights)
        methods = training.methods
        first = memories.first(methods, "client_memory", weights)
        if description.personal:
            of_model = tff.learning.models.ModelWeights.from_model(model)
            first[personal_lib.KEY] = description.personal.of(of_model)
        client = _like(first)
        known = memories.first(methods, "server_memory", weights)
        server = _like(memories.leaving(methods, known, weights))
        fixed = list(model.non_trainable_variables)
        received = tff.learning.models.ModelWeights(start, _like(fixed))
        scalar = tf.TensorSpec([], description.hparams_dtype)
        optimizer = training.optimizer
        hparams = optimizer.get_hparams(optimizer.initialize(scalar))
        visit, progress = client_round.begin(
            {k: tf.constant(v, scalar.dtype) for k, v in hparams.items()},
            tf.constant(1),
            1.0,
            received,
            needs.class_counts(model),
            client,
            server,
        )
        batch = tf.nest.map_structure(
            lambda spec: tf.zeros([s or 1 for s in spec.shape], spec.dtype),
            dict(description.input_spec),
        )
        client_round.step(visit, progress, batch, lambda: key)

        def is_copy(value: Any) -> bool:
            """Whether these are as many as the weights, not a few numbers."""
            return len(tf.nest.flatten(value)) >= len(weights)

        behind = graph_counts.operations_behind(client_round.outputs)
        stored = {method_lib.GLOBAL: start, **client}
        stored |= {f"server: {name}": value for name, value in server.items()}
        read = {
            name
            for name, value in stored.items()
            if is_copy(value) and any(t.op in behind for t in tf.nest.flatten(value))
        }
        keeps = any(map(is_copy, progress.kept.values()))
        copies = 1 + len(read | {*description.needs.references}) + keeps
        frozen = getattr(getattr(model, "network", None), "frozen", {})
        sizes = [(v.name, copies * graph_counts.size(v)) for v in weights]
        sizes += [(v.name, graph_counts.size(v)) for v in fixed]
        sizes += [(name, graph_counts.size(v)) for name, v in frozen.items()]
        return _Step(
            graph=graph,
            key=key,
            outputs=client_round.outputs,
            frozen=[*frozen.values()],
            stored_layers=sum(size for name, size in sizes if _is_of_layer(name)),
            stored_values=sum(size for _, size in sizes),
        )


def _like(structure):
    return tf.nest.map_structure(
        lambda w: tf.compat.v1.placeholder(w.dtype, w.shape), structure
    )


def _is_of_layer(name: str) -> bool:
    return name.split("/")[-1].split(":")[0] not in _NORM_WEIGHTS
