#!/bin/bash
# A run on a SLURM cluster (not tried): Ray on all nodes of the job, the run on the first.
#   sbatch deploy/slurm.sh --process=fedalign --output_dir=runs/fedalign
# The repository lies on a file system that all nodes share, and .venv was made before
# (bin/launch -c pass --runtime=ray). A job that was cut off resumes when it is submitted
# again with the same flags.
#SBATCH --job-name=tff_reg
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
# With GPUs: #SBATCH --gpus-per-node=1
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export PYTHONPATH=$PWD PYTHONNOUSERSITE=1 RAY_USAGE_STATS_ENABLED=0
ray=$PWD/.venv/bin/ray
# A port of this job's own, because others may use the same nodes.
port=$((20000 + ${SLURM_JOB_ID:-0} % 10000))
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$head:$port

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  "$ray" start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" \
  --temp-dir="/tmp/ray-$SLURM_JOB_ID" --include-dashboard=false --block &
until "$ray" health-check --address "$address" 2>/dev/null; do sleep 2; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks-per-node=1 --exclude="$head" \
    --overlap "$ray" start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" \
    --block &
fi

# This script runs on the first node. Nodes that come later take part when they are there.
bin/run --runtime=ray --ray_address="$address" "$@"
