"""A run in words: the lines before its first round, its plot's title, its result."""

from __future__ import annotations

import pathlib
import textwrap
from typing import Any, Mapping

from tff_reg.experiment import progress, settings

_WIDTH = 88


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
    model = f"{values['model']}, {values['norm']} norm, {num_weights:,} weights"
    batches = f"batches of {values['batch_size']}"
    return [
        _line("process", values["process"] + (f" ({chosen})" if chosen else "")),
        _line("task", f"{values['task']}, {examples}, {_partition(values)}"),
        _line("model", model),
        _line("clients", f"{_cohort(values)}, {_epochs(values)}, {batches}"),
        _line("", _client_optimizer(values)),
        _line("server", _server(values)),
        _line("rounds", f"{values['total_rounds']}, seed {values['seed']}"),
        _line("output", values["output_dir"]),
    ]


def _line(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name:8} {text}", _WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _partition(values: Mapping[str, Any]) -> str:
    if values["concentration"] is None:
        return values["partition"]
    return f"{values['partition']}({_text(values['concentration'])})"


def _cohort(values: Mapping[str, Any]) -> str:
    if values["clients_per_round"] == values["num_clients"]:
        return f"all {_count(values['num_clients'], 'client')} every round"
    return f"{values['clients_per_round']} of {values['num_clients']} clients a round"


def _epochs(values: Mapping[str, Any]) -> str:
    return _count(values["local_epochs"], "local epoch")


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


def _server(values: Mapping[str, Any]) -> str:
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
            f"{values['model']} ({values['norm']} norm)",
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
    else:
        text = f"{text} done"
    text += (
        f", {progress.duration(summary['training_seconds'])} of training,"
        f" {summary['median_round_seconds']:.2f} s a round."
    )
    names = sorted(
        each.name for each in path.glob("[a-z]*") if not each.name.startswith("events")
    )
    return [text, f"In {path}: {', '.join(names)}; tensorboard --logdir {path}"]
