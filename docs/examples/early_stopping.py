"""A callback that ends a run early."""

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
        accuracy = "evaluation/accuracy"
        tested = [each for each in run.rows if each[accuracy] is not None]
        if not tested or tested[-1]["round_num"] < run.rounds_done:
            return None  # This round was not tested.
        best = max(tested, key=lambda each: each[accuracy])
        if run.rounds_done - best["round_num"] >= self.rounds:
            return f"no better held-out accuracy in {self.rounds} rounds"
        return None
