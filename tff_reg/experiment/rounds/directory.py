r"""The directory of a run: its owner, config and files.

    config.json         every setting, versions, devices, commit
    metrics.csv         one row per round
    checkpoints/        the states from which a run can resume, those of clients among
                        them for methods with a client memory
    events.out.tfevents.*
    final_weights.npz   \\
    accuracy.png         > when the run is finished
    summary.json        /
    report.html         all of it in one file, of a finished run of bin/run
    clients.csv, clients.png, per_class.csv, also then, with client_evaluation; and
    drift.png           with drift
    final_all_clients_weights.npz, also when the run is finished, if the server keeps
                        the mean of all clients' last models
    best_weights.npz    the server's model after the best round so far, if it is kept

`config.json` is written first and `summary.json` last: the first marks a directory as
a run's, and the last marks the run as finished.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from tff_reg import files, scores
from tff_reg.data import digests
from tff_reg.experiment.config import (
    identity as identity_lib,
)
from tff_reg.experiment.rounds import (
    checkpoints,
    metrics,
    summary as summary_lib,
)
from tff_reg.settings import SettingError, as_text
from tff_reg.training import process_settings

_MADE_BY = "tff_reg"
_OTHERWISE = "give another one, or overwrite=true to start anew."

WEIGHTS = "final_weights.npz"
ALL_CLIENTS_WEIGHTS = "final_all_clients_weights.npz"
BEST_WEIGHTS = "best_weights.npz"
PICTURE = "accuracy.png"
CLIENTS, CLASSES = "clients.csv", "per_class.csv"
CLIENTS_PICTURE, DRIFT_PICTURE = "clients.png", "drift.png"
REPORT = "report.html"
ANALYSIS = "analysis"


class DirectoryError(SettingError):
    """Raised when a directory cannot be used for a run; says why and what to do."""


class RunDirectory:
    """A run's directory. Nothing is written before `begin`."""

    def __init__(self, path: files.PathLike):
        """Reads the config of a directory, which need not exist."""
        self.path = pathlib.Path(path)
        self.checkpoints = checkpoints.CheckpointStore(self.path / "checkpoints")
        self._lock: Optional[int] = None
        self._config = self._read_config()

    def _read_config(self) -> Optional[dict]:
        """Returns the config of the run that is there; None if there is no run."""
        try:
            content = {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(f"it cannot be read ({error.strerror}).") from error
        if all(name.startswith(files.TEMPORARY_PREFIX) for name in content):
            return None
        try:
            config = files.read_json(self.path / "config.json")
            if config["made_by"].split()[0] == _MADE_BY:
                return config
        except (ValueError, KeyError, AttributeError, IndexError):
            pass
        raise self._error(
            "it is not empty and has no readable config.json of a run, so it is left"
            " alone; give another directory."
        )

    def _error(self, reason: str) -> DirectoryError:
        return DirectoryError("output_dir", self.path, reason)

    @property
    def config(self) -> Optional[dict]:
        """The config of the run there; None if there is no run."""
        return self._config

    def summary(self) -> Optional[dict]:
        """Returns the summary of the finished run there; None if none has finished."""
        try:
            return files.read_json(self.path / "summary.json")
        except files.DamagedError:
            return None

    def is_finished(self, total_rounds: int) -> bool:
        """Returns whether a run of that many rounds or more finished or ended early."""
        summary = self.summary()
        if summary is None:
            return False
        stopped = summary.get(summary_lib.STOPPED_EARLY) or {}
        return max(summary["rounds"], stopped.get("total_rounds", 0)) >= total_rounds

    def check(self, settings: Mapping[str, Any]) -> None:
        """Checks that the run there, if any, can be continued with these settings."""
        if self._config is None:
            return
        # A run may be continued to more rounds: `_check_rounds` checks these settings.
        of_rounds = ["total_rounds", "client_learning_rates"]
        at = [identity_lib.target(each) for each in (self._config, settings)]
        before, now = (each.get("stop_at_target", "").split(" ", 1) for each in at)
        is_same = before[1:] == now[1:] and now[1:]
        if is_same and scores.of(settings).reaches(float(now[0]), float(before[0])):
            of_rounds.append("stop_at_target")  # It goes on to a better target.
        for name in identity_lib.differences(self._config, settings, of_rounds):
            if what := digests.WORDS.get(name):
                if name == digests.KERAS_WEIGHTS:
                    what += " (call keras.utils.set_random_seed before it is made)"
                raise self._error(
                    f"the run there differs in the {what}; give the same, or"
                    f" {_OTHERWISE.removeprefix('give ')}"
                )
            # The user may have given neither of the two values.
            values = (identity_lib.identity(e)[name] for e in (self._config, settings))
            first, second = ("none" if v is None else as_text(v) for v in values)
            raise self._error(
                f"it has a run with {name}={first}, not {second}; {_OTHERWISE}"
            )

        if "total_rounds" in settings:
            self._check_rounds(self._config, settings)

    def _check_rounds(
        self, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        if self.checkpoints.has_folders():
            raise self._error(
                f"its checkpoints are of an earlier version, so {_OTHERWISE}"
            )
        before, total = config.get("total_rounds"), settings["total_rounds"]
        done = (self.summary() or {}).get("rounds", 0)
        done = max([done, *(c.round_num for c in self.checkpoints.all())])
        if total < done:
            raise self._error(
                f"it has done {done} rounds already, and total_rounds={total}; ask for"
                f" as many or more, or {_OTHERWISE}"
            )
        for number in range(done):
            rates = [
                (each.get("client_learning_rates") or [None])[: number + 1][-1]
                for each in (config, settings)
            ]
            if rates[0] != rates[1]:
                raise self._error(
                    f"round {number + 1} was trained with learning rate {rates[0]}, and"
                    f" client_learning_rates has {rates[1]} for it; {_OTHERWISE}"
                )
        if process_settings.depend_on_total(settings) and done and before != total:
            raise self._error(
                f"it has a run with total_rounds={before}, not {total}; with the cosine"
                " schedule the rounds already done would have been different, so"
                f" {_OTHERWISE}"
            )

    def begin(self, config: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Takes the directory for this process and writes `config.json`.

        The machine and the code of a run that is there are kept; `overwrite` deletes
        what an earlier run left (and nothing else).
        """
        try:
            files.make_directory(self.path, "output_dir")
            self._lock = self._take_lock()
            if self._read_config() != self._config:
                raise self._error("another process began a run there; try again.")
            files.delete_leftovers(self.path)
            if overwrite:
                self._delete_run()
                self._config = None
            there = self._config or {}
            kept = [*identity_lib.MACHINE, identity_lib.CODE]
            version = config.get("versions", {}).get("tff_reg", "")
            self._config = {
                "made_by": f"{_MADE_BY} {version}".strip(),
                **config,
                **{name: there[name] for name in kept if name in there},
            }
            self._write_json("config.json", self._config)
        except BaseException:
            self.close()
            raise

    def add_code(self, code: Mapping[str, Any]) -> None:
        """Records the code that makes the next rounds."""
        assert self._config is not None
        known = self._config.get(identity_lib.CODE, [])
        if code not in known:
            self._config[identity_lib.CODE] = [*known, code]
            self._write_json("config.json", self._config)

    def _take_lock(self) -> Optional[int]:
        # A lock on the directory itself leaves no file, and ends with the process.
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self._error(
                "another process is running there; wait for it, or give another"
                " directory."
            ) from None
        except OSError:  # Some network file systems have no such locks.
            os.close(descriptor)
            return None
        return descriptor

    def close(self) -> None:
        """Lets other processes use the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _delete_run(self) -> None:
        # The config last: until then the directory is recognised as a run's.
        self.delete_results(and_analyses=True)
        files.delete(self.path / "metrics.csv")
        files.delete(self.path / BEST_WEIGHTS)
        delete_events(self.path)
        if self.checkpoints.directory.is_dir():
            files.delete_directory_at_once(self.checkpoints.directory)
        files.delete(self.path / "config.json")

    def delete_results(self, and_analyses: bool) -> None:
        """Deletes what only a finished run has; `summary.json` first."""
        names = ["summary.json", PICTURE, WEIGHTS, ALL_CLIENTS_WEIGHTS]
        names += [CLIENTS, CLASSES, CLIENTS_PICTURE, DRIFT_PICTURE, REPORT]
        for name in [*names, ANALYSIS] if and_analyses else names:
            files.delete(self.path / name)

    def _write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
        files.write_text(self.path / name, text + "\n")

    def write_metrics(self, table: metrics.MetricsTable) -> None:
        """Writes `metrics.csv`."""
        files.write_text(self.path / "metrics.csv", table.text())

    def write_weights(self, arrays: Mapping[str, Any], name: str = WEIGHTS) -> None:
        """Writes arrays by the name of their variable to a file such as `WEIGHTS`."""
        files.write_bytes(self.path / name, files.npz(arrays))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`, which says that the run is finished."""
        self._write_json("summary.json", summary)


def delete_events(directory: files.PathLike) -> None:
    """Deletes TensorBoard's event files in `directory`."""
    for path in pathlib.Path(directory).glob("events.out.tfevents.*"):
        files.delete(path)
