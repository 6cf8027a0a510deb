"""A checked request for a run, and the finished part of that run.

TensorFlow is loaded only if nothing else can read the data.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_reg import files, lazy
from tff_reg.experiment.config.run_config import RunConfig
from tff_reg.experiment.rounds import (
    directory as directory_lib,
    summary as summary_lib,
)

# Files of data, which may be the same in another place.
_FILES = ("data_dir", "split_file")


class CheckedRun:
    """A valid run: its settings are consistent and fit its directory.

    Attributes:
      config: The resolved settings.
      values: The settings as JSON values by name.
      directory: Its directory: empty, with a run that this one can continue, or to be
        overwritten; None if the run writes nothing.
      tasks: The module `tasks`, or an object with its functions.
    """

    def __init__(
        self, config: RunConfig, tasks: Any = lazy.tasks, *, writes: bool = True
    ):
        """Checks the request; writes nothing.

        Args:
          config: The request.
          tasks: The module `tasks`, or an object with its functions.
          writes: Whether the run has a directory; otherwise `config.output_dir` becomes
            None.

        Raises:
          SettingError: If the config is invalid.
          DirectoryError: If its directory holds something else, or another run.
          TypeError: If it is no `RunConfig`.
        """
        if not isinstance(config, RunConfig):
            raise TypeError(
                "A run is asked for by an experiment.RunConfig, such as"
                f" RunConfig(process='fedavg'), not by a {type(config).__name__}."
            )
        self.config = config.resolved(tasks)
        if not writes:
            self.config = dataclasses.replace(self.config, output_dir=None)
        self.values = self.config.dump()
        self.tasks = tasks
        self.directory: Optional[directory_lib.RunDirectory] = None
        if writes:
            self.directory = directory_lib.RunDirectory(self.config.output_dir)
        if self.directory is not None and not self.config.overwrite:
            self.directory.check(self.values)

    def check_ready(self) -> None:
        """Checks that the run can begin.

        Raises:
          SettingError: If nothing can be written to its directory.
          ValueError: If its data are missing.
        """
        if self.directory is not None:
            files.check_writable(self.directory.path, "output_dir")
        if not self.config.synthetic_data:
            self.tasks.check_data(self.config.task, self.config.data_dir)

    def summary(self) -> Optional[dict[str, Any]]:
        """Returns the summary of the run, if it is finished.

        Returns:
          The summary with the requested rounds and targets; None if the run is not
          finished.

        """
        if self.config.overwrite or self.directory is None:
            return None
        made = self.directory.config or {}
        if any(self.values[name] != made.get(name) for name in _FILES):
            return None  # Their contents are compared when the run is done again.
        return summary_lib.of_finished_run(self.directory, self.values)
