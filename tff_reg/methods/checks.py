"""Checks of methods against one another and against a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_reg import models
from tff_reg.lazy import tff
from tff_reg.methods import contract, memories, words
from tff_reg.methods.method import Method, overrides

_IN_NETWORK = ("adapt_network", "change_batch", "change_pass", "change_logits")


def exclusive_of(method: Any) -> set[str]:
    """Returns the exclusive roles of a method or a method class."""
    derived = {role for hook, role in words.BY_HOOK.items() if overrides(method, hook)}
    if method.adds_to_model:
        derived.discard(words.SERVER)
    return {*method.exclusive, *derived}


class IncompatibleMethodsError(ValueError):
    """The methods of a combination conflict."""


def check_combination(methods: Sequence[Any]) -> None:
    """Checks that methods, or their classes, can be combined."""
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleMethodsError(
                f"A method may stand in a combination once, but {name} stands there "
                f"{names.count(name)} times."
            )
    for role in words.EXCLUSIVE:
        having = [m.name for m in methods if role in exclusive_of(m)]
        if len(having) > 1:
            raise IncompatibleMethodsError(
                f"{' and '.join(having)} both {role}: leave one of them out."
            )
    weighing = [m.name for m in methods if words.WEIGHTS in exclusive_of(m)]
    mixing = [m.name for m in methods if words.EXAMPLES in exclusive_of(m)]
    for method in methods:
        if weighing and words.UNIFORM_WEIGHTING in method.needs:
            raise IncompatibleMethodsError(
                f"{method.name} needs the plain mean of the clients' models, and"
                f" {weighing[0]} weighs them: leave one of them out."
            )
        if mixing and words.ONE_LABEL in method.needs:
            raise IncompatibleMethodsError(
                f"{method.name} needs one true class per example, and {mixing[0]} gives"
                " each example two: leave one of them out."
            )


def check_memories(methods: Sequence[Method]) -> None:
    """Checks the memories that the methods of a combination declare."""
    seen: dict[Any, Any] = {}
    for method in methods:
        for name in (words.GLOBAL, words.EVALUATED, words.LOCAL):
            if name in method.client_memory:
                raise contract.HookError(
                    f"{method.name}.client_memory: {name!r} is the name of a model"
                    " that terms read: rename the memory."
                )
        for where in ("client_memory", "server_memory"):
            for name, given in getattr(method, where).items():
                memory = memories.declared(given)
                if not memory.is_shared:
                    continue
                first, other = seen.setdefault((where, name), (memory, method.name))
                if memory != first:
                    raise IncompatibleMethodsError(
                        f"{other} and {method.name} share the memory {name!r} with"
                        " other first values, or only one's is sent: declare it by the"
                        " same function."
                    )


def check_model(method: Method, model: tff.learning.models.VariableModel) -> None:
    """Checks that a model supports a method's hooks."""
    if any(overrides(method, what) for what in _IN_NETWORK):
        require_network(method, model)
    if any(overrides(method, what) for what in ("change_batch", "change_logits")):
        require_classifier(method, model)
    if words.ONE_LABEL in method.needs:
        require_classifier(method, model)
    if has_network(model):
        method.check_network(model.network)


def require_network(method: Method, model: tff.learning.models.VariableModel) -> None:
    """Checks that a model shows its network.

    Other TFF models expose only their loss, and count each forward pass.
    """
    if not has_network(model):
        is_own = isinstance(model, models.LearningModel)
        raise contract.NetworkNeededError(
            f"{method.name} looks inside the network: model_fn must return a "
            f"tff_reg.models.LearningModel, but returned {type(model).__name__}"
            f"{' with its own forward_pass' * is_own}. See tff_reg.models.from_keras."
        )


def require_classifier(
    method: Method, model: tff.learning.models.VariableModel
) -> None:
    """Checks that a network, if the model shows it, is a classifier."""
    if has_network(model) and model.network.num_classes is None:
        raise contract.ClassifierNeededError(
            f"{method.name} needs a classifier, one logit per class and integer labels,"
            " but this model has another loss: train it with methods that use weights"
            " and gradients only."
        )


def has_network(model: tff.learning.models.VariableModel) -> bool:
    """Whether methods can use a model's network: a plain `LearningModel`.

    Methods call the network directly and would skip a wrapper or custom `forward_pass`.
    """
    if not isinstance(model, models.LearningModel):
        return False
    return model.has_plain_forward_pass
