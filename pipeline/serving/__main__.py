"""The process of the generation service: ``python -m pipeline.serving DIR``.

DIR has ``service.json`` (settings and the models' paths), and the service listens on ``DIR/socket``.
It ends when its standard input is closed: also when the web process was killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from importlib import import_module
from pathlib import Path

import uvicorn

from pipeline.config.sections import Config
from pipeline.worker.worker import configure_libraries, configure_process

NICE = 5
"""Between the web process (0) and the stages (`worker.nice`, 15)."""
ACTIVE = 8
"""Replies that are decoded in turn; others wait."""


def main() -> None:
    """Serve until standard input is closed."""
    folder = Path(sys.argv[1])
    config = Config.from_dict(_read(folder)["config"])
    configure_process(config, nice=NICE)
    configure_libraries(config)
    engine = import_module("pipeline.serving.engine").Engine(
        active=ACTIVE, waiting=config.serving.queue
    )
    models = import_module("pipeline.serving.models").Models(
        config, lambda: _read(folder)["models"]
    )
    app = import_module("pipeline.serving.service").service(models, engine)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    )
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        os.umask(0o177)
        listener.bind(str(folder / "socket"))
        server.run(sockets=[listener])


def _read(folder: Path) -> dict[str, dict[str, str]]:
    return json.loads((folder / "service.json").read_text(encoding="utf-8"))


def _end_with_parent(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
