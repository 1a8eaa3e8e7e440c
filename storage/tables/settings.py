"""Settings in the database, e.g. the guidelines for annotators (key "guidelines")."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.lookup import Reader
from storage.engine.transaction import Transaction
from storage.records import (
    CRITERIA,
    LEARNED_FROM,
    AnnotatorKind,
    Criterion,
    Presence,
    Scale,
    StrengthRule,
    check_choice,
    check_tags,
)

_GET = "SELECT value FROM settings WHERE key = $key"
_SECRET = "SELECT value ->> '$' AS value FROM settings WHERE key = $key"


def get(db: Database, key: str, default: Any = None) -> Any:
    """The value of a key, or `default`."""
    rows = db.read(_GET, key=key)
    return json.loads(rows[0]["value"]) if rows else default


def put(db: Database, key: str, value: Any) -> None:
    """Store a JSON value."""
    db.write(lambda tx: tx.store(StoredSetting(key=key, value=value)))


def secret(db: Database, key: str) -> bytes:
    """A random secret of 32 bytes, created on first use and never exported."""
    return db.write(lambda tx: secret_in(tx, key))


def secret_in(tx: Transaction, key: str) -> bytes:
    """The same, inside a transaction."""
    if known := known_secret(tx, key):
        return known
    made = secrets.token_hex(32)
    tx.store(StoredSetting(key=key, value=made))
    return bytes.fromhex(made)


def known_secret(reader: Reader, key: str) -> bytes | None:
    """The secret, or None before its first use."""
    rows = reader.rows(_SECRET, key=key)
    return bytes.fromhex(rows[0]["value"]) if rows else None


_LEARN_FROM = "learn_from"


def learn_from(db: Database) -> tuple[AnnotatorKind, ...]:
    """The kinds of annotators whose judgments count as labels and train the models."""
    return tuple(get(db, _LEARN_FROM, LEARNED_FROM))


def set_learn_from(db: Database, kinds: Sequence[AnnotatorKind]) -> None:
    """Set the kinds that `learn_from` returns."""
    if tuple(kinds) != learn_from(db):
        put(db, _LEARN_FROM, list(kinds))


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """How many of an annotator's pairs measure them: `labeling.gold_share` and the settings after it,
    which have the same defaults."""

    gold_share: float = 0.02
    gold_first: int = 6
    reask_share: float = 0.03
    reask_after: int = 50
    practice: bool = False
    """Whether annotators first judge the practice pairs."""
    practice_mark: float = 0.5


CHECK_PLAN = "check_plan"


def check_plan(reader: Reader) -> CheckPlan:
    """The plan that the queue follows now."""
    rows = reader.rows(_GET, key=CHECK_PLAN)
    return _plans(json.loads(rows[0]["value"]) if rows else {})[1]


def check_plan_of(db: Database) -> CheckPlan:
    """The same, outside a transaction."""
    return _plans(get(db, CHECK_PLAN, {}))[1]


def set_check_plan(db: Database, plan: CheckPlan) -> None:
    """Apply the plan of the settings files, if it differs from the one they had before.

    Otherwise the researcher's choice of `ask_for_practice` stays: the latest change counts.
    """
    configured, used = _plans(get(db, CHECK_PLAN, {}))
    if plan == configured:
        return
    practice = used.practice if plan.practice == configured.practice else plan.practice
    _put_plans(db, configured=plan, used=replace(plan, practice=practice))


def ask_for_practice(db: Database, asked: bool) -> None:
    """Apply the researcher's choice on the page."""
    configured, used = _plans(get(db, CHECK_PLAN, {}))
    if asked != used.practice:
        _put_plans(db, configured=configured, used=replace(used, practice=asked))


def _plans(stored: Mapping[str, Any]) -> tuple[CheckPlan, CheckPlan]:
    """The plan of the settings files, and the one in use."""
    configured, used = (CheckPlan(**stored.get(name, {})) for name in ("configured", "used"))
    return configured, used


def _put_plans(db: Database, **plans: CheckPlan) -> None:
    put(db, CHECK_PLAN, {name: asdict(plan) for name, plan in plans.items()})


@dataclass(frozen=True)
class JudgmentForm:
    """What annotators are asked about a pair (the settings of the same names in `labeling`).

    `reasons` are the tags that they can give each response; `marks` says whether they can mark
    passages of a response with one of them.
    """

    scale: Scale = "two-step"
    strength: StrengthRule = "optional"
    criteria: Sequence[Criterion] = CRITERIA
    reasons: Sequence[str] = ()
    rationale: Presence = "optional"
    safety: Presence = "off"
    marks: bool = False

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, Scale)
        check_choice("strength", self.strength, StrengthRule)
        check_choice("rationale", self.rationale, Presence)
        check_choice("safety", self.safety, Presence)
        for name in self.criteria:
            check_choice("criterion", name, CRITERIA)
        # Lists in stored forms; criteria always in the same order.
        criteria = tuple(name for name in CRITERIA if name in self.criteria)
        object.__setattr__(self, "criteria", criteria)
        object.__setattr__(self, "reasons", check_tags("reasons", self.reasons))


_FORM = "judgment_form"


def judgment_form(db: Database) -> JudgmentForm:
    """The form that annotators use now."""
    return _forms(get(db, _FORM, {}))[1]


class _FormInUse:
    """The form in use, cached: a query per judgment would write each judgment by itself."""

    def __init__(self) -> None:
        self.form: JudgmentForm | None = None

    def apply(self, record: object) -> None:
        """Read the form again after a change."""
        if isinstance(record, StoredSetting) and record.key == _FORM:
            self.form = None

    def forget(self) -> None:
        """Read the form again after a rollback."""
        self.form = None


def known_judgment_form(tx: Transaction) -> JudgmentForm:
    """The same, as a transaction sees it."""
    cache = tx.observer(_FormInUse)
    if cache.form is None:
        rows = tx.rows(_GET, key=_FORM)
        cache.form = _forms(json.loads(rows[0]["value"]) if rows else {})[1]
    return cache.form


def configure_judgment_form(db: Database, form: JudgmentForm) -> None:
    """Apply the form of the settings files, if it differs from the one they had before.

    Otherwise the form that a researcher chose on the page stays: the latest change counts.
    """
    configured, _ = _forms(get(db, _FORM, {}))
    if form != configured:
        _put_forms(db, configured=form, used=form)


def choose_judgment_form(db: Database, form: JudgmentForm) -> None:
    """Apply the form that a researcher chose on the page."""
    configured, used = _forms(get(db, _FORM, {}))
    if form != used:
        _put_forms(db, configured=configured, used=form)


def _forms(stored: Mapping[str, Any]) -> tuple[JudgmentForm, JudgmentForm]:
    """The form of the settings files, and the one in use."""
    configured, used = (JudgmentForm(**stored.get(name, {})) for name in ("configured", "used"))
    return configured, used


def _put_forms(db: Database, **forms: JudgmentForm) -> None:
    put(db, _FORM, {name: asdict(form) for name, form in forms.items()})
