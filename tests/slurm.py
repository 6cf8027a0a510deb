"""A SLURM for tests: its commands, as far as jobs need them, whose jobs run here."""

import os

_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
# What this is called is what it does. A job is a session; jobs/ID has its script.
_SCRIPT = """#!/bin/bash
set -eu
jobs=$(dirname "$0")/jobs

begin() {
  rm -f "$jobs/$1/is_requeued"
  SLURM_JOB_ID=$1 setsid bash "$jobs/$1/script" </dev/null >/dev/null 2>&1 &
  echo $! >"$jobs/$1/pid"
}

case $(basename "$0") in
  sbatch)
    id=1
    until mkdir "$jobs/$id" 2>/dev/null; do id=$((id + 1)); done
    cp "$1" "$jobs/$id/script"
    begin "$id"
    echo "Submitted batch job $id"
    ;;
  srun)
    file() { sed "s/%j/$SLURM_JOB_ID/; s/%t/0/" <<<"$1"; }
    while [[ $1 = -* ]]; do
      case $1 in
        --output) exec >>"$(file "$2")"; shift 2 ;;
        --error) exec 2>>"$(file "$2")"; shift 2 ;;
        *) shift ;;
      esac
    done
    exec "$@"
    ;;
  squeue)
    for job in "$jobs"/*; do
      if [ -e "$job/is_requeued" ] || kill -0 "$(cat "$job/pid")" 2>/dev/null; then
        basename "$job"
      fi
    done
    ;;
  scancel)
    for id; do
      pid=$(cat "$jobs/$id/pid")
      # Its session may be about to begin.
      until kill -KILL -- "-$pid" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do
        sleep 0.01
      done
    done
    ;;
  scontrol)  # requeue ID, which the job itself asks for
    touch "$jobs/$2/is_requeued"
    pid=$(cat "$jobs/$2/pid")
    (tail --pid="$pid" -f /dev/null && begin "$2") </dev/null >/dev/null 2>&1 &
    ;;
esac
"""


def install(folder, monkeypatch):
    """Makes the commands in a folder, which is put on PATH."""
    (folder / "jobs").mkdir(parents=True)
    for name in _COMMANDS:
        (folder / name).write_text(_SCRIPT)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
