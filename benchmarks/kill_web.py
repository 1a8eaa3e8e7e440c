"""Is "saved" true?  ``kill -9`` of the web process under load, again and again.

    python benchmarks/kill_web.py [--kills 20] [--clients 16] [--pairs 30000] [--workspace DIR]

Annotators judge over HTTP as fast as they can, and every client keeps its own record of what the
server acknowledged.  The web process is killed at random moments and started again; clients send
what was not acknowledged again, under the same id, as the page does.  Afterwards

* every acknowledged judgment is stored exactly once, as it was pressed;
* nobody has judged a pair twice, and nothing is stored that no client has sent;
* ``launch.py rebuild`` makes the same tables from the journal alone.

Prints one JSON object; the exit status is 1 when any of this fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.clients import LabelClient  # noqa: E402
from pipeline.population import Verdict  # noqa: E402
from storage import annotators, comparisons, completions, iterations, models, prompts, tokens  # noqa: E402
from storage.database import Database  # noqa: E402
from storage.records import (  # noqa: E402
    Annotator,
    Comparison,
    Completion,
    Iteration,
    ModelVersion,
    Prompt,
    ScreenOutcome,
    canonical_outcome,
    new_id,
)

OUTCOMES: tuple[ScreenOutcome, ...] = ("a", "b", "tie", "both_bad")
NOT_JOURNALED = ("leases", "metrics", "run_notes", "meta", "migrations")
START_TIMEOUT = 180.0  # seconds, on a crowded machine
LOAD_TIMEOUT = 60.0


@dataclass
class Client:
    """One annotator's record of what he sent and what was acknowledged, by judgment id."""

    annotator: str
    token: str
    seed: int
    sent: dict[str, tuple[str, ScreenOutcome]] = field(default_factory=dict)
    acknowledged: dict[str, tuple[str, ScreenOutcome]] = field(default_factory=dict)
    trouble: str | None = None

    def judge_until(self, stop: threading.Event, base_url: str) -> None:
        """Judge whatever comes until `stop`; trouble is kept for the report."""
        coin = random.Random(self.seed)
        try:
            with LabelClient(base_url, self.token, patience=2 * START_TIMEOUT) as connection:
                while not stop.is_set():
                    for pair in connection.next(4):
                        id, outcome = new_id(), coin.choice(OUTCOMES)
                        self.sent[id] = (pair.id, outcome)
                        verdict = Verdict(outcome=outcome, milliseconds=coin.randrange(60_000))
                        connection.judge(pair.id, verdict, id=id)
                        self.acknowledged[id] = (pair.id, outcome)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"


def fill(workspace: Path, *, clients: int, pairs: int, seed: int) -> list[Client]:
    """A workspace in its labeling phase with `pairs` to judge, and an account per client."""
    coin = random.Random(seed)
    with Database.open(workspace) as db:
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        asked = [Prompt.make(f"Question {n}?", role="train") for n in range(pairs)]
        texts = [
            Completion(id=f"r-{n}-{side}", prompt=p.id, policy="sft-1", text=f"Answer {n} {side}.")
            for n, p in enumerate(asked)
            for side in ("x", "y")
        ]
        made = [
            Comparison(
                id=f"c-{n}",
                prompt=p.id,
                first=f"r-{n}-x",
                second=f"r-{n}-y",
                iteration=1,
                arm="random",
                wanted=2 if coin.random() < 0.1 else 1,
                position=coin.randrange(2**62),
            )
            for n, p in enumerate(asked)
        ]
        prompts.add(db, asked)
        completions.add(db, texts)
        comparisons.add(db, made)
        iterations.save(
            db,
            Iteration(number=1, phase="labeling", policy_sampled="sft-1", labels_wanted=10 * pairs),
        )
        accounts = [
            Annotator(id=f"a-{n}", name=f"sim-{n}", kind="simulated") for n in range(clients)
        ]
        for account in accounts:
            annotators.add(db, account)
        return [
            Client(
                annotator=account.id,
                token=tokens.issue(db, account.id, "api", lifetime=None),
                seed=seed + n,
            )
            for n, account in enumerate(accounts)
        ]


