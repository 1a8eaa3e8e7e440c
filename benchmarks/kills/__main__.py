"""Kills the server a thousand times under load and checks that no acknowledged act is lost.

    python -m benchmarks.kills [--kills 1000] [--minutes 90] [--out FILE] [--seed 0]

Clients act as fast as they can, and a ledger outside the killed process records every acknowledged
act.  Of a thousand kills (``kill -9``), 600 happen under load, 200 during a start, 100 on a nearly
full disk, and 100 are followed by torn, zeroed or flipped bytes in one file.  One in twenty of each
kind hits ``launch.py serve`` with sixteen clients over HTTP; the others hit a process with the real
database and its writer thread but no web server, which starts in a tenth of a second.  Acts without
an acknowledgment are sent again under the same id, as the page does.  After each kill

* every acknowledged act is stored once, in database and journal, as it was sent;
* no annotator has two current judgments of a pair, and nothing is stored that was not sent;
* `rebuild` makes the same tables from the journal;
* the workspace opens again; after damage and on a full disk, as the error message advises.

Prints a table; the exit status is 1 if a check fails.  Stops after --minutes; the same command with
the same --out continues.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import markdown
from benchmarks.kills.campaign import StorageCampaign
from benchmarks.kills.web import WebCampaign
from benchmarks.kills.world import Disk, FileLimit, SmallDisk

SHARES = {
    ("storage", "start"): 0.19,
    ("storage", "full"): 0.095,
    ("storage", "damage"): 0.095,
    ("web", "load"): 0.03,
    ("web", "start"): 0.01,
    ("web", "full"): 0.005,
    ("web", "damage"): 0.005,
}
"""Shares of all kills; the rest hit the storage process under load."""
AT_LEAST_ONE = [("web", "load"), ("web", "start")]
CAMPAIGN = 12  # kills in one workspace
_INSIDE = "KITESTRING_KILLS_MAY_MOUNT"


def plan(kills: int, seed: int) -> list[tuple[str, list[str]]]:
    """Campaigns as (name, kind of each kill); kills on a full disk have campaigns of their own."""
    counts = {key: round(share * kills + 1e-9) for key, share in SHARES.items()}
    for key in AT_LEAST_ONE:
        counts[key] = max(1, counts[key])
    counts["storage", "load"] = max(0, kills - sum(counts.values()))
    coin = random.Random(seed)
    made: list[tuple[str, list[str]]] = []
    for process in ("storage", "web"):
        for disk in ("large", "small"):
            kinds = [
                kind
                for (where, kind), n in counts.items()
                if where == process and (kind == "full") == (disk == "small")
                for _ in range(n)
            ]
            coin.shuffle(kinds)
            parts = [kinds[n : n + CAMPAIGN] for n in range(0, len(kinds), CAMPAIGN)]
            made += [(f"{process}-{disk}-{n:02d}", part) for n, part in enumerate(parts, 1)]
    return made


def run_campaign(name: str, kinds: list[str], *, seed: int) -> dict[str, Any]:
    """Run one campaign in a temporary directory, which is kept when something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="kitestring-kills-"))
    small = None
    try:
        if "small" in name:
            small = _small_disk(folder)
        campaign = (WebCampaign if name.startswith("web") else StorageCampaign)(
            name, kinds, folder, seed=seed, disk=small
        )
        try:
            report = campaign.run()
        except Exception as error:  # the other campaigns run anyway
            report = campaign.report.failed(f"{type(error).__name__}: {error}")
    finally:
        if isinstance(small, SmallDisk):
            kept = folder / "small"
            shutil.copytree(kept, folder / "kept", ignore=shutil.ignore_patterns("ballast"))
            subprocess.run(["umount", "--lazy", kept], check=False, timeout=60)
    if report["faults"]:
        report["notes"].append(f"kept in {folder}")
    else:
        shutil.rmtree(folder)
    return report


def _small_disk(folder: Path) -> Disk:
    if os.environ.get(_INSIDE):
        return SmallDisk(folder / "small")
    return FileLimit(folder / "small" / "workspace")


def table(reports: list[dict[str, Any]]) -> str:
    """The results as Markdown: a row for each kind of process and of kill."""
    kinds: Counter[tuple[str, str]] = Counter()
    sums: dict[str, Counter[str]] = {}
    for report in reports:
        process = report["name"].split("-")[0]
        kinds.update({(process, kind): n for kind, n in report["kills"].items()})
        total = sums.setdefault(process, Counter())
        total.update(report["faults"])
        total.update({name: report[name] for name in ("sent", "acknowledged", "while_opening")})
    rows, acts = [], []
    for process, total in sums.items():
        of = {kind: kinds[process, kind] for kind in ("load", "start", "full", "damage")}
        start = f"{of['start']} ({total['while_opening']})"
        rows.append((process, sum(of.values()), of["load"], start, of["full"], of["damage"]))
        faults = {
            k: n for k, n in total.items() if k not in ("sent", "acknowledged", "while_opening")
        }
        acts.append((process, total["sent"], total["acknowledged"], faults or "none"))
    recoveries = sum((Counter(report["recoveries"]) for report in reports), Counter())
    full = sum((Counter(report["on_full_disk"]) for report in reports), Counter())
    header = (
        *("process", "kills", "load", "start (before it was open)"),
        *("full disk", "one file damaged"),
    )
    return (
        f"{markdown(header, rows)}\n\n"
        f"{markdown(('process', 'sent', 'acknowledged', 'faults'), acts)}\n\n"
        f"after damage: {dict(recoveries)}\nopening on the full disk: {dict(full)}"
    )


def keep(out: Path, name: str, report: dict[str, Any]) -> dict[str, Any]:
    """Add a report to the results file, which other processes may also write; returns all."""
    with out.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        reports = json.loads(file.read() or "{}") | {name: report}
        file.truncate(0)
        file.write(json.dumps(dict(sorted(reports.items())), indent=1) + "\n")
    return reports


def _private_mounts() -> None:
    """Restart in a private mount namespace, so that small disks vanish with this process."""
    if os.environ.get(_INSIDE) or shutil.which("unshare") is None:
        return
    trial = ["mount", "-t", "tmpfs", "kitestring", "/tmp"]
    for flags in (["--mount"], ["--mount", "--user", "--map-root-user"]):
        command = ["unshare", *flags]
        if subprocess.run([*command, *trial], capture_output=True, timeout=60).returncode == 0:
            again = [sys.executable, "-m", "benchmarks.kills", *sys.argv[1:]]
            os.execvpe("unshare", [*command, *again], os.environ | {_INSIDE: "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeated kill -9 under load.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=90, help="start no campaign later")
    parser.add_argument("--out", type=Path, help="store results here and continue from them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="campaigns whose names begin with this")
    args = parser.parse_args()
    _private_mounts()
    reports: dict[str, Any] = {}
    if args.out and args.out.exists():
        reports = json.loads(args.out.read_text())
    give_up = time.monotonic() + 60 * args.minutes
    left = [(n, k) for n, k in plan(args.kills, args.seed) if n not in reports]
    for name, kinds in left:
        if args.only and not name.startswith(args.only):
            continue
        if time.monotonic() > give_up:
            print("stopped by --minutes; run the same command to continue")
            break
        reports[name] = run_campaign(name, kinds, seed=args.seed)
        print(json.dumps(reports[name]), file=sys.stderr, flush=True)
        if args.out:
            reports = keep(args.out, name, reports[name])
    print(table(list(reports.values())))
    return 1 if not reports or any(report["faults"] for report in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
