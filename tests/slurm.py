"""A SLURM for tests: its commands, as far as jobs need them, whose jobs run here."""

import os

_COMMANDS = ("sbatch", "scancel", "scontrol")
# What this is called is what it does. A job is a session; jobs/ID has its command, its
# options, its name and its exit status.
_SCRIPT = """#!/bin/bash
jobs=$(dirname "$0")/jobs

begin() {
  rm -f "$jobs/$1/is_requeued"
  SLURM_JOB_ID=$1 setsid bash -c '
    trap "" INT
    "${@:2}"
    echo $? >"$1/status.new" && mv "$1/status.new" "$1/status"
    kill -KILL 0
  ' - "$jobs/$1" bash "${@:2}" </dev/null >/dev/null 2>>"$(cat "$jobs/$1/errors")" &
  echo $! >"$jobs/$1/pid"
}

case $(basename "$0") in
  sbatch)
    id=1
    until mkdir "$jobs/$id" 2>/dev/null; do id=$((id + 1)); done
    while [[ $1 = -* ]]; do
      echo "$1" >>"$jobs/$id/options"
      case $1 in
        --error=*) echo "${1#--error=}" | sed "s/%j/$id/" >"$jobs/$id/errors" ;;
        --job-name=*) echo "${1#--job-name=}" >"$jobs/$id/name" ;;
      esac
      shift
    done
    begin "$id" "$@"
    while true; do
      pid=$(cat "$jobs/$id/pid")
      while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
      if [ -e "$jobs/$id/is_requeued" ]; then begin "$id" "$@"; continue; fi
      break
    done
    echo "$id"
    exit "$(cat "$jobs/$id/status" 2>/dev/null || echo 1)"
    ;;
  scancel)  # --name=NAME
    for job in "$jobs"/*; do
      [ "--name=$(cat "$job/name")" = "$1" ] || continue
      pid=$(cat "$job/pid")
      # Its session may be about to begin.
      until kill -KILL -- "-$pid" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do
        sleep 0.01
      done
    done
    ;;
  scontrol)  # requeue ID, which the job itself asks for
    touch "$jobs/$2/is_requeued"
    kill -KILL -- "-$(cat "$jobs/$2/pid")"
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
