"""A run in words: the lines before its first round, its plot's title, its result."""

from __future__ import annotations

import pathlib
import textwrap
from typing import Any, Mapping, Optional

from tff_reg.corrections import correction as correction_lib
from tff_reg.experiment import privacy, progress, settings
from tff_reg.processes import catalog
from tff_reg.regularizers import regularizer

_WIDTH = 88
_BYTES_OF_A_WEIGHT = 4  # float32, as all models that tasks make.


def header(
    values: Mapping[str, Any], *, num_train: int, num_test: int, num_weights: int
) -> list[str]:
    """What is about to run, in a few lines.

    Args:
      values: Resolved settings.
      num_train: Training examples.
      num_test: Test examples.
      num_weights: Trainable numbers of the model.

    Returns:
      Lines of at most 88 characters, where words allow; some have a line break.
    """
    strengths = settings.strengths(values)
    names = {name: name.split("_", 1)[1] for name in strengths}
    if "+" in values["process"]:
        names = {name: name for name in strengths}
    chosen = ", ".join(f"{names[name]} {_text(v)}" for name, v in strengths.items())
    examples = f"{num_train:,} training and {num_test:,} test examples"
    if values["synthetic_data"]:
        examples += " of random pixels"
    rounds = f"{values['total_rounds']}, seed {values['seed']}"
    if values["scale"] is not None:
        rounds += f", scale {values['scale']}"
    model = f"{values['model']}, {_norm(values)}, {num_weights:,} weights"
    if values["projector"] != "none":
        model += f", {values['projector']} projector before the classifier"
    training = f"{_epochs(values)}, batches of {values['batch_size']}"
    if values["same_local_steps"]:
        training += f", exactly {_count(_steps(values, num_train), 'step')}"
    memory = _memory(values, num_weights)
    return [
        _line("process", values["process"] + (f" ({chosen})" if chosen else "")),
        _line("task", f"{values['task']}, {examples}, {_partition(values)}"),
        _line("model", model),
        _line("clients", f"{_cohort(values)}, {training}"),
        _line("", _client_optimizer(values)),
        *([_line("note", note)] if (note := _momentum_note(values)) else []),
        *([_line("memory", memory)] if memory else []),
        _line("server", _server(values)),
        *_aggregation(values),
        _line("rounds", rounds),
        _line("output", values["output_dir"]),
    ]


def _norm(values: Mapping[str, Any]) -> str:
    return "no norm" if values["norm"] == "none" else f"{values['norm']} norm"


def _line(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name:8} {text}", _WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _partition(values: Mapping[str, Any]) -> str:
    if values["concentration"] is not None:
        return f"{values['partition']}({_text(values['concentration'])})"
    if values["classes_per_client"] is not None:
        return f"{values['partition']}({values['classes_per_client']} classes each)"
    if values["split_file"] is not None:
        return f"{values['partition']} {pathlib.Path(values['split_file']).name}"
    return values["partition"]


def _cohort(values: Mapping[str, Any]) -> str:
    if values["clients_per_round"] == values["num_clients"]:
        return f"all {_count(values['num_clients'], 'client')} every round"
    return f"{values['clients_per_round']} of {values['num_clients']} clients a round"


def _epochs(values: Mapping[str, Any]) -> str:
    return _count(values["local_epochs"], "local epoch")


