#!/bin/bash
# Training on SLURM: `sbatch docs/how-to/recipes/slurm.sh`. srun starts one process per GPU (not torchrun); Lightning reads
# SLURM's variables. `ntasks-per-node` must equal `trainer.devices`. The job is requeued under its number when its
# time is up or it is preempted: SIGTERM makes `fit` save its step first. Do not name it `bash` or `interactive`, which
# Lightning takes for a session without srun.
#SBATCH --job-name=fer-vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=9
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

trap 'scontrol requeue "$SLURM_JOB_ID"' USR1  # 120 seconds before the time limit
last=$(ls -t runs/pretrained_vit/version_*/checkpoints/last.ckpt 2>/dev/null | head -n 1)
srun fer-vit fit --config configs/pretrained_vit.yaml --config configs/ddp.yaml \
    --trainer.num_nodes 2 --trainer.devices 4 --data.num_workers 8 ${last:+--ckpt_path "$last"} &
wait $!