def start(workspace: Path, port: int) -> subprocess.Popen[bytes]:
    """The real server; returns once it answers."""
    command = [sys.executable, "launch.py", "serve", "--workspace", workspace, "--port", str(port)]
    with (workspace / "serve.log").open("ab") as log:
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    give_up = time.monotonic() + START_TIMEOUT
    while time.monotonic() < give_up:
        if server.poll() is not None:
            sys.exit(f"the server did not start: see {workspace / 'serve.log'}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=1).is_success:
                return server
        except httpx.TransportError:
            time.sleep(0.05)
    server.kill()
    sys.exit(f"the server did not answer within {START_TIMEOUT:.0f} s")


def kill_again_and_again(
    workspace: Path, clients: list[Client], *, kills: int, port: int, seed: int
) -> list[float]:
    """Run the load through `kills` deaths of the server; returns seconds from start to answer."""
    coin, stop, starts = random.Random(seed), threading.Event(), []
    base_url = f"http://127.0.0.1:{port}"
    threads = [
        threading.Thread(target=client.judge_until, args=(stop, base_url)) for client in clients
    ]

    def timed() -> subprocess.Popen[bytes]:
        began = time.monotonic()
        server = start(workspace, port)
        starts.append(time.monotonic() - began)
        return server

    server = timed()
    for thread in threads:
        thread.start()
    for kill in range(1, kills + 1):
        saved = wait_for_load(clients, more=coin.randrange(20, 400))
        os.kill(server.pid, signal.SIGKILL)
        server.wait(timeout=30)
        print(f"kill {kill}: {saved} acknowledged", file=sys.stderr, flush=True)
        server = timed()
    wait_for_load(clients, more=coin.randrange(20, 400))
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    server.send_signal(signal.SIGINT)
    server.wait(timeout=60)
    return starts


def wait_for_load(clients: list[Client], *, more: int) -> int:
    """Wait until `more` judgments have been acknowledged; returns how many there are in all."""
    before, give_up = acknowledged(clients), time.monotonic() + LOAD_TIMEOUT
    while acknowledged(clients) < before + more and time.monotonic() < give_up:
        time.sleep(0.002)
    return acknowledged(clients)


def acknowledged(clients: list[Client]) -> int:
    return sum(len(client.acknowledged) for client in clients)


def tables(db: Database) -> dict[str, list[str]]:
    """Every row of every table that the journal must bring back, sorted."""
    names = db.read(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' ORDER BY table_name"
    )
    # Names come from the catalogue, not from anybody's input.
    return {
        name: sorted(json.dumps(row, default=str) for row in db.read(f'SELECT * FROM "{name}"'))
        for name in (row["table_name"] for row in names)
        if name not in NOT_JOURNALED
    }


def differences(workspace: Path, clients: list[Client]) -> dict[str, int]:
    """What acknowledged and stored judgments disagree on; all zero when "saved" was true."""
    with Database.open(workspace, create=False) as db:
        rows = db.read("SELECT id, comparison, annotator, outcome, shown_swapped FROM judgments")
    by_id = {row["id"]: row for row in rows}
    sent = {id: client for client in clients for id in client.sent}
    lost = altered = 0
    for client in clients:
        for id, (comparison, pressed) in client.acknowledged.items():
            row = by_id.get(id)
            if row is None:
                lost += 1
                continue
            outcome = canonical_outcome(pressed, shown_swapped=row["shown_swapped"])
            kept = (row["comparison"], row["annotator"], row["outcome"])
            altered += kept != (comparison, client.annotator, outcome)
    pairs = Counter((row["comparison"], row["annotator"]) for row in rows)
    return {
        "lost": lost,
        "altered": altered,
        "doubled_ids": len(rows) - len(by_id),
        "judged_twice": sum(n > 1 for n in pairs.values()),
        "never_sent": sum(row["id"] not in sent for row in rows),
    }


def rebuild_differs(workspace: Path) -> list[str]:
    """The tables that `rebuild` makes otherwise than they were."""
    with Database.open(workspace, create=False) as db:
        before = tables(db)
    subprocess.run(
        [sys.executable, "launch.py", "rebuild", "--workspace", workspace],
        cwd=ROOT,
        check=True,
        stdout=sys.stderr,
        timeout=600,
    )
    with Database.open(workspace, create=False) as db:
        after = tables(db)
    return [name for name in before if before[name] != after.get(name)]


def bench(workspace: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The whole measurement as one JSON-able report."""
    clients = fill(workspace, clients=args.clients, pairs=args.pairs, seed=args.seed)
    starts = kill_again_and_again(
        workspace, clients, kills=args.kills, port=args.port, seed=args.seed
    )
    report: dict[str, Any] = {
        "kills": args.kills,
        "clients": args.clients,
        "sent": sum(len(client.sent) for client in clients),
        "acknowledged": acknowledged(clients),
        "slowest_start_s": round(max(starts), 1),
        "client_errors": [client.trouble for client in clients if client.trouble],
    }
    report |= differences(workspace, clients)
    report["rebuild_differs"] = rebuild_differs(workspace)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of the web process under load.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--port", type=int, default=7871)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workspace", type=Path, help="keep the workspace here (must be new)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kitestring-kill-") as temporary:
        report = bench(args.workspace or Path(temporary) / "workspace", args)
    print(json.dumps(report, indent=2))
    bad = ("lost", "altered", "doubled_ids", "judged_twice", "never_sent")
    failed = any(report[name] for name in (*bad, "rebuild_differs", "client_errors"))
    return 1 if failed or not report["acknowledged"] else 0


if __name__ == "__main__":
    sys.exit(main())
