"""Several processes of one training run, for tests."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
# accelerate's word for torchrun; without GPUs its processes meet over gloo.
_LAUNCH = ["accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--mixed_precision=no"]

_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from pipeline.ppo.network.distributed import Processes
folder, rank = Path({folder!r}), Processes().rank
{code}
torch.distributed.destroy_process_group()
"""


def run_processes(code: str, folder: Path, *, count: int = 2) -> None:
    """Run code in so many processes, with their `folder` and `rank`, one thread each."""
    child = folder / "child.py"
    child.write_text(_CHILD.format(root=str(ROOT), folder=str(folder), code=code))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = ["-m", *_LAUNCH, f"--num_processes={count}", "--dynamo_backend=no", str(child)]
    command.insert(-1, f"--main_process_port={port}")
    subprocess.run(
        [sys.executable, *command], timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def two_processes(code: str) -> Any:
    """A fixture of a module: the folder in which two processes that ran the code have left what each
    found, for as far as they came."""

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        made = tmp_path_factory.mktemp("pair")
        run_processes(code, made)
        return made

    return folder


def found_by(folder: Path, name: str, *, count: int = 2) -> list[Any]:
    """What each process left under a name, by rank."""
    return [torch.load(folder / f"{name}-{rank}", weights_only=False) for rank in range(count)]
