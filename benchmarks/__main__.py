"""``make bench``: every measurement that needs no data of its own, one after another.

    python -m benchmarks [NAME ...]

Each is a script of its own with options; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = {
    "storage": ["storage_commits.py"],
    "labels": ["label_load.py"],
    "first-pair": ["first_pair.py"],
    "clicks": ["click_to_next.py"],
    "kills": ["kill_web.py"],
    "simulation": ["simulate_seeds.py"],
    "win-rate": ["winrate.py"],
    "recovery": ["recovery.py"],
    "reward-report": ["reward_report.py"],
    "agreement": ["agreement.py"],
}


def main() -> int:
    """Run the named measurements, or all; the exit status is 1 when one of them fails."""
    names = sys.argv[1:] or list(COMMANDS)
    unknown = sorted(set(names) - set(COMMANDS))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(COMMANDS)}\n")
        return 2
    failed = []
    for name in names:
        script, *options = COMMANDS[name]
        print(f"== {name}: python benchmarks/{script} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *options]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
