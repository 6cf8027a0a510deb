"""A run in words: the lines before its first round, its plot's title, its result."""

from __future__ import annotations

import pathlib
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_reg import files
from tff_reg.experiment.config.run_config import ResolvedConfig
from tff_reg.experiment.rounds import directory, metrics, privacy, progress
from tff_reg.methods import all_clients, memories, method as method_lib
from tff_reg.settings import as_text

_WIDTH = 88
_BYTES_OF_A_WEIGHT = 4  # float32, as all models that tasks make.


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
    strengths = config.strengths
    names = {name: name.split("_", 1)[1] for name in strengths}
    if "+" in config.process:
        names = {name: name for name in strengths}
    chosen = ", ".join(f"{names[name]} {_text(v)}" for name, v in strengths.items())
    tested = "test" if config.validation_share is None else "held-out training"
    examples = f"{num_train:,} training and {num_test:,} {tested} examples"
    if config.synthetic_data:
        examples += " of random pixels"
    rounds = f"{config.total_rounds}, seed {config.seed}"
    if config.scale is not None:
        rounds += f", scale {config.scale}"
    model = f"{_network(config, ', {}')}, {num_weights:,} weights"
    if assumed is not None:
        model += f"; {assumed}"
    if config.projector != "none":
        model += f", {_projector(config)}"
    training = f"{_epochs(config)}, {_batches(config)}"
    if config.same_local_steps:
        training += f", exactly {progress.count(_steps(config, num_train), 'step')}"
    cohort = _cohort(config)
    if sample_fn is not None:
        cohort = _by(sample_fn, config)
    memory = _memory(config, num_weights)
    return [
        _line("process", config.process + (f" ({chosen})" if chosen else "")),
        _line("task", f"{config.task}, {examples}, {_partition(config)}"),
        _line("model", model),
        _line("clients", f"{cohort}, {training}"),
        _line("", _client_optimizer(config)),
        *([_line("memory", memory)] if memory else []),
        _line("server", _server(config)),
        *_aggregation(config),
        _line("rounds", rounds),
        _line("output", config.output_dir or "none: output_dir=DIR keeps the run"),
    ]


def _data(config: Any) -> str:
    text = config.task
    if config.scale is not None:
        text += f" at scale {config.scale}"
    if config.synthetic_data:
        text += " (random images)"
    if config.validation_share is not None:
        text += f", {_text(config.validation_share)} of the training examples held out"
    return text


def _batches(config: Any) -> str:
    text = f"batches of {config.batch_size}"
    return text + (", shorter ones dropped" if config.drop_remainder else "")


def _projector(config: Any) -> str:
    return f"{config.projector} projector before the classifier"


def _network(config: Any, of_norm: str) -> str:
    """Describes the network, with its norm inserted in `of_norm`."""
    if config.model is None:
        return "the given Keras model"
    norm = "no norm" if config.norm == "none" else f"{config.norm} norm"
    return config.model + of_norm.format(norm)


def _line(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name:8} {text}", _WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else as_text(value)


def _partition(config: ResolvedConfig) -> str:
    if config.partition is None:
        return "the given clients"
    if config.concentration is not None:
        return f"{config.partition}({_text(config.concentration)})"
    if config.classes_per_client is not None:
        return f"{config.partition}({config.classes_per_client} classes each)"
    if config.split_file is not None:
        return f"{config.partition} {pathlib.Path(config.split_file).name}"
    return config.partition


def _by(sample_fn: str, config: Any) -> str:
    return f"clients by {sample_fn} of {config.num_clients}"


def _cohort(config: Any) -> str:
    if sample_fn := getattr(config, "sample_fn", None):  # Recorded by the run.
        return _by(sample_fn, config)
    if config.clients_per_round == config.num_clients:
        return f"all {progress.count(config.num_clients, 'client')} every round"
    some = f"{config.clients_per_round} of {config.num_clients} clients a round"
    return f"about {some}" if config.client_sampling == "independent" else some


def _epochs(config: ResolvedConfig) -> str:
    return progress.count(config.local_epochs, "local epoch")


