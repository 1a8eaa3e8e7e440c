"""The processes of the generation service, as the web process starts and stops them.

Each listens on a Unix socket in a directory of its own, which only the owner can open, and ends
when its standard input is closed: no service survives the web process.  Does not import torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Config, ServingConfig

EXIT_SECONDS = 3.0
"""Seconds that a service has to end before it is killed."""
_ROOT = Path(__file__).parents[2]


class ServiceProcess:
    """A running service: its socket and its process."""

    def __init__(self, log: Path) -> None:
        # Not in the workspace: the address of a Unix socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="kitestring-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.socket = self.folder / "socket"
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self.answered = False
        """Whether it has answered: then its end is a crash, not a failed start."""

    def start(self, command: list[str]) -> None:
        """Start the process; its output goes to the log."""
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=_ROOT,
                start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """End the process, by force after `EXIT_SECONDS`, and remove its socket."""
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._child.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._folder.cleanup()


def write_models(process: ServiceProcess, config: Config, paths: Mapping[str, str]) -> None:
    """Write what our own service reads: the settings and the models' paths."""
    data: dict[str, Any] = {"config": config.to_dict(), "models": dict(paths)}
    file = process.folder / "service.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps(data), encoding="utf-8")
    new.replace(file)


def own_command(process: ServiceProcess) -> list[str]:
    """The command of our own service."""
    return [sys.executable, "-m", "pipeline.serving", str(process.folder)]


def vllm_command(
    process: ServiceProcess, config: ServingConfig, *, model: str, path: str
) -> list[str]:
    """The command of vLLM's server for one model."""
    return [
        sys.executable, "-m", "pipeline.serving.tether",
        "vllm", "serve", path,
        "--uds", str(process.socket),
        "--served-model-name", model,
        "--gpu-memory-utilization", str(config.vllm_memory),
        "--max-num-seqs", str(config.queue),
    ]  # fmt: skip
