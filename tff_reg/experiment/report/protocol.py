"""The protocol of compared runs: common settings, differences, own settings.

Methods are compared under one protocol: the same data, rounds, clients and optimisers
for all. A method's own settings are its hyperparameters and the settings that it
requires, such as FedAdam's server optimiser.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import Any

from tff_reg.data import digests
from tff_reg.experiment.config import identity, run_config as config_lib
from tff_reg.experiment.rounds import description
from tff_reg.methods import catalogue
from tff_reg.settings import ASIDE, as_text, ignored_settings, settings_of, tagged

_WIDTH = 88
_NO_PART = tagged(config_lib.RunConfig, ASIDE)
_SETTINGS = [name for name in description.DEFAULTS if name not in _NO_PART]
# Names in a config of the names of the user's own functions.
_RECORDED = ("sample_fn", "client_dataset_fn")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The settings of compared runs, sorted into common, own and different ones.

    Attributes:
      common: The common settings.
      source: The source of settings that are not given; empty if runs have several.
      own: Each group's own settings, in words, by its name.
      differences: Other differences, seeds and unknown settings included: values by
        group, by setting. Empty under one protocol.
    """

    common: Mapping[str, Any]
    source: str
    own: Mapping[str, str]
    differences: Mapping[str, Mapping[str, Any]]

    @property
    def is_one(self) -> bool:
        """Whether the runs differ only in the methods' own settings."""
        return not self.differences

    def in_short(self) -> str:
        """Returns the common settings and the differences in sentences."""
        named = [f"{n}={self.common[n]}" for n in _RECORDED if self.common.get(n)]
        shared = ", ".join(filter(None, [description.listed(self.common), *named]))
        texts = [f"Protocol: {shared}."] if shared else []
        if self.source:
            texts.append(f"Settings that are not given come from {self.source}.")
        if self.differences:
            differing = "; ".join(map(self._difference, self.differences))
            texts.append(f"They differ in {differing}.")
        return " ".join(texts)

    def lines(self) -> list[str]:
        """Returns the whole protocol in lines of at most 88 characters."""
        texts = [self.in_short()]
        texts += [f"- {name}'s own: {text}" for name, text in self.own.items() if text]
        return [*itertools.chain(*map(_wrapped, texts))]

    def _difference(self, name: str) -> str:
        names: dict[str, list[str]] = {}
        for group, value in self.differences[name].items():
            shown = "none" if value is None else as_text(value)
            names.setdefault(shown, []).append(group)
        return f"{name}: " + ", ".join(
            f"{value} ({', '.join(groups)})" for value, groups in names.items()
        )


def _wrapped(text: str) -> list[str]:
    indent = "  " if text.startswith("-") else ""
    options = {"subsequent_indent": indent, "break_on_hyphens": False}
    return textwrap.wrap(text, _WIDTH, **options)


def of(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], chosen: Container[str] = ()
) -> Protocol:
    """Returns the protocol of runs."""
    firsts = {
        name: {**first, **identity.target(first)}
        for name, (first, *_) in groups.items()
    }
    owned = {name: _names_of_methods(config) for name, config in firsts.items()}
    ignored = {
        group: ignored_settings(settings_of(config_lib.RunConfig), config)
        for group, config in firsts.items()
    }
    common, differences = {}, {}
    for name in (*_SETTINGS, *_RECORDED):
        values = {g: config[name] for g, config in firsts.items() if name in config}
        free = {
            group: value
            for group, value in values.items()
            if name not in owned[group] and name not in ignored[group]
        }
        distinct = {as_text(v): v for v in (free or values).values()}
        if len(distinct) == 1:
            (common[name],) = distinct.values()
        elif free and name not in chosen:
            differences[name] = values
    differences.update(_of_data(groups))
    seeds = {
        group: sorted({int(config["seed"]) for config in configs})
        for group, configs in groups.items()
    }
    if len(set(map(as_text, seeds.values()))) > 1:
        differences["seeds"] = seeds
    unknown = {
        group: ", ".join(name for name in _SETTINGS if name not in config)
        for group, config in firsts.items()
        if not set(_SETTINGS) <= config.keys()
    }
    if unknown:  # They may differ.
        differences["settings that are not recorded"] = unknown
    if common.get("sample_fn"):
        common.pop("clients_per_round", None)
    sources = {config.get("settings_from", "") for config in firsts.values()}
    return Protocol(
        common=common,
        source=sources.pop() if len(sources) == 1 else "",
        own={
            group: ", ".join(
                f"{name}={as_text(config[name])}"
                for name in owned[group]
                if config.get(name) is not None and config[name] != common.get(name)
            )
            for group, config in firsts.items()
        },
        differences=differences,
    )


def lines(
    columns: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    chosen: Container[str] = (),
) -> list[str]:
    """Returns the protocol of runs under one setting or several, by heading and group.

    Further lines have what differs between settings and their headings do not name.
    """
    found = {heading: of(groups, chosen) for heading, groups in columns.items()}
    first, *others = found.values()
    same = {
        name: value
        for name, value in first.common.items()
        if all(each.common.get(name) == value for each in others)
    }
    texts = dataclasses.replace(first, common=same).lines()
    for heading, each in found.items():
        named = [part.partition("=")[0] for part in heading.split(", ")]
        text = description.listed(each.common, [*same, *named])
        texts += _wrapped(f"- {heading}: {text}") if text else []
    return texts


def _of_data(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """Returns the digests that differ between runs of the same seed."""
    found = {}
    for name, words in digests.WORDS.items():
        of_seed: dict[Any, dict[str, str]] = {}
        for group, configs in groups.items():
            for config in configs:
                if name in config:
                    of_seed.setdefault(config["seed"], {})[group] = str(config[name])[
                        :8
                    ]
        differing = [each for each in of_seed.values() if len(set(each.values())) > 1]
        if differing:
            found[words] = differing[0]
    return found


def _names_of_methods(config: Mapping[str, Any]) -> dict[str, None]:
    """Returns a run's hyperparameters and the settings that its methods require."""
    process = config.get("process", "fedavg")
    try:
        names = [
            *catalogue.required_settings(process, config),
            *(each.flag for each in catalogue.hyperparameters(process)),
        ]
    except ValueError:  # A method's package is not installed here.
        names = []
    return dict.fromkeys(names)


def asked(common: config_lib.RunConfig) -> config_lib.RunConfig:
    """Returns the request for compared runs, with one protocol for all of them."""
    if common.recipe is not None or common.settings_of is not None:
        return common
    return dataclasses.replace(common, settings_of=config_lib.TASK)
