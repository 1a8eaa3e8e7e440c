"""A process that opens a workspace as the server does and acts on it until it is killed.

It uses the real `Database` with its writer thread, without a web server: a start takes a tenth of a
second, so the benchmark can kill a thousand of them.  It is forked from a fork server that has
imported everything, so that a kill during the start hits the opening and not the imports.  It
reports every act through a pipe before sending it and after the acknowledgment; a pipe keeps its
content when the writer dies.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from benchmarks.kills.ledger import Act
from storage.engine.backup import verify
from storage.engine.database import Database
from storage.errors import Conflict, NotFound, NotLeased, StorageUnavailable
from storage.labeling import judgments, queue
from storage.records import ScreenOutcome, new_id

CLIENTS = 8
OUTCOMES: tuple[ScreenOutcome, ...] = ("a", "b", "tie", "both_bad")
_JUDGED = (
    "SELECT comparison FROM current_judgments WHERE annotator = $annotator ORDER BY comparison"
)
_MAX_COMMENT_LENGTH = 600  # characters; acts of different sizes end at different page offsets


def start(
    workspace: Path, *, seed: int, again: list[Act], load: bool
) -> tuple[ForkServerProcess, Connection]:
    """Start a process that opens the workspace and sends the acts in `again`.

    With `load` it acts until it is killed; without, it verifies the workspace and ends.  It reports
    its acts through the connection.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(workspace, seed, again, load, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _run(workspace: Path, seed: int, again: list[Act], load: bool, connection: Connection) -> None:
    speak = threading.Lock()

    def tell(*message: Any) -> None:
        with speak:
            connection.send(message)

    began = time.monotonic()
    try:
        db = Database.open(workspace, create=False)
        tell("opened", time.monotonic() - began)
        if not load:
            found = verify(db)
            db.close()
            tell("verified", found.differences)
            return
        for unanswered in again:
            _send(db, unanswered, tell)
        threads = [
            threading.Thread(target=act, args=(db, f"a-{n}", seed + n, tell), daemon=True)
            for n in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except Exception as error:
        tell("failed", type(error).__name__, str(error))


def act(db: Database, annotator: str, seed: int, tell: Callable[..., None]) -> None:
    """Judge, revise, undo, skip and flag as one annotator, until the process is killed."""
    coin = random.Random(seed)
    try:
        mine = [row["comparison"] for row in db.read(_JUDGED, annotator=annotator)]
        while True:
            pairs = _until_stored(lambda: queue.lease(db, annotator, 2).pairs, tell)
            for pair in pairs:
                made = _some_act(coin, annotator, pair.comparison.id, mine)
                tell("sent", made)
                if _send(db, made, tell) and made.kind == "judgment":
                    mine.append(made.target)
            if not pairs and mine:
                made = _judgment(coin, annotator, coin.choice(mine))
                tell("sent", made)
                _send(db, made, tell)
            elif not pairs:
                tell("idle")
                time.sleep(0.01)
    except BrokenPipeError:  # the reader is gone
        return
    except Exception as error:
        tell("failed", type(error).__name__, str(error))


def _some_act(coin: random.Random, annotator: str, comparison: str, mine: list[str]) -> Act:
    kind = coin.random()
    if kind < 0.05:
        return Act(new_id(), "skip", annotator, comparison)
    if kind < 0.08:
        return Act(new_id(), "flag", annotator, comparison, comment=_comment(coin))
    if kind < 0.2 and mine:
        return _judgment(coin, annotator, coin.choice(mine))  # a revision
    return _judgment(coin, annotator, comparison)


def _judgment(coin: random.Random, annotator: str, comparison: str) -> Act:
    outcome = coin.choice(OUTCOMES)
    return Act(new_id(), "judgment", annotator, comparison, outcome, _comment(coin))


def _comment(coin: random.Random) -> str:
    if coin.random() < 0.6:
        return ""
    letters = 'abc "\\\nüß漢😀'
    return "".join(coin.choices(letters, k=coin.randrange(_MAX_COMMENT_LENGTH)))


def _send(db: Database, act: Act, tell: Callable[..., None]) -> bool:
    """Send an act until it is stored or refused permanently; True if it was acknowledged."""
    try:
        _until_stored(lambda: _store(db, act), tell)
    except (Conflict, NotFound, NotLeased) as error:
        tell("refused", act.id, f"{type(error).__name__}: {error}")
        return False
    tell("saved", act.id)
    if act.kind == "judgment" and act.id[-1] in "02":
        # At most one in sixteen is withdrawn; the id of the withdrawal derives from the act's.
        undo = Act(f"undo-{act.id}", "withdrawal", act.annotator, act.id)
        tell("sent", undo)
        return _send(db, undo, tell)
    return True


def _store(db: Database, act: Act) -> None:
    if act.kind == "withdrawal":
        judgments.undo(db, id=act.id, annotator=act.annotator, replaces=act.target)
        return
    given: dict[str, Any] = {"id": act.id, "comparison": act.target, "annotator": act.annotator}
    if act.kind == "judgment":
        assert act.outcome is not None
        judgments.judge(db, outcome=act.outcome, comment=act.comment, **given)
    elif act.kind == "flag":
        judgments.flag(db, comment=act.comment, **given)
    else:
        judgments.skip(db, **given)


def _until_stored(action: Callable[[], Any], tell: Callable[..., None]) -> Any:
    while True:
        try:
            return action()
        except StorageUnavailable as error:
            tell("full", str(error))
            time.sleep(0.01)
