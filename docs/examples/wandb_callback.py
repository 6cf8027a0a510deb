"""A callback that sends every round's metrics to Weights & Biases."""

from tff_reg import experiment


class WandB(experiment.Callback):
    """Logs every round; a resumed run goes on in the same place."""

    def __init__(self, project):
        """`project`: The name of the project."""
        self.project = project

    def on_start(self, run):
        import wandb  # noqa: PLC0415 (only where it is used)

        name = str(run.directory.path) if run.directory else None
        self.logger = wandb.init(
            project=self.project,
            name=name,
            id=name and name.replace("/", "-"),
            resume="allow",
            config=dict(run.settings),
        )

    def on_round(self, run, row):
        numbers = {name: value for name, value in row.items() if value is not None}
        self.logger.log(numbers, step=run.rounds_done)

    def on_end(self, run):
        self.logger.finish()
