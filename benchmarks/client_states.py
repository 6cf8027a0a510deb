"""Measures the cost of keeping clients' states between rounds.

The rounds have no training: the cohort's states are loaded, replaced and stored, and a
checkpoint is committed, as in a run. First every client takes part
once, so that the measured rounds load written states (from the system's cache, if they
fit into it).
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from benchmarks.shared import measuring, subject
from tff_reg.experiment.rounds import checkpoints, process_state
from tff_reg.lazy import np

_ARRAYS = 62  # As many trainable variables as a ResNet-18 has.
_STATE = "server_state.npz"
# A cohort's states may be there once more for every checkpoint that is kept, and for
# the round under way.
_SUPERSEDED_COHORTS = 4


@dataclasses.dataclass(frozen=True)
class Setting:
    """How much is kept.

    Attributes:
      num_clients: Clients.
      clients_per_round: Clients of a round.
      rounds: The measured rounds, after those in which every client takes part once.
      megabytes: Size of a client's state, in 10^6 bytes; the default is 11 million
        float32, a ResNet-18. The server's state is three times that.
    """

    num_clients: int = 500
    clients_per_round: int = 10
    rounds: int = 10
    megabytes: float = 44.0

    @property
    def most_megabytes_on_disk(self) -> float:
        """Upper bound of the files on the disk at any time."""
        states = self.num_clients + _SUPERSEDED_COHORTS * self.clients_per_round
        return (states + 3 * _SUPERSEDED_COHORTS) * self.megabytes


QUICK = Setting(num_clients=40, rounds=4)


def measure(
    setting: Setting = Setting(),
    *,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs the rounds in a new folder under the system's for temporary files.

    Args:
      setting: How much is kept.
      report: Called with a line now and then.

    Returns:
      JSON values by name; seconds are medians over the rounds measured.

      - `setting`: The sizes that were kept.
      - `load_seconds`, `store_seconds`: Loading and storing a cohort's states.
      - `commit_seconds`: Committing a checkpoint.
      - `slowest_round_seconds`: The slowest round, all three parts.
      - `verify_seconds`: Comparing the newest checkpoint and all clients' files with
        their checksums once, as a resumed run does.
      - `peak_megabytes`: The peak of resident memory above that of the beginning, with
        the cohort's old and new states, in 10^6 bytes; None except on Linux.
      - `disk_megabytes`: The folder's size after the last round, before it is deleted.
      - `files`: The number of the clients' files in it.
      - `round_seconds`: The three parts of a round together.

    Raises:
      RefusedError: If the disk has too little room.
    """
    root = pathlib.Path(tempfile.gettempdir())
    free = shutil.disk_usage(root).free / 1e6
    if setting.most_megabytes_on_disk > 0.9 * free:
        raise subject.RefusedError(
            f"{root} has {free / 1000:.1f} GB free, but this writes up to"
            f" {setting.most_megabytes_on_disk / 1000:.1f} GB: set TMPDIR to a folder"
            " on another disk, or give --quick."
        )
    with tempfile.TemporaryDirectory(prefix="tff_reg-bench-", dir=root) as folder:
        return _Rounds(setting, pathlib.Path(folder)).measure(report)


