"""Each method's view of the client during its round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_reg.methods import memories, method as method_lib
from tff_reg.training import data_forms, hooks as hooks_lib, local_training
from tff_reg.training.client_states import Progress, Visit


class Views:
    """Makes the `Local` of each method."""

    def __init__(
        self,
        training: local_training.LocalTraining,
        is_uniform: bool,
        variables: Sequence[Any],
        fixed: dict[str, Any],
        hooks: hooks_lib.Hooks,
    ):
        self._training, self._hooks = training, hooks
        self._is_uniform = is_uniform
        self._variables, self._fixed = variables, fixed

    def of(
        self,
        visit: Visit,
        progress: Progress,
        is_last: bool = False,
        kept: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, method_lib.Local]:
        """Makes the `Local` of each method at one point of the training."""
        dtype = self._variables[0].dtype
        size = tf.cast(progress.relative_size, dtype)
        population, steps = self._training.population, progress.num_steps
        if population and population.local_steps:
            steps = tf.constant(population.local_steps, dtype)
        known: dict[str, Any] = {}
        if is_last:
            count = 1 if self._is_uniform else progress.weighed
            known["weight"] = tf.cast(count, dtype)
        if is_last and "learning_rate" in visit.hparams:
            rate = tf.cast(visit.hparams["learning_rate"], dtype)
            known["step_size"] = tf.cast(steps, dtype) * rate
        has_rate = "learning_rate" in visit.decayed
        if is_last and progress.gradient_sum and has_rate:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            scaled = [decayed * total for total in progress.gradient_sum]
            known["scaled_gradient_sum"] = scaled
        if is_last and progress.uncorrected_sum and has_rate:
            decayed = tf.cast(visit.decayed["learning_rate"], dtype)
            known["uncorrected"] = [decayed * t for t in progress.uncorrected_sum]
        first = tf.constant(0)
        if isinstance(self._training.data_form, data_forms.WholeClientData):
            known["total_steps"] = progress.total_steps
            known["epoch"] = progress.num_steps // progress.epoch_steps
            first = known["epoch"] * progress.epoch_steps
        known["begins_epoch"] = tf.equal(progress.num_steps, first)
        found: dict[str, method_lib.Local] = {}
        for method in self._training.methods:
            name = method.name
            local = method_lib.Local(
                weights=self._variables,
                start=visit.start,
                global_weights=tuple(visit.received.trainable),
                memory=memories.own(name, method.client_memory, visit.client),
                server_memory=memories.own(name, method.server_memory, visit.server),
                state=progress.kept.get(name, ()),
                kept=memories.frozen((kept or {}).get(name, {})),
                round_num=visit.round_num,
                class_counts=visit.class_counts,
                relative_size=size,
                relative_weight=tf.ones([], dtype) if self._is_uniform else size,
                num_steps=progress.num_steps,
                num_examples=progress.num_examples,
                hparams=visit.decayed,
                local_steps=steps,
                has_ended=is_last,
                **self._fixed,
                **known,
            )
            found[name] = self._hooks.observe(method, local)
        return found
