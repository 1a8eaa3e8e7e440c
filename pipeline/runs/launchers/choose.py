"""The launcher of a cluster, by `worker.launcher`."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.sections import WorkerConfig
from pipeline.runs.launchers.ray_jobs import RayCluster
from pipeline.runs.launchers.remote import RemoteLauncher
from pipeline.runs.launchers.slurm import SlurmCluster
from pipeline.runs.launchers.staged import StagedLauncher

_CLUSTERS = {"ray": RayCluster, "slurm": SlurmCluster}


def require_answer(config: WorkerConfig, workspace: Path) -> None:
    """LaunchError, a ValueError, if stages are to run on a cluster that does not answer."""
    if config.launcher != "local":
        cluster_launcher(config, workspace).check()


def cluster_launcher(config: WorkerConfig, workspace: Path) -> RemoteLauncher:
    """The launcher of workers that run on a cluster."""
    cluster = _CLUSTERS[config.launcher](config)
    kind = StagedLauncher if config.staging else RemoteLauncher
    return kind(cluster, config, workspace=workspace)