class _Rounds:
    """Rounds in which every weight of a client's state grows."""

    def __init__(self, setting: Setting, folder: pathlib.Path):
        self._setting = setting
        size = int(setting.megabytes * 1e6 / 4 / _ARRAYS)
        initial = {"h": [np.zeros(size, np.float32) for _ in range(_ARRAYS)]}
        self._server_state = dict.fromkeys(("model", "h", "mean"), initial["h"])
        self._folder = folder
        self._checkpoints = checkpoints.CheckpointStore(folder / "checkpoints")
        self._states = process_state.ClientStates(initial, self._checkpoints)
        self._client_ids = [f"client {n}" for n in range(setting.num_clients)]
        self._values = dict.fromkeys(self._client_ids, 0)
        self._round_num = 0

    def measure(self, report: Callable[[str], None]) -> dict[str, Any]:
        # What the first rounds free the allocator may keep: it counts.
        before = measuring.resident_bytes() if measuring.forget_peak() else None
        first = -(-self._setting.num_clients // self._setting.clients_per_round)
        for index in range(first):
            self._run_round()
            if index % 10 == 9:
                report(f"{max(self._values.values())} clients stored")
        seconds = []
        for _ in range(self._setting.rounds):
            seconds.append(self._run_round())
            report(f"round of {sum(seconds[-1]):.2f} s")
        peak = None
        if before is not None:
            peak = (measuring.resident_bytes(peak=True) - before) / 1e6
        load, store, commit = map(statistics.median, zip(*seconds))
        began = time.perf_counter()
        self._checkpoints.latest()
        return {
            "setting": dataclasses.asdict(self._setting),
            "load_seconds": load,
            "store_seconds": store,
            "commit_seconds": commit,
            "slowest_round_seconds": max(map(sum, seconds)),
            "verify_seconds": time.perf_counter() - began,
            "peak_megabytes": peak,
            "disk_megabytes": _bytes_in(self._folder) / 1e6,
            "files": len(
                {n for c in self._checkpoints.all() for n in c.clients.values()}
            ),
            "round_seconds": load + store + commit,
        }

    def _run_round(self) -> tuple[float, float, float]:
        """One round; returns the seconds of loading, storing and committing."""
        per_round = self._setting.clients_per_round
        begin = self._round_num * per_round
        count = len(self._client_ids)
        cohort = [self._client_ids[n % count] for n in range(begin, begin + per_round)]
        self._round_num += 1
        times = [time.perf_counter()]
        states = self._states.load(cohort)
        times.append(time.perf_counter())
        new_states = [self._grown(name, state) for name, state in zip(cohort, states)]
        waited = time.perf_counter() - times[-1]
        self._states.store(cohort, new_states)
        times.append(time.perf_counter() - waited)
        self._commit()
        times.append(time.perf_counter() - waited)
        load, store, commit = (end - start for start, end in zip(times, times[1:]))
        return load, store, commit

    def _grown(self, client_id: str, state: Any) -> Any:
        # No two states are equal: their files would be one.
        before, last = self._values[client_id], max(self._values.values())
        if not all(np.all(array == before) for array in state["h"]):
            raise RuntimeError(f"The state of {client_id} is not the one stored last.")
        self._values[client_id] = last + 1
        grown = np.float32(last + 1 - before)
        return {"h": [array + grown for array in state["h"]]}

    def _commit(self) -> None:
        server_state = {"round": self._round_num, **self._server_state}
        self._checkpoints.save(
            self._round_num,
            {_STATE: process_state.written(server_state)},
            self._states.names,
        )


def _bytes_in(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def table(row: Mapping[str, Any]) -> list[str]:
    """The lines of a table of what `measure` returns."""
    setting = row["setting"]
    peak = row["peak_megabytes"]
    lines = [
        f"{setting['num_clients']} clients, {setting['clients_per_round']} a round,"
        f" {setting['megabytes']:g} MB a client; medians of {setting['rounds']} rounds",
        f"load                {row['load_seconds']:8.2f} s",
        f"store               {row['store_seconds']:8.2f} s",
        f"commit a checkpoint {row['commit_seconds']:8.2f} s",
        f"together            {row['round_seconds']:8.2f} s"
        f" (at most {row['slowest_round_seconds']:.2f} s)",
        f"verify on resuming  {row['verify_seconds']:8.2f} s",
    ]
    if peak is not None:
        lines.append(f"memory              {peak:8.0f} MB at most beyond the beginning")
    lines.append(
        f"disk                {row['disk_megabytes']:8.0f} MB, {row['files']} clients'"
        " files"
    )
    return lines


def _run(given: flags.FlagValues) -> None:
    row = measure(QUICK if given.quick else Setting(), report=subject.say)
    subject.finish(given, [row], table(row))


SUBJECT = subject.Subject(
    run=_run,
    help="""\
bin/bench client_states [--quick] [--json=FILE]
  Rounds that load and store the states of 10 of 500 clients, 44 megabytes each, and
  commit a checkpoint: seconds, memory, disk (25 gigabytes under TMPDIR, deleted in the
  end). Five minutes; with --quick 40 clients, half a minute and 4 gigabytes.""",
)
