"""The commands that the command line and the administrator's route can run on an open database.

Arguments and results are JSON values, so that a live server can run a command for another process
on the same machine; paths are therefore absolute.  `Studio` (commands/studio.py) registers the
commands that need the loop: train, advance, resume, retry, settings, gate, push and status.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from storage import worker_files
from storage.arguments import check_arguments
from storage.audit_records import Actor, acting
from storage.browsing.commands import data_commands
from storage.browsing.runs import KL, REWARD, Comparison, compare
from storage.engine import backup
from storage.engine.database import Database
from storage.exporting import exports
from storage.importing.detect import ImportKind
from storage.importing.files.hub_files import local_file
from storage.importing.files.long_rows import TooLong
from storage.importing.request import IMPORTERS, ImportRequest, run_import
from storage.importing.sheet import ImportReport
from storage.labeling import flag_answers, gold, judgments, model_judges
from storage.lineage import tree
from storage.lineage.graph import lineage_graph, render_graph
from storage.records import (
    Annotator,
    AnnotatorKind,
    AnnotatorRole,
    Run,
    RunLabel,
    RunStatus,
    new_id,
)
from storage.reports import to_json
from storage.tables import audit, iterations, models
from storage.tables.people import annotators, tokens
from storage.tables.runs import run_labels, run_machines, run_resources, run_settings, runs


class Commands:
    """Named commands on one database."""

    address = ""
    """The URL of the studio, which a server sets; invite links begin with it."""

    serving = False
    """Whether people are served by this process: imports then run in processes of their own."""

    too_long: Callable[[], TooLong | None] = staticmethod(lambda: None)
    """Returns the check for rows that are too long for the model."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._table: dict[str, Callable[..., Any]] = {
            "lineage": self._lineage,
            "lineage.graph": self._lineage_graph,
            "import": self._import,
            "export": partial(exports.export, db),
            "backup": self._backup,
            "verify": partial(backup.verify, db),
            "iteration": self._iteration,
            "runs.list": self._runs,
            "runs.get": self._run,
            "runs.compare": self._compare,
            "runs.describe": self._describe_run,
            "evaluation.completions": self._evaluated,
            "flags.list": self._flags,
            "flags.answer": self._answer_flag,
            "flags.clear": self._clear_flag,
            **data_commands(db),
            "gold.list": self._gold,
            "gold.make": self._make_gold,
            "gold.retire": partial(self._set_gold, active=False),
            "gold.restore": partial(self._set_gold, active=True),
            "audit.list": self._audit,
            "audit.write": self._write_audit,
            "judge.open": self._judge_open,
            "judge.save": partial(model_judges.save, db),
            "users.add": self._add_user,
            "users.list": lambda: [_public(a) for a in annotators.listing(db)],
            "users.disable": self._disable,
            "users.enable": self._enable,
            "users.role": self._set_role,
            "users.revoke": self._revoke,
        }

    def register(self, name: str, command: Callable[..., Any]) -> None:
        """Add or replace a command.  Its parameters must be annotated."""
        self._table[name] = command

    def function(self, name: str) -> Callable[..., Any]:
        """The function of a command, for a route with the same parameters."""
        return self._table[name]

    def names(self) -> frozenset[str]:
        """The names of all commands."""
        return frozenset(self._table)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a command; a report that it returns becomes a JSON object.

        Raises ``ValueError`` for an unknown command or wrong arguments.
        """
        if name not in self._table:
            raise ValueError(f"there is no command {name!r}; known: {', '.join(self._table)}")
        command = self._table[name]
        check_arguments(name, command, arguments)
        with acting(Actor("", "command line")):
            result = command(**arguments)
        return to_json(result) if dataclasses.is_dataclass(result) else result

    def _lineage(self, policy: str) -> dict[str, Any]:
        found = tree.lineage(self._db, policy)
        return {"lineage": to_json(found), "text": tree.render(found)}

    def _lineage_graph(self) -> dict[str, Any]:
        found = lineage_graph(self._db)
        return {"graph": to_json(found), "text": render_graph(found)}

    def _backup(self, target: str) -> dict[str, str]:
        made = backup.backup(self._db, Path(target))
        audit.note(self._db, "backup", made.name)
        return {"backup": str(made)}

    def _disable(self, name: str) -> dict[str, Any]:
        return self._set_disabled(name, disabled=True)

    def _enable(self, name: str) -> dict[str, Any]:
        return self._set_disabled(name, disabled=False)

    def _import(
        self,
        kind: ImportKind,
        file: str,
        skip_bad: bool = False,
        skip_long: bool = False,
        source: str | None = None,
        names: dict[str, str] | None = None,
        **options: Any,
    ) -> ImportReport:
        given = {"file": file, "skip_bad": skip_bad, **options}
        check_arguments(f"import of {kind}", IMPORTERS[kind], given, own=("db", "length", "origin"))
        request = ImportRequest(
            kind=kind, source=source, names=names or {}, skip_bad=skip_bad, skip_long=skip_long,
            **options,
        )  # fmt: skip
        with local_file(file) as path:
            return run_import(self._db, path, request, too_long=self.too_long(), apart=self.serving)

    def _iteration(self, number: int) -> dict[str, Any]:
        """The stored iteration, the figures of its reward model, and the seconds that the workers of
        each stage took, with all attempts."""
        found = iterations.get(self._db, number)
        fitted = models.get(self._db, found.reward_model).summary if found.reward_model else {}
        seconds: dict[str, float] = {}
        for run in runs.listing(self._db, iteration=number):
            if (worked := runs.working_seconds(self._db, run)) is not None:
                seconds[run.stage] = seconds.get(run.stage, 0.0) + worked
        return _as_json(found) | {"seconds": seconds, "reward_model_summary": dict(fitted)}

    def _runs(
        self,
        iteration: int | None = None,
        search: str = "",
        status: RunStatus | None = None,
        method: str | None = None,
    ) -> list[dict[str, Any]]:
        """The runs, oldest first, each with the settings that the run of its kind before it had not.

        `search` has words of a name, note, method, status or changed setting; `method` is a method
        of policies, such as dpo.
        """
        listed = runs.listing(self._db)
        changed = run_settings.changed_in_all(listed)
        last = runs.last_values(self._db, (REWARD, KL))
        labels = run_labels.by_run(self._db)
        rows = []
        for run in listed:
            label = labels.get(run.id, RunLabel(run=run.id))
            settings = {each.name: each.now for each in changed[run.id]}
            described = " ".join(f"{name}={value}" for name, value in settings.items())
            if (
                iteration in (None, run.iteration)
                and status in (None, run.status)
                and (method is None or (run.stage == "policy" and method == runs.kind(run)))
                and run_labels.matches(run, label, search, changed=described)
            ):
                own = last.get(run.id, {})
                figures = {"reward": own.get(REWARD), "KL": own.get(KL)}
                line = _run_line(self._db, run) | figures | {"changed": settings}
                rows.append({"id": run.id, "name": label.name} | line)
        return rows

    def _describe_run(
        self, id: str, name: str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Give a run a name and a note; None changes nothing."""
        return _as_json(run_labels.describe(self._db, id, name=name, note=note))

    def _run(self, id: str) -> dict[str, Any]:
        run, listed = runs.get(self._db, id), runs.listing(self._db)
        notes = runs.notes(self._db, run.id)
        earlier = run_settings.run_before(listed, run)
        label = run_labels.of(self._db, run.id)
        resources = run_resources.used(self._db, run)
        machine = run_machines.of(self._db, run)
        return _run_line(self._db, run) | {
            "name": label.name,
            "note": label.note,
            "resources": None if resources is None else to_json(resources),
            "machine": None if machine is None else to_json(machine),
            "directory": run.directory,
            "reason": run.reason,
            "flags": [f"{n.name}: {n.message}" for n in notes if n.kind == "flag"],
            "compared with": earlier.id if earlier else None,
            "changed": [dataclasses.asdict(each) for each in run_settings.changed(listed, run)],
            "settings": run_settings.settings_of(run),
        }

    def _compare(self, ids: list[str], metrics: list[str] | None = None) -> Comparison:
        return compare(self._db, ids, metrics or (REWARD, KL))

    def _evaluated(self, iteration: int) -> list[dict[str, Any]]:
        return [dataclasses.asdict(each) for each in worker_files.evaluated(self._db, iteration)]

    def _flags(self, all: bool = False) -> list[dict[str, Any]]:
        found = flag_answers.flags(self._db, all=all)
        return [_as_json(each) | {"answers": [_as_json(a) for a in each.answers]} for each in found]

    def _answer_flag(self, id: str, text: str, clear: bool = False) -> dict[str, Any]:
        answer = flag_answers.answer_flag(
            self._db, id=new_id(), flag=id, researcher="", text=text, clear=clear
        )
        return _as_json(answer)

    def _clear_flag(self, id: str) -> dict[str, Any]:
        return _as_json(judgments.clear_flag(self._db, id=new_id(), flag=id, researcher=""))

    def _audit(
        self,
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
        search: str | None = None,
        limit: int | None = 50,
    ) -> list[dict[str, Any]]:
        """Entries of the audit log, the newest first; `since` and `until` are times in ISO 8601."""
        found = audit.listing(
            self._db,
            actor=actor,
            action=action,
            since=audit.moment(since),
            until=audit.moment(until),
            search=search,
            limit=limit,
        )
        return [each.row() for each in found]

    def _write_audit(self, out: str, **filters: Any) -> dict[str, Any]:
        check_arguments("audit.write", self._audit, filters)
        rows = self._audit(**{"limit": None} | filters)
        return {"out": out, "entries": audit.write_file(rows, Path(out))}

    def _gold(self, kind: Literal["gold", "practice"] = "gold") -> list[dict[str, Any]]:
        return [_gold_pair(each) for each in gold.listing(self._db, kind)]

    def _make_gold(self, count: int) -> dict[str, int]:
        return {"made": gold.make(self._db, count), "candidates": gold.candidates(self._db)}

    def _set_gold(self, id: str, *, active: bool) -> dict[str, Any]:
        return _as_json(gold.set_active(self._db, id, active=active))

    def _judge_open(self, name: str, limit: int) -> dict[str, Any]:
        """Pairs that this judge has not judged, and the id of the judge's account."""
        judge = model_judges.judge_named(self._db, name)
        pairs = model_judges.open_pairs(self._db, annotator=judge.id, limit=limit)
        return {
            "annotator": judge.id,
            "pairs": [dataclasses.asdict(pair) for pair in pairs],
        }

    def _add_user(
        self,
        name: str,
        role: AnnotatorRole = "annotator",
        kind: AnnotatorKind = "person",
        token: bool = False,
    ) -> dict[str, Any]:
        """An account with an API token for scripts, or with an invite link for a browser.

        An existing account of the same role gets another token or invite; ``added`` is then False.
        """
        name = name.strip()
        user = annotators.by_name(self._db, name)
        if user and (user.role, user.kind) != (role, kind):
            raise ValueError(
                f"{name!r} is taken by a {user.kind} with the role {user.role}; choose another name"
            )
        if user and user.disabled:
            raise ValueError(f"{name!r} is disabled; `users enable` enables the account")
        added = user is None
        if user is None:
            user = Annotator(id=new_id("a"), name=name, role=role, kind=kind)
            annotators.add(self._db, user)
        account = _public(user) | {"added": added}
        if token:
            return account | {"token": tokens.issue(self._db, user.id, "api", lifetime=None)}
        return account | {"invite": tokens.issue_invite(self._db, user.id, address=self.address)}

    def _set_disabled(self, name: str, *, disabled: bool) -> dict[str, Any]:
        user = self._user(name)
        return _public(annotators.set_disabled(self._db, user.id, disabled=disabled))

    def _set_role(self, name: str, role: AnnotatorRole) -> dict[str, Any]:
        return _public(annotators.set_role(self._db, self._user(name).id, role))

    def _revoke(self, name: str) -> dict[str, Any]:
        user = self._user(name)
        return {
            "name": user.name,
            "revoked": tokens.revoke_kinds(self._db, user.id, ("invite", "api")),
        }

    def _user(self, name: str) -> Annotator:
        user = annotators.by_name(self._db, name)
        if user is None:
            known = ", ".join(a.name for a in annotators.listing(self._db)) or "nobody"
            raise ValueError(f"there is no user called {name!r}; there are: {known}")
        return user


def _gold_pair(pair: gold.GoldPair) -> dict[str, Any]:
    """A gold pair as JSON values, with the prompt as chat messages."""
    return _as_json(pair) | {"messages": json.loads(pair.messages)}


def _run_line(db: Database, run: Run) -> dict[str, Any]:
    seconds = runs.working_seconds(db, run)
    return {
        "id": run.id,
        "iteration": run.iteration,
        "stage": run.stage,
        "method": runs.name(run) if run.stage == "policy" else None,
        "status": run.status,
        "progress": run.progress,
        "attempt": run.attempt,
        "started": run.created_at.isoformat(timespec="seconds"),
        "seconds": None if seconds is None else round(seconds, 1),
    }


def _public(user: Annotator) -> dict[str, Any]:
    fields = _as_json(user)
    del fields["password_hash"]
    return fields


def _as_json(record: Any) -> dict[str, Any]:
    """A record as JSON values: times in ISO 8601."""
    return {
        key: value.isoformat() if hasattr(value, "isoformat") else value
        for key, value in dataclasses.asdict(record).items()
    }
