"""The protocol of compared runs: common settings, differences, own settings.

Methods are compared under one protocol: the same data, rounds, clients and optimisers
for all. A method's own settings are its strengths and the settings that it requires,
such as FedAdam's server optimiser.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import Any

from tff_reg.data import digests
from tff_reg.experiment.config import identity as identity_lib, run_config as config_lib
from tff_reg.experiment.rounds import description
from tff_reg.methods import catalogue
from tff_reg.settings import as_text, settings_of

_WIDTH = 88
# Settings that name a run, or only add evaluations and files.
_NO_PART = ("process", "seed", "keep_best", "averages_all_clients")
_SETTINGS = tuple(
    each.name
    for each in settings_of(config_lib.RunConfig)
    if identity_lib.identity({each.name: None})
    and config_lib.SHORTHAND not in each.tags
    and each.name not in _NO_PART
)
# Names in a config of the names of the user's own functions,
_RECORDED = ("sample_fn", "client_dataset_fn")
# and of digests, in words.
_DIGESTS = {
    digests.DATA: "data, or their split into clients",
    identity_lib.KERAS_MODEL: "Keras model, or its initial weights",
}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The settings of compared runs, sorted into common, own and different ones.

    Attributes:
      shared: The common settings, in words.
      source: The source of settings that are not given; empty if runs have several.
      own: Each group's own settings, in words, by its name.
      differences: Other differences, seeds included: values by group, by setting. Empty
        under one protocol.
      unknown: Settings that a group's config does not record, by the group's name.
        Empty under one protocol, since an unknown setting may differ.
    """

    shared: str
    source: str
    own: Mapping[str, str]
    differences: Mapping[str, Mapping[str, Any]]
    unknown: Mapping[str, Sequence[str]]

    @property
    def is_one(self) -> bool:
        """Whether the runs differ only in the methods' own settings."""
        return not self.differences and not self.unknown

    def in_short(self) -> str:
        """Returns the common settings and the differences in sentences."""
        texts = [f"Protocol: {self.shared}."] if self.shared else []
        if self.source:
            texts.append(f"Settings that are not given come from {self.source}.")
        if self.differences:
            differing = "; ".join(map(self._difference, self.differences))
            texts.append(f"They differ in {differing}.")
        if self.unknown:
            missing = "; ".join(
                f"{', '.join(names[:3])}{' and others' * (len(names) > 3)} ({group})"
                for group, names in self.unknown.items()
            )
            texts.append(f"Their settings are not known: {missing}.")
        return " ".join(texts)

    def lines(self) -> list[str]:
        """Returns the whole protocol in lines of at most 88 characters."""
        texts = [self.in_short()]
        texts += [f"- {name}'s own: {text}" for name, text in self.own.items() if text]
        return [
            line
            for text in texts
            for line in textwrap.wrap(
                text,
                _WIDTH,
                subsequent_indent="  " if text.startswith("-") else "",
                break_on_hyphens=False,
            )
        ]

    def _difference(self, name: str) -> str:
        names: dict[str, list[str]] = {}
        for group, value in self.differences[name].items():
            shown = "none" if value is None else as_text(value)
            names.setdefault(shown, []).append(group)
        return f"{name}: " + ", ".join(
            f"{value} ({', '.join(groups)})" for value, groups in names.items()
        )


def of(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], chosen: Container[str] = ()
) -> Protocol:
    """Returns the protocol of runs."""
    firsts = {name: configs[0] for name, configs in groups.items()}
    owned = {name: _required_by_methods(config) for name, config in firsts.items()}
    common, differences = {}, {}
    for name in _SETTINGS:
        values = {
            group: config[name] for group, config in firsts.items() if name in config
        }
        of_protocol = {g: v for g, v in values.items() if name not in owned[g]}
        distinct = [*map(as_text, (of_protocol or values).values())]
        if len(set(distinct)) > 1 and of_protocol and name not in chosen:
            differences[name] = values
        elif len(set(distinct)) == 1:
            common[name] = next(iter((of_protocol or values).values()))
    for name in _RECORDED:
        recorded = {group: config.get(name) for group, config in firsts.items()}
        if len(set(recorded.values())) > 1:
            differences[name] = recorded
        else:
            common[name] = next(iter(recorded.values()), None)
    differences.update(_of_data(groups))
    seeds = {
        group: sorted({int(config["seed"]) for config in configs})
        for group, configs in groups.items()
    }
    if len(set(map(as_text, seeds.values()))) > 1:
        differences["seeds"] = seeds
    unknown = {
        group: [name for name in _SETTINGS if name not in config]
        for group, config in firsts.items()
    }
    sources = {config.get("settings_from", "") for config in firsts.values()}
    return Protocol(
        shared=description.protocol(common),
        source=sources.pop() if len(sources) == 1 else "",
        own={
            group: _own(config, owned[group], common)
            for group, config in firsts.items()
        },
        differences=differences,
        unknown={group: names for group, names in unknown.items() if names},
    )


def _of_data(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """Returns the digests that differ between runs of the same seed."""
    found = {}
    for name, words in _DIGESTS.items():
        of_seed: dict[Any, dict[str, str]] = {}
        for group, configs in groups.items():
            for config in configs:
                if name in config:
                    of_seed.setdefault(config["seed"], {})[group] = config[name][:8]
        differing = [each for each in of_seed.values() if len(set(each.values())) > 1]
        if differing:
            found[words] = differing[0]
    return found


def _required_by_methods(config: Mapping[str, Any]) -> set[str]:
    """Returns the names of the settings that a run's methods require."""
    try:
        return set(catalogue.required_settings(config.get("process", "fedavg"), config))
    except ValueError:  # A method's package is not installed here.
        return set()


def _own(
    config: Mapping[str, Any], required: set[str], common: Mapping[str, Any]
) -> str:
    values = {
        name: config[name]
        for name in _SETTINGS
        if name in required & config.keys() and config[name] != common.get(name)
    }
    try:
        strengths = catalogue.strengths(config.get("process", "fedavg"))
        values.update(
            (each.flag, config[each.flag]) for each in strengths if each.flag in config
        )
    except ValueError:
        pass
    return ", ".join(
        f"{name}={as_text(value)}"
        for name, value in values.items()
        if value is not None
    )


def asked(common: config_lib.RunConfig) -> config_lib.RunConfig:
    """Returns the request for compared runs, with one protocol for all of them."""
    if common.recipe is not None or common.settings_of is not None:
        return common
    return dataclasses.replace(common, settings_of=config_lib.TASK)
