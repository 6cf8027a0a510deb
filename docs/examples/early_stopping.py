"""A callback that ends a run early."""

import numpy as np

from tff_reg import experiment


class EarlyStopping(experiment.Callback):
    """Ends a run whose accuracy on held-out examples has not improved for a while."""

    def __init__(self, rounds):
        """`rounds`: How many rounds without a better accuracy are too many."""
        self.rounds = rounds

    def on_start(self, run):
        if run.settings.get("validation_share") is None:
            raise ValueError("Give validation_share: a test set must not end a run.")

    def on_round(self, run, row):
        if row["evaluation/accuracy"] is None:
            return None  # This round was not tested.
        best = np.nanargmax(run.column("evaluation/accuracy"))
        if run.rounds_done - 1 - best >= self.rounds:
            return f"no better held-out accuracy in {self.rounds} rounds"
        return None
