"""The papers' recipes run a round in small, in this process.

A recipe runs as `bin/run --recipe=NAME --scale=tiny --synthetic_data` would. Of those
that come to the same computation but for the size of numbers (a strength of 1 or of 2),
and for how the data are dealt out, one runs. They are slow: without `--slow` the ledger
(tests/ledger.py) runs one of every network and table. All of them are resolved, and
their clients dealt, in test_recipes.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks import recipe_settings
from tff_reg import experiment
from tff_reg.experiment.rounds import progress
from tff_reg.tasks import recipes

# What changes nothing in the computation of a round of so few clients.
_NOT_COMPUTED = {
    "output_dir",
    "score_at_rounds",
    "targets",
    "target_measure",
    "target_model",
    "keep_best",
    "partition",
    "concentration",
    "num_clients",
    "clients_per_round",
    "participation",
    "client_sampling",
    "pixel_mean",
    "pixel_std",
}
_SMALL_NETWORKS = ("feddyn_cnn", "man_convnet", "feduv_cnn")


def _computations():
    """A recipe for each computation that recipes are in small."""
    found = {}
    for recipe in recipes.recipes():
        found.setdefault(_computation(recipe_settings.in_small(recipe.name)), recipe)
    for recipe in found.values():
        marks = [pytest.mark.xdist_group(recipe.name)]
        yield pytest.param(recipe, marks=marks, id=recipe.name)


def _computation(values):
    return tuple(
        (name, value > 0 if isinstance(value, float) else value)
        for name, value in values.given().items()
        if name not in _NOT_COMPUTED
    )


@pytest.fixture(scope="module", autouse=True)
def _graphs_as_written():
    """TensorFlow optimises no graphs meanwhile, which takes a third of such a round.

    What comes out of rounds with it is for other tests.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", _computations())
def test_a_round_of(recipe, tmp_path):
    # Large networks with a client, others with two.
    more = [f"--output_dir={tmp_path / 'run'}"]
    if recipe.settings["model"] not in _SMALL_NETWORKS:
        more.append("--clients_per_round=1")
    values = recipe_settings.in_small(recipe.name, *more)
    result = experiment.run(values, progress=progress.Silence())
    assert result.summary["rounds"] == 1
    (row,) = result.rows
    assert row["training/rejected_clients"] == 0
    for name in ("training/loss", "evaluation/loss"):
        assert np.isfinite(row[name]), name
    if values.averages_all_clients:
        assert result.summary["all_clients_accuracy"] is not None
