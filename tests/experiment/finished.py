"""Runs that have finished, for tests of what is made of them."""

from tff_reg import experiment
from tff_reg.experiment import metrics, summary


def finish(planned, accuracies, *, all_clients=None, seconds=1.0, loss=1.0, **more):
    """Writes what a planned run leaves when it is finished.

    Args:
      planned: The run.
      accuracies: Test accuracy, a share, round by round.
      all_clients: That of the mean of all clients' models.
      seconds: Of a round.
      loss: The training's.
      **more: What else its `config.json` has.
    """
    values = {**planned.config.dump(), "total_rounds": len(accuracies), **more}
    table = metrics.MetricsTable()
    for number, accuracy in enumerate(accuracies):
        row = {
            metrics.ROUND: number + 1,
            metrics.TRAINING_LOSS: loss,
            metrics.TRAINING_ACCURACY: 0.5,
            metrics.EVALUATION_ACCURACY: accuracy,
            metrics.SECONDS: seconds,
        }
        if all_clients is not None:
            row[metrics.ALL_CLIENTS_ACCURACY] = all_clients[number]
        table.append(row)
    run = experiment.RunDirectory(planned.directory)
    run.begin(values)
    run.write_metrics(table)
    run.write_summary(summary.summarize(table, values))
    run.close()
