"""Additions to TFF's programs: an evaluation manager that survives a kill.

`tff.learning.programs.train_model` commits a round after it has begun the round's
evaluation. A program that is killed in between repeats the round when it is started
again; then TFF 0.87's own manager finds the existing evaluation, and the program ends
with a `ProgramStateExistsError` at every start.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Union

from tff_reg.lazy import tff

# As TFF names them.
_EVALUATIONS = "evaluation_of_train_round_"


class EvaluationManager(tff.learning.programs.EvaluationManager):
    """Evaluates models in one round each, in the order of their training.

    While a model is evaluated, the next one is trained. Its evaluation waits for the
    previous one, because `tff.program.CSVFileReleaseManager` drops the rows of later
    rounds.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        data_source: tff.program.FederatedDataSource,
        *,
        cohort_size: int,
        metrics_manager: tff.program.ReleaseManager,
        root_dir: Union[str, os.PathLike[str]],
    ):
        """Initialises the manager.

        Args:
          process: Evaluation process, see `tff.learning.algorithms.build_fed_eval`.
          data_source: The clients of evaluations.
          cohort_size: Number of clients per evaluation.
          metrics_manager: Gets the metrics, by the number of the training round.
          root_dir: Directory for unfinished work.
        """

        def state_manager(name: str) -> tff.program.FileProgramStateManager:
            one_round = name.startswith(_EVALUATIONS)
            kind = _StartOnly if one_round else tff.program.FileProgramStateManager
            return kind(os.path.join(root_dir, name))

        super().__init__(
            data_source,
            metrics_manager,
            state_manager,
            lambda name: (process, None),
            cohort_size,
            duration=datetime.timedelta(0),
        )

    async def start_evaluation(
        self, train_round: int, start_timestamp_seconds: int, model_weights: Any
    ) -> None:
        """Starts the evaluation of a model, anew if it was started before.

        Args:
          train_round: The training round that the model comes from.
          start_timestamp_seconds: End of that round, in seconds since 1970.
          model_weights: The model's `tff.learning.models.ModelWeights`.
        """
        await self.wait_for_evaluations_to_finish()
        name = f"{_EVALUATIONS}{train_round:05d}"
        await self.create_state_manager_fn(name).remove_all()
        await super().start_evaluation(
            train_round, start_timestamp_seconds, model_weights
        )


class _StartOnly(tff.program.FileProgramStateManager):
    """Saves the first state only: a restart from a later one would count it twice."""

    async def save(self, program_state: Any, version: int) -> None:
        if version == 0:
            await super().save(program_state, version)


class LineReleaseManager(tff.program.ReleaseManager):
    """Prints loss and accuracy of every round, in one line per round."""

    def __init__(self, name: str):
        """Initialises the manager.

        Args:
          name: Name of the numbers in the line.
        """
        self._name = name

    async def release(self, value: Any, key: int) -> None:
        """Prints the line.

        Args:
          value: Metrics as `train_model` and evaluation managers release them.
          key: The round.
        """
        metrics = (await tff.program.materialize_value(value))["model_metrics"]
        print(
            f"round {key}  {self._name}  loss {metrics['loss']:.4f}"
            f"  accuracy {metrics['accuracy']:.1%}",
            flush=True,
        )