def _steps(values: Mapping[str, Any], num_train: int) -> int:
    """The local steps of a client of mean size."""
    steps_per_epoch = -(-num_train // (values["num_clients"] * values["batch_size"]))
    return values["local_epochs"] * steps_per_epoch


def _correction(values: Mapping[str, Any]) -> Optional[type[correction_lib.Correction]]:
    methods = map(catalog.method, catalog.parse(values["process"]))
    return next((m.correction for m in methods if m.correction), None)


def _memory(values: Mapping[str, Any], num_weights: int) -> Optional[str]:
    """What a client remembers from round to round; None for nothing."""
    kept, times = [], 0
    correction = _correction(values)
    if correction and correction.client_memories:
        times += len(correction.client_memories)
        kept.append(f"{correction.name}'s {' and '.join(correction.client_memories)}")
    methods = map(catalog.method, catalog.parse(values["process"]))
    if values["averages_all_clients"] or any(
        regularizer.PREVIOUS in method.regularizer.reference_models
        for method in methods
        if method.regularizer
    ):
        times += 1
        kept.append("its last model's weights")
    if not kept:
        return None
    megabytes = times * num_weights * _BYTES_OF_A_WEIGHT / 1e6
    return (
        f"a client remembers {', '.join(kept)}: {_size(megabytes)} a client,"
        f" {_size(megabytes * values['num_clients'])} for all, kept in"
        f" {values['output_dir']}/client_states"
    )


def _size(megabytes: float) -> str:
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    return f"{megabytes:.1f} MB" if megabytes >= 0.1 else f"{1000 * megabytes:.1f} kB"


def _client_optimizer(values: Mapping[str, Any]) -> str:
    parts = [f"SGD, learning rate {_text(values['client_learning_rate'])}"]
    if values["learning_rate_schedule"] == "exponential":
        parts[0] += f" x {_text(values['learning_rate_decay'])} a round"
    elif values["learning_rate_schedule"] == "cosine":
        parts[0] += ", cosine schedule"
    if values["client_momentum"]:
        kind = "Nesterov momentum" if values["client_nesterov"] else "momentum"
        parts.append(f"{kind} {_text(values['client_momentum'])}")
    if values["client_weight_decay"]:
        parts.append(f"weight decay {_text(values['client_weight_decay'])}")
    if values["max_gradient_norm"]:
        parts.append(f"gradients clipped at {_text(values['max_gradient_norm'])}")
    return ", ".join(parts)


def _momentum_note(values: Mapping[str, Any]) -> Optional[str]:
    correction, momentum = _correction(values), values["client_momentum"]
    if not (correction and correction.infers_gradient and momentum):
        return None
    return (
        f"{correction.name} takes how far a client moved for its mean gradient, which"
        f" momentum {_text(momentum)} makes some {1 / (1 - momentum):.3g} times too"
        " large; its paper has --client_momentum=0"
    )


def _server(values: Mapping[str, Any]) -> str:
    correction = _correction(values)
    if correction and correction.added_to_model:
        # Its server takes no other optimiser and no other weighting.
        text = (
            f"plain mean of the clients plus {correction.name}'s memory, the mean of"
            f" {correction.added_to_model} over all clients"
        )
    else:
        text = _averaging(values)
    if correction and correction.sent:
        text += f"; {correction.name}'s {' and '.join(correction.sent)} is sent along"
    if values["averages_all_clients"]:
        text += "; the mean of all clients' last models is tested too"
    return text


def _aggregation(values: Mapping[str, Any]) -> list[str]:
    """How what clients send is added up, where that is not plainly."""
    kind = values["aggregator"]
    if kind == "mean":
        return []
    if kind == "dp":
        bound = f"clipped at norm {_text(values['dp_clip_norm'])}"
        if values["dp_clipping"] == "adaptive":
            bound = f"clipped at their median norm, at first {bound.split()[-1]}"
        text = f"differentially private, {bound}"
        text += f", noise multiplier {_text(values['dp_noise_multiplier'])}"
        return [_line("sums", text)]
    texts = {"robust": "robust", "secure": "secure (simulated)"}
    text = texts.get(kind) or (
        f"compressed to {values['compressed_bits']} bits where a tensor has more than"
        f" {values['compressed_threshold']} numbers"
    )
    for name, what in (("zeroing", "too large left out"), ("clipping", "long clipped")):
        if values[f"aggregator_{name}"]:
            text += f", {what}"
    return [_line("sums", text)]


def _averaging(values: Mapping[str, Any]) -> str:
    rate, momentum = values["server_learning_rate"], values["server_momentum"]
    weighted = {
        "num_examples": "weighted by their numbers of examples",
        "uniform": "all weighing the same",
    }[values["client_weighting"]]
    if values["server_optimizer"] == "sgd" and rate == 1.0 and not momentum:
        return f"average of the clients, {weighted}"
    optimizer = f"{values['server_optimizer']}, learning rate {_text(rate)}"
    if momentum:
        optimizer += f", momentum {_text(momentum)}"
    if values["server_optimizer"] != "sgd":
        optimizer += f", epsilon {_text(values['server_epsilon'])}"
    return f"{optimizer}; clients {weighted}"


def plot_title(values: Mapping[str, Any]) -> str:
    """The title of `accuracy.png`."""
    return f"{values['process']} on {values['task']}"


def plot_subtitle(values: Mapping[str, Any]) -> str:
    """The line below it."""
    return ", ".join(
        (
            _cohort(values),
            _partition(values),
            _epochs(values),
            f"{values['model']} ({_norm(values)})",
            f"seed {values['seed']}",
        )
    )


def resumption(directory: Any, values: Mapping[str, Any]) -> str:
    """What is kept of a run that is stopped now, and how it goes on.

    Args:
      directory: The `RunDirectory`.
      values: Resolved settings.

    Returns:
      Part of a sentence.
    """
    kept = directory.checkpoints.all()
    if not kept:
        return f"no round is kept in {directory.path} yet"
    how = "the same command"
    if values["overwrite"]:
        how += " without --overwrite"
    return (
        f"{kept[-1].round_num} of {values['total_rounds']} rounds are kept in"
        f" {directory.path}, and {how} goes on from there"
    )


def result(summary: Mapping[str, Any], path: pathlib.Path) -> list[str]:
    """What came out of a finished run, and where it is.

    Args:
      summary: What `summary.json` holds.
      path: The run's directory.

    Returns:
      Lines.
    """
    final, best = summary["final_accuracy"], summary["best_accuracy"]
    text = f"{_count(summary['rounds'], 'round')}"
    if final is not None:
        text = f"Test accuracy {100 * final:.2f} % after {text}"
        text += f" (best {100 * best:.2f} % after round {summary['best_round']})"
        if summary["all_clients_accuracy"] is not None:
            text += (
                ", of the mean of all clients' last models"
                f" {100 * summary['all_clients_accuracy']:.2f} %"
                f" (best {100 * summary['best_all_clients_accuracy']:.2f} %)"
            )
    else:
        text = f"{text} done"
    text += (
        f", {progress.duration(summary['training_seconds'])} of training,"
        f" {summary['median_round_seconds']:.2f} s a round."
    )
    guarantee = summary.get("privacy")
    names = sorted(
        each.name for each in path.glob("[a-z]*") if not each.name.startswith("events")
    )
    return [
        text,
        *(privacy.in_words(guarantee) if guarantee else ()),
        f"In {path}: {', '.join(names)}; tensorboard --logdir {path}",
    ]
