"""A run in words: the lines before its first round, its plot's title, its result."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Container, Mapping
from typing import Any, Optional

from tff_reg import files, scores, tables
from tff_reg.experiment.config import identity
from tff_reg.experiment.config.run_config import SHORTHAND, ResolvedConfig, RunConfig
from tff_reg.experiment.rounds import directory, metrics, privacy, progress
from tff_reg.methods import catalogue, memories, method as method_lib
from tff_reg.settings import HEADER, as_text, settings_of, tagged

_WIDTH = 88
_BYTES_OF_A_WEIGHT = 4  # float32, as all models that tasks make.
# Settings that a list of settings has even with their defaults.
_MAIN = (
    *("task", "partition", "model", "num_clients", "clients_per_round"),
    *("total_rounds", "local_epochs", "batch_size", "client_learning_rate"),
)
_SETTINGS = {
    each.name: each.default
    for each in settings_of(RunConfig)
    if identity.identity({each.name: None}) and SHORTHAND not in each.tags
}
# The defaults of the settings on which the numbers of a run depend.
DEFAULTS = {name: _SETTINGS[name] for name in (*_MAIN, *_SETTINGS)}
# Settings that the other lines of a header say.
_IN_HEADER = (*_MAIN, *tagged(RunConfig, HEADER))


def header(
    config: ResolvedConfig,
    *,
    num_train: int,
    num_test: int,
    num_weights: int,
    assumed: Optional[str] = None,
    sample_fn: Optional[str] = None,
) -> list[str]:
    """Describes a run before it starts, in lines of at most 88 characters.

    `num_weights` is the number of trainable parameters; `assumed` says how a Keras
    model's outputs are taken; `sample_fn` is the name of a function that samples the
    clients. Some items of the list have a line break.
    """
    values = config.dump()
    hyperparameters = ", ".join(
        f"{name if '+' in config.process else name.split('_', 1)[1]} {as_text(value)}"
        for name, value in config.hyperparameters.items()
    )
    if hyperparameters:
        hyperparameters = f" ({hyperparameters})"
    tested = metrics.tested(values)
    epochs = progress.count(config.local_epochs, "local epoch")
    if config.local_steps is not None:
        epochs = progress.count(config.local_steps, "local step")
    lines = {
        "process": f"{config.process}{hyperparameters}",
        "task": (
            f"{config.task}, {num_train:,} training and {num_test:,} {tested} examples,"
            f" {partition(config)}"
        ),
        "model": f"{_network(config)}, {num_weights:,} weights",
        "clients": (
            f"{_cohort(config, sample_fn)}, {epochs}, batches of {config.batch_size},"
            f" {_optimizer(config)}learning rate {config.client_learning_rate:g}"
        ),
        "memory": _memory(config, num_weights),
        "server": next(filter(None, (m.server_step for m in config.methods)), ""),
        "settings": "; ".join(
            [*filter(None, [listed(values, _IN_HEADER)]), _source(config)]
        ),
        "rounds": f"{config.total_rounds}, seed {config.seed}",
        "output": config.output_dir or "none: output_dir=DIR keeps the run",
    }
    if assumed is not None:
        lines["model"] += f"; {assumed}"
    return [
        textwrap.fill(
            f"{name:8} {text}",
            _WIDTH,
            subsequent_indent=" " * 9,
            break_on_hyphens=False,
        )
        for name, text in lines.items()
        if text
    ]


def listed(values: Mapping[str, Any], without: Container[str] = ()) -> str:
    """Lists settings on which numbers depend as flags; most defaults are left out."""
    values = {**values, **identity.target(values)}
    return ", ".join(
        f"{name}={_shortened(values[name])}"
        for name, default in DEFAULTS.items()
        if name not in without
        and values.get(name) not in (None, [])
        and (name in _MAIN or values[name] != default)
    )


def _shortened(value: Any) -> str:
    """Returns a value as text; of long lists, as of one rate a round, the beginning."""
    is_long = isinstance(value, (list, tuple)) and len(value) > 4
    return f"{as_text(value[:3])},... ({len(value)})" if is_long else as_text(value)


def _source(config: ResolvedConfig) -> str:
    return f"settings that are not given come from {config.settings_from}"


def _network(config: ResolvedConfig) -> str:
    if config.model is None:
        return "the given Keras model"
    norm = "no norm" if config.norm == "none" else f"{config.norm} norm"
    return f"{config.model} ({norm})"


def partition(config: ResolvedConfig) -> str:
    """Returns the partition with its strength, such as `dirichlet_balanced(0.3)`."""
    if config.partition is None:
        return "the given clients"
    said = []
    if config.concentration is not None:
        said.append(f"{config.concentration:g}")
    if config.classes_per_client is not None:
        said.append(f"{config.classes_per_client} classes each")
    return f"{config.partition}({', '.join(said)})" if said else config.partition


def _cohort(config: ResolvedConfig, sample_fn: Optional[str] = None) -> str:
    if config.process in catalogue.POOLED:
        return f"one in place of {config.num_clients}, with all their examples"
    if sample_fn is not None:
        return f"of {config.num_clients}, by {sample_fn}"
    if config.clients_per_round == config.num_clients:
        return f"all {progress.count(config.num_clients, 'client')} every round"
    some = f"{config.clients_per_round} of {config.num_clients} clients a round"
    return f"about {some}" if config.client_sampling == "independent" else some


def _optimizer(config: ResolvedConfig) -> str:
    return "" if config.client_optimizer == "sgd" else f"{config.client_optimizer}, "


def _memory(config: ResolvedConfig, num_weights: int) -> str:
    """Describes the size of what clients keep between rounds; empty for nothing."""
    kept = {
        key
        for method in config.methods
        for key in memories.keys(method.name, method.client_memory).values()
    }
    if not kept:
        personal = any(map(method_lib.keeps_at_clients, config.methods))
        return "each client's own weights, kept between its rounds" if personal else ""
    # Adam's state are two numbers for each weight.
    copies = len(kept) + (
        config.keep_client_optimizer and config.client_optimizer in ("adam", "adamw")
    )
    megabytes = copies * num_weights * _BYTES_OF_A_WEIGHT / 1e6
    return (
        f"{megabytes:.3g} MB per client, {megabytes * config.num_clients:,.3g} MB for"
        f" all, kept in {config.output_dir or 'memory'}"
    )


def resumption(config: ResolvedConfig) -> str:
    """Describes the files that a run keeps if it stops now, and how to resume it."""
    kept = directory.RunDirectory(config.output_dir).checkpoints.all()
    if not kept:
        return f"no round is kept in {config.output_dir} yet"
    how = "the same command"
    if config.overwrite:
        how += " without overwrite"
    return (
        f"{kept[-1].round_num} of {config.total_rounds} rounds are kept in"
        f" {config.output_dir}, and {how} goes on from there"
    )


def troubles(counts: Mapping[str, Any]) -> str:
    """Describes rejected clients, idle rounds and ends that diverged."""
    rejected, idle = counts["rejected_clients"], counts["rounds_without_training"]
    not_finite = counts.get("not_finite", not counts.get("ends_finite", True))
    phrases = []
    if rejected:
        updates = progress.count(rejected, "update")
        phrases.append(f"{updates} of clients not finite and left out")
    if idle:
        phrases.append(f"{progress.count(idle, 'round')} in which nobody trained")
    if not_finite:
        phrases.append("the last round's numbers not finite")
    if grown := counts.get("loss_growth"):
        phrases.append(f"a loss that grew {grown:.2g}-fold")
    return ", ".join(phrases)


def result(summary: Mapping[str, Any], path: files.PathLike) -> list[str]:
    """Describes the result of a finished run and its files."""
    score = scores.of(summary)

    def shown(kind: str) -> str:
        return score.text(summary[f"{kind}_{score.name}"])

    rounds = progress.count(summary["rounds"], "round")
    text = f"{rounds} done"
    if summary[f"final_{score.name}"] is not None:
        tested = metrics.tested(summary).capitalize()
        text = f"{tested} {score.name} {shown('final')} after {rounds}"
    if summary[f"best_{score.name}"] is not None:
        text += f" (best {shown('best')} after round {summary['best_round']})"
    if summary[f"all_clients_{score.name}"] is not None:
        text += (
            f", of the mean of all clients' last models {shown('all_clients')}"
            f" (best {shown('best_all_clients')})"
        )
    text += (
        f", {progress.duration(summary['training_seconds'])} of training, the median"
        f" round {summary['median_round_seconds']:.2f} s."
    )
    trouble = troubles(summary)
    guarantee = summary.get("privacy")
    names = sorted(
        each.name
        for each in pathlib.Path(path).glob("[a-z]*")
        if not each.name.startswith("events")
    )
    return [
        text,
        *_subsets(summary.get("accuracy_of_subsets", {})),
        *([f"{trouble[0].upper()}{trouble[1:]}."] if trouble else []),
        *(privacy.in_words(guarantee) if guarantee else ()),
        f"In {path}: {', '.join(names)}.",
    ]


def _subsets(accuracies: Mapping[str, Optional[float]]) -> list[str]:
    """Returns the table of the accuracies of subsets of the test examples."""
    shown = {n: f"{100 * a:.2f}" for n, a in accuracies.items() if a is not None}
    if not shown:
        return []
    columns = {"test examples": [*shown], "accuracy (%)": [*shown.values()]}
    return ["", *tables.to_markdown(columns), ""]
