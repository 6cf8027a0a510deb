"""The methods by name, with the settings of the papers that introduced them here.

This module needs no TensorFlow: flags are made and checked from it.

A process name is a sum of methods, such as `fedprox` or `fedalign+man`. `fedavg`
stands for no addition at all, so `fedavg+man` is `man`.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from tff_reg.corrections import correction as correction_lib
from tff_reg.corrections import feddc
from tff_reg.corrections import feddyn
from tff_reg.corrections import fedspeed
from tff_reg.corrections import scaffold
from tff_reg.gradient_rules import asam
from tff_reg.gradient_rules import gradient_rule as gradient_rule_lib
from tff_reg.gradient_rules import sam
from tff_reg.regularizers import fedalign
from tff_reg.regularizers import fedgkd
from tff_reg.regularizers import fedmlb
from tff_reg.regularizers import fedntd
from tff_reg.regularizers import fedprox
from tff_reg.regularizers import fitnet
from tff_reg.regularizers import freeze
from tff_reg.regularizers import gradaug
from tff_reg.regularizers import kd
from tff_reg.regularizers import man
from tff_reg.regularizers import mixup
from tff_reg.regularizers import moon
from tff_reg.regularizers import regularizer as regularizer_lib
from tff_reg.regularizers import stochdepth
from tff_reg.regularizers import univarfl


# FedAlign paper, Section 4 and Table 2; Nesterov, weight decay and the batch size
# from the authors' code.
_FEDALIGN_PAPER = {
    "num_clients": 16,
    "clients_per_round": 16,
    "total_rounds": 25,
    "local_epochs": 20,
    "batch_size": 64,
    "partition": "dirichlet_unbalanced",
    "concentration": 0.5,
    "client_learning_rate": 0.01,
    "client_momentum": 0.9,
    "client_nesterov": True,
    "client_weight_decay": 1e-4,
}
# MAN paper, Section 5; clipping and weight decay from the authors' code.
_MAN_PAPER = {
    "num_clients": 100,
    "clients_per_round": 10,
    "total_rounds": 500,
    "local_epochs": 5,
    "batch_size": 50,
    "partition": "dirichlet_balanced",
    "concentration": 0.3,
    "client_learning_rate": 0.1,
    "client_weight_decay": 1e-3,
    "max_gradient_norm": 10.0,
    "learning_rate_schedule": "exponential",
    "learning_rate_decay": 0.998,
}
# FedMLB paper, Section 5; the clipping norm from the authors' code.
_FEDMLB_PAPER = {**_MAN_PAPER, "clients_per_round": 5, "total_rounds": 1000}
# UniVarFL paper, Section 6 (STL-10; 60 rounds on CIFAR-100 and PACS). It gives no batch
# size.
_UNIVARFL_PAPER = {
    **_FEDALIGN_PAPER,
    "num_clients": 10,
    "clients_per_round": 10,
    "total_rounds": 100,
    "local_epochs": 10,
    "concentration": 0.01,
    "client_nesterov": False,
    "client_weight_decay": 1e-5,
}


class Method(NamedTuple):
    """A method that a process name may hold.

    Attributes:
      summary: One line.
      part: The class of its regulariser, gradient rule or correction; None for FedAvg
        and for server optimisers.
      settings: The settings of its paper, by their names in `RunConfig`.
      overrides: Those settings that it brings into every sum, likewise.
    """

    summary: str
    part: Optional[type]
    settings: Mapping[str, Any]
    overrides: Mapping[str, Any] = {}

    @property
    def regularizer(self) -> Optional[type[regularizer_lib.Regularizer]]:
        """Its regulariser class, or None."""
        return self._part_of(regularizer_lib.Regularizer)

    @property
    def gradient_rule(self) -> Optional[type[gradient_rule_lib.GradientRule]]:
        """The class of its gradient rule, or None."""
        return self._part_of(gradient_rule_lib.GradientRule)

    @property
    def correction(self) -> Optional[type[correction_lib.Correction]]:
        """The class of its correction, or None."""
        return self._part_of(correction_lib.Correction)

    @property
    def is_server(self) -> bool:
        """Whether it is a server optimiser."""
        return "server_optimizer" in self.overrides

    def _part_of(self, kind: type) -> Optional[type]:
        return self.part if self.part and issubclass(self.part, kind) else None


_UNIFORM = {"client_weighting": "uniform"}
# As FedDyn's, FedDC's and FedSpeed's papers report it.
_WITH_ALL_CLIENTS = {**_UNIFORM, "averages_all_clients": True}

# A new method is one line here.
_METHODS: Mapping[str, Method] = {
    "fedavg": Method("Federated averaging", None, _FEDALIGN_PAPER),
    "fedprox": Method("Proximal term", fedprox.FedProx, _FEDALIGN_PAPER),
    "fedalign": Method(
        "Lipschitz alignment of the last block",
        fedalign.FedAlign,
        # Only FedAlign's own training clips gradients in the authors' code.
        {**_FEDALIGN_PAPER, "max_gradient_norm": 10.0},
    ),
    "moon": Method(
        "Features nearer to the global model's than to the previous ones",
        moon.MOON,
        _FEDALIGN_PAPER,
        {"projector": "moon"},
    ),
    "mixup": Method("Mixed examples", mixup.Mixup, _FEDALIGN_PAPER),
    "stochdepth": Method(
        "Residual branches left out at random", stochdepth.StochDepth, _FEDALIGN_PAPER
    ),
    "gradaug": Method(
        "Narrower sub-networks on resized images", gradaug.GradAug, _FEDALIGN_PAPER
    ),
    "man": Method("Minimal activation norms", man.MAN, _MAN_PAPER),
    "fedmlb": Method(
        "Hybrid paths through the global model", fedmlb.FedMLB, _FEDMLB_PAPER
    ),
    "kd": Method("Distillation of the global model", kd.KD, _FEDMLB_PAPER),
    "fitnet": Method("Features near the global model's", fitnet.FitNet, _FEDMLB_PAPER),
    "fedntd": Method("Not-true distillation", fedntd.FedNTD, _FEDMLB_PAPER),
    "fedgkd": Method(
        "Distillation of the last global models' mean", fedgkd.FedGKD, _FEDMLB_PAPER
    ),
    "univarfl": Method(
        "Uniform features, varied predictions",
        univarfl.UniVarFL,
        _UNIVARFL_PAPER,
        {"projector": "univarfl"},
    ),
    "freeze": Method(
        "A random classifier, never trained", freeze.Freeze, _UNIVARFL_PAPER
    ),
    "fedsam": Method("Sharpness-aware gradients", sam.FedSAM, _MAN_PAPER),
    "fedasam": Method("Adaptive sharpness-aware gradients", asam.FedASAM, _MAN_PAPER),
    "scaffold": Method(
        "Control variates",
        scaffold.Scaffold,
        _MAN_PAPER,
        {**_UNIFORM, "same_local_steps": True},
    ),
    "feddyn": Method(
        "Dynamic regularisation", feddyn.FedDyn, _MAN_PAPER, _WITH_ALL_CLIENTS
    ),
    "feddc": Method(
        "Drift decoupling and correction", feddc.FedDC, _MAN_PAPER, _WITH_ALL_CLIENTS
    ),
    "fedspeed": Method(
        "Dynamic regularisation with a gradient from higher up",
        fedspeed.FedSpeed,
        _MAN_PAPER,
        _WITH_ALL_CLIENTS,
    ),
    "fedavgm": Method(
        "Server momentum",
        None,
        _FEDMLB_PAPER,
        # The FedMLB paper chooses among 0.4, 0.6 and 0.8.
        {"server_optimizer": "sgd", "server_momentum": 0.6},
    ),
    "fedadam": Method(
        "Adam at the server",
        None,
        _FEDMLB_PAPER,
        {
            "server_optimizer": "adam",
            "server_learning_rate": 0.01,
            "server_epsilon": 1e-3,
            "client_learning_rate": 0.01,
        },
    ),
}


class UnknownProcessError(ValueError):
    """A process name holds a method that does not exist, or makes no sense."""


class StrengthField(NamedTuple):
    """A strength of a method that is a flag: `--<method>_<field>`.

    Attributes:
      method: The method's name.
      field: The field's name in the method's dataclass.
      type: Its Python type (bool, int, float or str).
      default: Its default.
      help: What it is.
    """

    method: str
    field: str
    type: type
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return f"{self.method}_{self.field}"


def names() -> tuple[str, ...]:
    """The names of all methods; any sum of them is a process name."""
    return tuple(_METHODS)


def method(name: str) -> Method:
    """The method of a name that `names` lists."""
    return _METHODS[name]


def parse(process: str) -> tuple[str, ...]:
    """Takes a process name apart.

    Args:
      process: Method names joined by '+'; capitals do not matter.

    Returns:
      The names of its methods without 'fedavg', which adds nothing, in the order of
      `names`; empty for 'fedavg' itself.

    Raises:
      UnknownProcessError: If a method does not exist or is named twice, or the sum
        makes no sense.
    """
    parts = [part.strip() for part in process.lower().split("+")]
    for part in parts:
        if part not in _METHODS:
            near = difflib.get_close_matches(part, _METHODS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UnknownProcessError(
                f"Unknown process {part!r}.{hint} Choose one or a sum (a+b) of: "
                f"{', '.join(_METHODS)}."
            )
        if parts.count(part) > 1:
            raise UnknownProcessError(
                f"The process {process!r} names {part!r} twice: name it once."
            )
    chosen = tuple(name for name in _METHODS if name in parts and name != "fedavg")
    try:
        _check_sum(chosen)
    except regularizer_lib.IncompatibleMethodsError as error:
        raise UnknownProcessError(str(error)) from None
    return chosen


def _check_sum(chosen: Sequence[str]) -> None:
    """Raises an `IncompatibleMethodsError` if the methods cannot be added up."""
    methods = {name: _METHODS[name] for name in chosen}
    regularizer_lib.check_sum([m.regularizer for m in methods.values() if m.regularizer])
    kinds = {
        "correct the drift of clients": [n for n, m in methods.items() if m.correction],
        "say how the gradient is taken": [
            n
            for n, m in methods.items()
            if m.gradient_rule or (m.correction and m.correction.has_own_gradient_rule)
        ],
        "say how the server takes its step": [
            n
            for n, m in methods.items()
            if m.is_server or (m.correction and m.correction.added_to_model)
        ],
    }
    for what, those in kinds.items():
        if len(those) > 1:
            raise regularizer_lib.IncompatibleMethodsError(
                f"{' and '.join(those)} both {what}: leave one of them out."
            )


def settings(process: str) -> dict[str, Any]:
    """The paper's settings for a process.

    Args:
      process: A process name.

    Returns:
      By name what the paper of the sum's first method gives, FedAvg's for 'fedavg',
      with what every method of the sum brings along; where two bring the same setting,
      the first.

    Raises:
      UnknownProcessError: If the name is not one.
    """
    parse(process)
    parts = [part.strip() for part in process.lower().split("+")]
    in_order = [_METHODS[part] for part in parts if part != "fedavg"]
    if not in_order:
        return dict(_METHODS["fedavg"].settings)
    brought = {}
    for method_ in in_order:
        brought = {**method_.overrides, **brought}
    return {**in_order[0].settings, **brought}


def strength_fields(process: Optional[str] = None) -> list[StrengthField]:
    """The strengths that are flags.

    Args:
      process: A process name, or None for all methods.

    Returns:
      One entry a field of each method's dataclass.

    Raises:
      UnknownProcessError: If the name is not one.
    """
    chosen = names() if process is None else parse(process)
    result = []
    for name in chosen:
        part = _METHODS[name].part
        if part is None or not dataclasses.fields(part):
            continue
        texts = _attribute_texts(part.__doc__)
        for field in dataclasses.fields(part):
            result.append(
                StrengthField(
                    name,
                    field.name,
                    type(field.default),
                    field.default,
                    texts[field.name],
                )
            )
    return result


class Parts(NamedTuple):
    """What the methods of a sum bring to the local training.

    Attributes:
      regularizers: The regularisers.
      gradient_rule: The gradient rule.
      correction: The correction, or None.
    """

    regularizers: tuple[regularizer_lib.Regularizer, ...]
    gradient_rule: gradient_rule_lib.GradientRule
    correction: Optional[correction_lib.Correction]


def build_parts(process: str, strengths: Mapping[str, Any]) -> Parts:
    """Makes the parts of a process.

    Args:
      process: A process name.
      strengths: Values by flag name, such as `fedprox_strength`; the others keep
        their defaults.

    Returns:
      The parts.

    Raises:
      UnknownProcessError: If the name is not one.
      ValueError: If a strength belongs to no method of the sum or is out of range.
    """
    fields = {field.flag: field for field in strength_fields(process)}
    for flag in strengths:
        if flag not in fields:
            raise ValueError(
                f"{flag} is not a setting of the process {process!r}"
                + (f", which has {', '.join(fields)}." if fields else ".")
            )
    regularizers, rule, correction = [], gradient_rule_lib.GradientRule(), None
    for name in parse(process):
        method_ = _METHODS[name]
        own = {
            fields[flag].field: value
            for flag, value in strengths.items()
            if fields[flag].method == name
        }
        if method_.regularizer:
            regularizers.append(method_.part(**own))
        elif method_.gradient_rule:
            rule = method_.part(**own)
        elif method_.correction:
            correction = method_.part(**own)
    return Parts(tuple(regularizers), rule, correction)


def _attribute_texts(docstring: str) -> dict[str, str]:
    """The texts of a docstring's 'Attributes:' section by attribute."""
    texts, current = {}, None
    lines = docstring.partition("Attributes:\n")[2].splitlines()
    indentation = len(lines[0]) - len(lines[0].lstrip())
    for line in lines:
        if not line.strip():
            break
        if len(line) - len(line.lstrip()) == indentation:
            current, _, text = line.strip().partition(": ")
            texts[current] = text
        else:
            texts[current] += " " + line.strip()
    return texts
