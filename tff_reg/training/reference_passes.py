"""Forward passes of the reference models, which terms read beside the local model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from tff_reg.lazy import tf
from tff_reg.methods import method as method_lib
from tff_reg.models import forward as forward_lib


class ReferencePasses:
    """The forward passes of the reference models in one step.

    Except for the model in evaluation mode, they use the batch's statistics, as the
    local model does, but do not update the running statistics.
    """

    def __init__(self, models: Mapping[str, Any], tape: tf.GradientTape, key: Any):
        self._models, self._tape = models, tape
        self._pass = forward_lib.ForwardPass(training=True, key=key)
        self._passes = {method_lib.EVALUATED: forward_lib.ForwardPass(training=False)}

    def outputs_of(self, features: Any) -> Callable[[str], Any]:
        """Returns `Step.outputs_of` for the features of a batch."""

        @functools.cache
        def outputs_of(name: str):
            with self._tape.stop_recording():  # The outputs are constants.
                reference = self._models[name].network
                return reference(features, self._passes.get(name, self._pass))

        return outputs_of

    def classify_from(self, network: Any, forward: Any) -> Callable[..., Any]:
        """Returns `Step.classify_from` for a local network and its forward pass."""

        def classify_from(name: str, features: Any):
            if name == method_lib.LOCAL:
                again = dataclasses.replace(
                    forward,
                    update_statistics=False,
                    record_activations=False,
                    keep_loss=None,
                )
                return network.classify_from(features, again)
            reference = self._models[name].network
            own = self._passes.get(name, self._pass)
            return reference.classify_from(features, own)

        return classify_from
