"""``make bench``: runs every benchmark that needs no external data, one after another.

    python -m benchmarks [NAME ...]
    python -m benchmarks NAME --option VALUE ...

Each benchmark is a module or package with its own options; docs/benchmarks.md has the results.
"""

from __future__ import annotations

import subprocess
import sys

COMMANDS = {
    "storage": ["storage_commits"],
    "labels": ["label_load"],
    "labels-200": ["label_load", "--clients", "200"],
    "labels-beside": ["label_beside_training"],
    "first-pair": ["first_pair"],
    "first-token": ["first_token"],
    "clicks": ["click_to_next"],
    "kills": ["kills"],
    "powercuts": ["powercuts"],
    "kl-grid": ["kl_grid"],
    "launchers": ["launchers", "--launchers", "local"],
    "iteration-time": ["iteration_time"],
    "token-balance": ["token_balance"],
    "simulation": ["simulate_seeds"],
    "win-rate": ["winrate"],
    "autopilot": ["autopilot"],
    "recovery": ["recovery"],
    "reward-report": ["reward_report"],
    "agreement": ["agreement"],
    "browsing": ["browsing"],
    "checks": ["checks"],
    "canary": ["canary"],
    "console": ["console"],
    "edits": ["edits"],
    "mutants": ["mutants"],
}


def main() -> int:
    """Run the named benchmarks, or all; the exit status is 1 if one of them fails."""
    given = sys.argv[1:]
    first = next((n for n, word in enumerate(given) if word.startswith("-")), len(given))
    names, more = given[:first] or list(COMMANDS), given[first:]
    unknown = sorted(set(names) - set(COMMANDS))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(COMMANDS)}\n")
        return 2
    if more and len(names) != 1:
        sys.stderr.write(
            f"{' '.join(more)}: options belong to one benchmark; put its name before them\n"
        )
        return 2
    failed = []
    for name in names:
        module, *options = COMMANDS[name]
        command = ["-m", f"benchmarks.{module}", *options, *more]
        print(f"== {name}: python {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, *command]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
