"""``python -m pipeline.serving.tether COMMAND …``: runs a command until standard input is closed.

A server of another project would outlive a killed web process and keep the GPU's memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_GRACE = 10.0
"""Seconds between the request to end and the kill."""


def main() -> int:
    """Run the command in `sys.argv`; returns its exit status."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_with_parent, args=(child,), daemon=True).start()
    return child.wait()


def _end_with_parent(child: subprocess.Popen[bytes]) -> None:
    sys.stdin.read()
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
            return


if __name__ == "__main__":
    sys.exit(main())
