"""Where workers run: on this machine, on a Ray cluster, on Slurm (`worker.launcher`)."""
