"""Weights that stay at their client: the hook `Method.personal`.

They are not sent: a client begins each round with its own values in their places, and
no mean and no server step moves them. The client's values are one more of its memories.
The server's model keeps the initial ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_reg.lazy import tf, tff
from tff_reg.methods import checks, contract, memories, method as method_lib
from tff_reg.training import numbers

# The memory's key; see `memories.keys`.
KEY = "personal/weights"


class Personal(NamedTuple):
    """Which weights are personal.

    Attributes:
      trainable: For each trainable weight, whether it is.
      non_trainable: For each other weight, whether it is.
      statistics: The same for those of floating point alone, which updates have.
    """

    trainable: tuple[bool, ...]
    non_trainable: tuple[bool, ...]
    statistics: tuple[bool, ...]

    def of(self, weights: Any) -> tuple[Any, ...]:
        """Returns the personal ones of `ModelWeights`."""
        flat = (*weights.trainable, *weights.non_trainable)
        mask = (*self.trainable, *self.non_trainable)
        return tuple(tf.convert_to_tensor(w) for w, own in zip(flat, mask) if own)

    def merged(self, weights: Any, own: Sequence[Any]) -> Any:
        """Returns `ModelWeights` with a client's own in the places of personal ones."""
        values = iter(own)

        def chosen(part: Any, mask: Sequence[bool]) -> Any:
            flat = [next(values) if own else w for w, own in zip(part, mask)]
            return tf.nest.pack_sequence_as(part, flat)

        return tff.learning.models.ModelWeights(
            chosen(weights.trainable, self.trainable),
            chosen(weights.non_trainable, self.non_trainable),
        )

    @property
    def is_sent_down(self) -> list[bool]:
        """For each weight of a model whether the server sends it."""
        return [not own for own in (*self.trainable, *self.non_trainable)]

    @property
    def is_sent_up(self) -> list[bool]:
        """For each tensor of an update whether clients send it."""
        return [not own for own in (*self.trainable, *self.statistics)]


def sent_type(whole: tff.Type, is_sent: Optional[Sequence[bool]]) -> tff.Type:
    """Returns the type of the tensors that are sent; None sends all."""
    if is_sent is None:
        return whole
    flat: list[tff.Type] = tff.structure.flatten(whole)
    return tff.types.to_type(list(itertools.compress(flat, is_sent)))


def send_part(process: Any, whole: tff.Type, is_sent: Optional[Sequence[bool]]) -> Any:
    """Builds a distribution or aggregation of which a part of the tensors is sent.

    `process` is that of the part, of `sent_type`. The others arrive as zeros.
    """
    if is_sent is None:
        return process

    @tff.tensorflow.computation(whole)
    def part(value: Any) -> list[Any]:
        return list(itertools.compress(tf.nest.flatten(value), is_sent))

    @tff.tensorflow.computation(part.type_signature.result)
    def filled(sent: Any) -> Any:
        values, types = iter(sent), tff.structure.flatten(whole)
        flat = [
            next(values) if is_here else tf.zeros(each.shape, each.dtype)
            for is_here, each in zip(is_sent, types)
        ]
        if whole.python_container is not tff.learning.models.ModelWeights:
            return flat
        count = len(whole.trainable)
        return tff.learning.models.ModelWeights(flat[:count], flat[count:])

    def run(state: Any, value: Any, *weights: Any) -> Any:
        output = process.next(state, tff.federated_map(part, value), *weights)
        result = tff.federated_map(filled, output.result)
        return tff.templates.MeasuredProcessOutput(
            output.state, result, output.measurements
        )

    def run_weighted(state: Any, value: Any, weights: Any) -> Any:
        return run(state, value, weights)

    def run_plain(state: Any, value: Any) -> Any:
        return run(state, value)

    state_type, value_type, *rest = process.next.type_signature.parameter
    value_type = tff.FederatedType(whole, value_type.placement)
    built = tff.federated_computation(
        run_weighted if rest else run_plain, [state_type, value_type, *rest]
    )
    return type(process)(process.initialize, built)


def of_model(model: Any, methods: Sequence[method_lib.Method]) -> Optional[Personal]:
    """Returns which weights of a model stay at clients; None if none do.

    Raises:
      HookError: If the hook returns something else than weights of the network.
      NetworkNeededError: If the model does not show its network.
    """
    chosen: set[int] = set()
    kinds = model.trainable_variables, model.non_trainable_variables
    known = {id(v) for variables in kinds for v in variables}
    for method in methods:
        if not method_lib.overrides(method, "personal"):
            continue
        checks.require_network(method, model)
        own = contract.run(method, "personal", method.personal, model.network)
        ids = {id(v) for v in own}
        if not ids or not ids <= known:
            why = "return at least one of the network's weights, and nothing else."
            raise contract.refuse(method, "personal", why)
        chosen |= ids
    if not chosen:
        return None
    if {id(v) for v in model.trainable_variables} <= chosen:
        raise ValueError(
            "All weights that train are personal, so that clients would share nothing:"
            " that is the process `local`."
        )
    trained, others = kinds
    return Personal(
        *(
            tuple(id(v) in chosen for v in each)
            for each in (trained, others, numbers.floats(others))
        )
    )


def check_uploads(
    methods: Sequence[method_lib.Method], uploads_type: Any, weights_type: Any
) -> None:
    """Refuses uploads with numbers of each weight, those that stay among them."""
    count = len(tff.structure.flatten(weights_type.trainable))
    for name, kind in tff.structure.iter_elements(uploads_type):
        if len(tff.structure.flatten(kind)) >= count:
            keeping = next(m for m in methods if method_lib.overrides(m, "personal"))
            raise ValueError(
                f"Clients upload {name}, numbers of all weights, of which"
                f" {keeping.name} keeps some at its client: leave one of them out."
            )


def build_client_weights(
    personal: Optional[Personal],
    methods: Sequence[method_lib.Method],
    state_type: Any,
    client_type: Any,
) -> Optional[Any]:
    """Builds (state, client's state) -> its `ModelWeights`; None if none are own."""
    owning = [m for m in methods if method_lib.overrides(m, "own_model")]
    if personal is None and not owning:
        return None

    @tff.tensorflow.computation(state_type, client_type)
    def get_client_weights(state: Any, client: Mapping[str, Any]) -> Any:
        weights = state.global_model_weights
        if personal is not None:
            weights = personal.merged(weights, client[KEY])
        for method in owning:
            memory = memories.own(method.name, method.client_memory, client)
            own = method.own_model(list(weights.trainable), memory)
            contract.check(method, "own_model", "the result", own, weights.trainable)
            weights = tff.learning.models.ModelWeights(own, weights.non_trainable)
        return weights

    return get_client_weights