def _steps(config: ResolvedConfig, num_train: int) -> int:
    """Returns the number of local steps of an average-sized client."""
    of_a_pass = config.num_clients * config.batch_size
    if config.drop_remainder:
        return config.local_epochs * max(1, num_train // of_a_pass)
    return config.local_epochs * -(-num_train // of_a_pass)


def _memory(config: ResolvedConfig, num_weights: int) -> Optional[str]:
    """Describes the state that clients keep between rounds; None for no state."""
    kept, texts = set(), []
    for method in config.methods:
        keys = memories.keys(method.name, method.client_memory)
        seen = {*kept, method_lib.PREVIOUS}
        own = sorted(name for name, key in keys.items() if key not in seen)
        if own:
            texts.append(f"{method.name}'s {' and '.join(own)}")
        kept.update(keys.values())
    if method_lib.PREVIOUS in kept:
        texts.append("its last model's weights")
    if not kept:
        return None
    megabytes = len(kept) * num_weights * _BYTES_OF_A_WEIGHT / 1e6
    return (
        f"a client remembers {', '.join(texts)}: {_size(megabytes)} a client,"
        f" {_size(megabytes * config.num_clients)} for all, kept in"
        f" {f'{config.output_dir}/client_states' if config.output_dir else 'memory'}"
    )


def _size(megabytes: float) -> str:
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    return f"{megabytes:.1f} MB" if megabytes >= 0.1 else f"{1000 * megabytes:.1f} kB"


def _client_optimizer(config: ResolvedConfig) -> str:
    parts = [_rate(config), _momentum(config), _decay(config), _clipping(config)]
    return ", ".join(filter(None, parts))


def _rate(config: Any) -> str:
    text = f"SGD, learning rate {_text(config.client_learning_rate)}"
    if config.learning_rate_schedule == "exponential":
        text += f" x {_text(config.learning_rate_decay)} a round"
    elif config.learning_rate_schedule == "cosine":
        text += ", cosine schedule"
    elif config.learning_rate_schedule == "listed" and config.client_learning_rates:
        text += (
            f", one for each round, at last {_text(config.client_learning_rates[-1])}"
        )
    return text


def _momentum(config: Any) -> str:
    if not config.client_momentum:
        return ""
    kind = "Nesterov momentum" if config.client_nesterov else "momentum"
    return f"{kind} {_text(config.client_momentum)}"


def _decay(config: Any) -> str:
    decay = config.client_weight_decay
    return f"weight decay {_text(decay)}" if decay else ""


def _clipping(config: Any) -> str:
    norm = config.max_gradient_norm
    return f"gradients clipped at {_text(norm)}" if norm else ""


def _server(config: ResolvedConfig) -> str:
    methods = config.methods
    steps = [m.server_step for m in methods if m.server_step]
    text = steps[0] if steps else _averaging(config)
    if any(method.name == all_clients.NAME for method in methods):
        text += "; the mean of all clients' last models is tested too"
    return text


def _aggregation(config: ResolvedConfig) -> list[str]:
    """Describes the aggregation, if it is not the plain mean."""
    kind = config.aggregator
    if kind == "mean":
        return []
    if kind == "dp":
        bound = f"clipped at norm {_text(config.dp_clip_norm)}"
        if config.dp_clipping == "adaptive":
            bound = f"clipped at their median norm, at first {bound.split()[-1]}"
        text = f"differentially private, {bound}"
        text += f", noise multiplier {_text(config.dp_noise_multiplier)}"
        return [_line("sums", text)]
    text = (
        "robust"
        if kind == "robust"
        else (
            f"compressed to {config.compressed_bits} bits where a tensor has more than"
            f" {config.compressed_threshold} numbers"
        )
    )
    for name, what in (("zeroing", "too large left out"), ("clipping", "long clipped")):
        if getattr(config, f"aggregator_{name}"):
            text += f", {what}"
    return [_line("sums", text)]


def _averaging(config: ResolvedConfig) -> str:
    weighted = {
        "num_examples": "weighted by their numbers of examples",
        "uniform": "all weighing the same",
    }[config.client_weighting]
    optimizer = _server_optimizer(config)
    if not optimizer:
        return f"average of the clients, {weighted}"
    return f"{optimizer.removeprefix('server ')}; clients {weighted}"


def _server_optimizer(config: Any) -> str:
    """Describes the server's optimiser; empty if the server takes the average."""
    rate, momentum = config.server_learning_rate, config.server_momentum
    if config.server_optimizer == "sgd" and rate == 1.0 and not momentum:
        return ""
    optimizer = f"server {config.server_optimizer}, learning rate {_text(rate)}"
    if momentum:
        optimizer += f", momentum {_text(momentum)}"
    if config.server_optimizer != "sgd":
        optimizer += f", beta1 {_text(config.server_beta1)}"
        if config.server_optimizer != "adagrad":
            optimizer += f", beta2 {_text(config.server_beta2)}"
        optimizer += f", tau {_text(config.server_epsilon)}"
    return optimizer


# The phrases of a protocol: names of settings, and the function that describes them.
_PROTOCOL: tuple[tuple[tuple[str, ...], Callable[[Any], str]], ...] = (
    (("task", "scale", "synthetic_data", "validation_share"), _data),
    (
        ("num_clients", "clients_per_round", "client_sampling"),
        _cohort,
    ),
    (("partition", "concentration", "classes_per_client"), _partition),
    (("total_rounds",), lambda c: progress.count(c.total_rounds, "round")),
    (("local_epochs",), _epochs),
    (("batch_size", "drop_remainder"), _batches),
    (
        ("client_learning_rate", "learning_rate_schedule", "learning_rate_decay"),
        _rate,
    ),
    (("client_momentum", "client_nesterov"), _momentum),
    (("client_weight_decay",), _decay),
    (("max_gradient_norm",), _clipping),
    (("model", "norm"), lambda c: _network(c, " ({})")),
    (("projector",), lambda c: "" if c.projector == "none" else _projector(c)),
    (("augmentation",), lambda c: f"augmentation {c.augmentation}"),
    (
        ("server_optimizer", "server_learning_rate", "server_momentum")
        + ("server_beta1", "server_beta2", "server_epsilon"),
        _server_optimizer,
    ),
    (("aggregator",), lambda c: "" if c.aggregator == "mean" else c.aggregator),
)


def protocol(values: Mapping[str, Any]) -> str:
    """Describes settings that runs have in common.

    A phrase is left out if one of its settings is missing.
    """
    # The path of a split file is left out; older runs have no listed rates.
    config = types.SimpleNamespace(
        **{"client_learning_rates": None, **values, "split_file": None}
    )
    phrases = [
        make(config) for names, make in _PROTOCOL if all(n in values for n in names)
    ]
    return ", ".join(filter(None, phrases))


def plot_texts(config: ResolvedConfig) -> tuple[str, str]:
    """Returns the title of `accuracy.png` and the line below it."""
    subtitle = (
        _cohort(config),
        _partition(config),
        _epochs(config),
        _network(config, " ({})"),
        f"seed {config.seed}",
    )
    return f"{config.process} on {config.task}", ", ".join(subtitle)


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
    """Describes rejected clients, idle rounds and ends that are not finite."""
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
    return ", ".join(phrases)


def result(summary: Mapping[str, Any], path: files.PathLike) -> list[str]:
    """Describes the result of a finished run and its files."""
    final, best = summary["final_accuracy"], summary["best_accuracy"]
    text = f"{progress.count(summary['rounds'], 'round')}"
    if final is not None:
        tested = metrics.tested(summary).capitalize()
        text = f"{tested} accuracy {100 * final:.2f} % after {text}"
        text += f" (best {100 * best:.2f} % after round {summary['best_round']})"
        if summary["all_clients_accuracy"] is not None:
            text += (
                ", of the mean of all clients' last models"
                f" {100 * summary['all_clients_accuracy']:.2f} %"
                f" (best {100 * summary['best_all_clients_accuracy']:.2f} %)"
            )
    else:
        text = f"{text} done"
        if best is not None:
            accuracy = f"{100 * best:.2f} % after round {summary['best_round']}"
            text += f" (best {metrics.tested(summary)} accuracy {accuracy})"
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
        *([f"{trouble[0].upper()}{trouble[1:]}."] if trouble else []),
        *(privacy.in_words(guarantee) if guarantee else ()),
        f"In {path}: {', '.join(names)}; tensorboard --logdir {path}",
    ]
