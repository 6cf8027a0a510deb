"""What test_recipe_rounds_of_*.py share: recipes run in small, in this process.

A recipe runs as `bin/run -flagfile=FILE --scale=tiny --synthetic_data` would. Of those
that come to the same computation but for the size of numbers (a strength of 1 or of 2),
and for how the data are dealt out, one runs; all of them are read and resolved, and
their clients dealt, in test_recipes.py.
"""

import contextlib

import numpy as np
import tensorflow as tf
from absl import flags

import tasks
from bin import run
from tasks import recipes
from tff_reg import experiment
from tff_reg.experiment import command_line, interruption, settings

# What changes nothing in the computation of a round of so few clients.
_NOT_COMPUTED = {
    "output_dir",
    "accuracy_at_rounds",
    "target_accuracies",
    "partition",
    "concentration",
    "num_clients",
    "clients_per_round",
    "participation",
}
_SMALL_NETWORKS = ("feddyn_cnn", "man_convnet", "univarfl_cnn")


def resolve(recipe, *more):
    """The settings of `bin/run -flagfile=FILE`."""
    values = flags.FlagValues()
    command_line.define_flags(values)
    values(["bin/run", f"--flagfile={recipes.ROOT / recipe.path}", *more])
    return settings.resolve(
        command_line.requested(values),
        task_names=tasks.names(),
        task_defaults=tasks.defaults,
    )


def in_small(recipe, *more):
    return resolve(recipe, "--scale=tiny", "--synthetic_data", *more)


def of(paper):
    """A recipe of the paper for each computation that its recipes are in small."""
    found = {}
    for recipe in recipes.recipes():
        if recipe.table.paper.name == paper:
            found.setdefault(_computation(in_small(recipe)), recipe)
    return list(found.values())


def _computation(values):
    return tuple(
        (name, value > 0 if isinstance(value, float) else value)
        for name, value in values.items()
        if name not in _NOT_COMPUTED
    )


@contextlib.contextmanager
def command():
    """The module bin/run.py; TensorFlow optimises no graphs meanwhile.

    That takes a third of such a round. What comes out of rounds with it is for other
    tests.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield run
    finally:
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
        )


def check_a_round(module, recipe, directory):
    """Runs it; large networks with a client, others with two."""
    more = [f"--output_dir={directory}"]
    if recipe.flags["model"] not in _SMALL_NETWORKS:
        more.append("--clients_per_round=1")
    values = in_small(recipe, *more)
    output_dir = experiment.RunDirectory(values["output_dir"])
    with module.chosen_runtime(values):
        result = module.prepare(values, output_dir, interruption.Interruption())()
    assert result.summary["rounds"] == 1
    (row,) = result.rows
    assert row["training/rejected_clients"] == 0
    for name in ("training/loss", "evaluation/loss"):
        assert np.isfinite(row[name]), name
    if values["averages_all_clients"]:
        assert result.summary["all_clients_accuracy"] is not None
