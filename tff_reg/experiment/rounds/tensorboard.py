"""TensorBoard's event files of a run."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tff_reg import files
from tff_reg.experiment.rounds import metrics
from tff_reg.lazy import tf


class TensorBoardEvents:
    """Keeps TensorBoard's files equal to the rows of metrics.

    An event file cannot be cut back to a checkpoint, so a run that is resumed writes
    its rows anew and goes on from there: no round appears twice.
    """

    def __init__(
        self, directory: files.PathLike, rows: Iterable[Mapping[str, Any]] = ()
    ):
        """Deletes the events of an earlier process and writes `rows`.

        Args:
          directory: Where the event files go.
          rows: The rows so far, as `MetricsTable.rows()` gives them.

        Raises:
          OSError: If they cannot be written, as of `add` and `close`.
        """
        delete_events(directory)
        self._directory = directory
        with self._its_errors():
            self._writer = tf.summary.create_file_writer(str(directory))
            for row in rows:
                self._write(row)
            self._writer.flush()

    @contextlib.contextmanager
    def _its_errors(self) -> Iterator[None]:
        """Makes a system's error of TensorFlow's, in the body of a `with` statement."""
        try:
            yield
        except tf.errors.OpError as error:
            why = f"TensorBoard's events cannot be written ({type(error).__name__})"
            raise OSError(errno.EIO, why, str(self._directory)) from error

    def _write(self, row: Mapping[str, Any]) -> None:
        with self._writer.as_default(step=int(row[metrics.ROUND])):
            for name, value in row.items():
                if name != metrics.ROUND and value is not None:
                    tf.summary.scalar(name, value)

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes one row, so that it can be seen at once; None cells are left out."""
        with self._its_errors():
            self._write(row)
            self._writer.flush()

    def close(self) -> None:
        """Closes the file; no row can be added after."""
        with self._its_errors():
            self._writer.close()


def delete_events(directory: files.PathLike) -> None:
    """Deletes TensorBoard's event files in `directory`."""
    for path in pathlib.Path(directory).glob("events.out.tfevents.*"):
        files.delete(path)
