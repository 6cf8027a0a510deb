"""The state of a learning process: the server's state and the clients' states."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_reg.experiment.rounds import checkpoints, client_states, state_file

if TYPE_CHECKING:
    from tff_reg.training.composition import Process

# The parts of a checkpoint.
STATE, CLIENT_STATES = "server_state.npz", "client_states.json"


class ProcessState:
    """The state of a process between two rounds.

    Attributes:
      server: What `process.next` takes and returns as its state.
    """

    def __init__(self, process: Process, directory: Optional[pathlib.Path]):
        """Begins with the initial state.

        Args:
          process: The process.
          directory: Directory of the clients' states; None keeps them in memory.
        """
        self._process = process
        self.server: Any = process.initialize()
        self._clients: Optional[client_states.ClientStates] = None
        if hasattr(process, "initial_client_state"):
            self._clients = client_states.ClientStates(
                process.initial_client_state(self.server), directory
            )
        # Not every process has it, and it may be None.
        self._get_all_clients_weights = getattr(
            process, "get_all_clients_weights", None
        )

    @property
    def has_all_clients_weights(self) -> bool:
        """Whether the server keeps the mean of all clients' last models."""
        return self._get_all_clients_weights is not None

    def weights(self) -> Any:
        """Returns the server's model weights."""
        return self._process.get_model_weights(self.server)

    def all_clients_weights(self) -> Any:
        """Returns the mean of all clients' last models; None if there is none."""
        if self._get_all_clients_weights is None:
            return None
        return self._get_all_clients_weights(self.server)

    def train(
        self, cohort: Sequence[str], datasets: Sequence[Any], round_num: int
    ) -> Any:
        """Trains a round; returns the metrics of the process."""
        arguments = [self.server, datasets]
        if self._clients is not None:
            arguments.append(self._clients.load(cohort))
        output = self._process.next(*arguments)
        self.server = output.state
        if self._clients is not None:
            self._clients.store(cohort, output.client_states, round_num)
        return output.metrics

    def parts(self) -> dict[str, checkpoints.PartWriter]:
        """Returns the parts of a checkpoint of this state."""
        parts: dict[str, checkpoints.PartWriter] = {
            STATE: lambda path: state_file.write_state(path, self.server)
        }
        if self._clients is not None:
            parts[CLIENT_STATES] = self._clients.write_index
        return parts

    def verify(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Checks the clients' states that a checkpoint names.

        Raises:
          CheckpointDamagedError: If one is missing or different.
        """
        if self._clients is not None:
            self._clients.verify(checkpoint.part(CLIENT_STATES))

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restores a checkpoint's state.

        Raises:
          StateMismatchError: If it is not a state of this process.
        """
        if self._clients is not None:
            self._clients.restore(checkpoint.part(CLIENT_STATES))
        self.server = state_file.read_state(checkpoint.part(STATE), like=self.server)

    def delete_unnamed(self, kept: Iterable[checkpoints.Checkpoint]) -> None:
        """Deletes clients' states that no kept checkpoint and not this state needs."""
        if self._clients is not None:
            self._clients.delete_unnamed(each.part(CLIENT_STATES) for each in kept)
