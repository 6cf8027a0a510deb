"""A callback that ends a run early."""

from tff_reg import experiment


class EarlyStopping(experiment.Callback):
    """Ends a run whose test accuracy has not improved for a while."""

    def __init__(self, rounds):
        """`rounds`: How many rounds without a better accuracy are too many."""
        self.rounds = rounds

    def on_round(self, run, row):
        accuracies = run.column("evaluation/accuracy")
        if len(accuracies) - accuracies.index(max(accuracies)) > self.rounds:
            return f"no better test accuracy in {self.rounds} rounds"
        return None
