#!/bin/bash
# A run on a SLURM cluster (not tried): Ray on all nodes of the job, the run on the first.
#   sbatch deploy/slurm.sh --process=fedalign --output_dir=runs/fedalign
# The repository lies on a file system that all nodes share, and .venv was made before
# (bin/launch -c pass --runtime=ray). A job that was cut off resumes when it is submitted
# again with the same flags. Where Ray does not start, or is lost, the job ends.
#SBATCH --job-name=tff_reg
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
# Two minutes before the end this script is told, to stop the run and to tidy up.
#SBATCH --signal=B:TERM@120
# With GPUs: #SBATCH --gpus-per-node=1
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export PYTHONPATH=$PWD PYTHONNOUSERSITE=1 RAY_USAGE_STATS_ENABLED=0
ray=$PWD/.venv/bin/ray
# A port of this job's own, because others may use the same nodes.
port=$((20000 + ${SLURM_JOB_ID:-0} % 10000))
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
address=$head:$port
folder=/tmp/ray-$SLURM_JOB_ID
run=

# srun does not take --cpus-per-task from the job (SLURM 22.05 and later).
step=(srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --overlap)

fail() {
  echo "slurm.sh: $1; the same command resumes the run." >&2
  exit 1
}

finish() {
  trap '' TERM INT
  if [ -n "$run" ]; then  # While there is Ray.
    kill "$run" 2>/dev/null || true
    wait "$run" || true
  fi
  kill $(jobs -p) 2>/dev/null || true
  for _ in {1..150}; do
    [ -n "$(jobs -pr)" ] || break
    sleep 0.2
  done
  "${step[@]}" --nodes="$SLURM_JOB_NUM_NODES" rm -rf "$folder" || true
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

"${step[@]}" --nodes=1 --nodelist="$head" "$ray" start --head --port="$port" \
  --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="$folder" --include-dashboard=false \
  --block &
end=$((SECONDS + ${RAY_START_SECONDS:-180}))
until timeout 20 "$ray" health-check --address "$address" 2>/dev/null; do
  kill -0 $! 2>/dev/null || fail "srun could not start Ray's head on $head"
  [ "$SECONDS" -lt "$end" ] || fail "Ray's head on $head does not answer"
  sleep 1
done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  "${step[@]}" --nodes=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" "$ray" start \
    --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi

# This script runs on the first node. Nodes that come later take part when they are there.
bin/run --runtime=ray --ray_address="$address" "$@" &
run=$!
status=0
wait -n || status=$?
if kill -0 "$run" 2>/dev/null; then
  fail "an srun of Ray's ended with status $status"
fi
run=
exit "$status"
