"""``make bench``: every measurement that needs no data of its own, one after another.

    python -m benchmarks [NAME ...]
    python -m benchmarks NAME --option VALUE ...

Each is a script or a package of its own with options; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = {
    "storage": ["storage_commits.py"],
    "labels": ["label_load.py"],
    "labels-200": ["label_load.py", "--clients", "200"],
    "labels-beside": ["label_beside_training.py"],
    "first-pair": ["first_pair.py"],
    "clicks": ["click_to_next.py"],
    "kills": ["kills"],
    "powercuts": ["powercuts"],
    "kl-grid": ["kl_grid.py"],
    "simulation": ["simulate_seeds.py"],
    "win-rate": ["winrate.py"],
    "recovery": ["recovery.py"],
    "reward-report": ["reward_report.py"],
    "agreement": ["agreement.py"],
    "mutants": ["mutants.py"],
}


def main() -> int:
    """Run the named measurements, or all; the exit status is 1 when one of them fails."""
    given = sys.argv[1:]
    first = next((n for n, word in enumerate(given) if word.startswith("-")), len(given))
    names, more = given[:first] or list(COMMANDS), given[first:]
    unknown = sorted(set(names) - set(COMMANDS))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(COMMANDS)}\n")
        return 2
    if more and len(names) != 1:
        sys.stderr.write(
            f"{' '.join(more)}: options belong to one benchmark; name it before them\n"
        )
        return 2
    failed = []
    for name in names:
        script, *options = COMMANDS[name]
        options += more
        package = (HERE / script).is_dir()
        run = ["-m", f"benchmarks.{script}"] if package else [str(HERE / script)]
        shown = run if package else [f"benchmarks/{script}"]
        print(f"== {name}: python {' '.join([*shown, *options])}", flush=True)
        if subprocess.run([sys.executable, *run, *options]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
