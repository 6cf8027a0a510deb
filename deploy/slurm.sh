#!/bin/bash
# Runs of a comparison as an array job of SLURM (not tried). On the login node, from a
# clone that all nodes see:
#   bin/compare --processes=fedavg,fedalign --seeds=0,1,2 --output_dir=runs/c \
#     --list_commands >runs.txt
#   sbatch --array=1-$(wc -l <runs.txt) deploy/slurm.sh runs.txt
# When they have ended, the same bin/compare without --list_commands makes the tables. A
# job that is queued again resumes its run.
#SBATCH --job-name=tff_reg
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --requeue
# With a GPU: #SBATCH --gpus=1
eval "exec $(sed -n "${SLURM_ARRAY_TASK_ID}p" "$1")"
