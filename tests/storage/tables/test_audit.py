"""The audit log: what is noted with a change, for whom, and what never enters it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.exporting import exports
from storage.labeling import exclusions, flag_answers, gold, judgments, queue
from storage.notification_records import EVENTS, Webhook
from storage.records import AdjudicationRequest, Annotator, PromptEdit, StrengthRule
from storage.tables import audit, guidelines, policy_judgments, settings
from storage.tables.people import annotators, tokens
from storage.tables.runs import webhooks
from storage.tables.runs.webhooks import Attempt
from tests.helpers.policy_world import add_models
from tests.helpers.storage_world import fill

REA = Actor("r", "browser")


@pytest.fixture(autouse=True)
def rea(db: Database) -> Annotator:
    """A researcher."""
    return annotators.add(db, Annotator(id="r", name="Rea", role="researcher"))


def told(db: Database, **filters) -> list[tuple]:
    """(actor, action, subject, details), oldest first."""
    rows = [each.row() for each in audit.listing(db, limit=None, **filters)]
    return [(r["actor"], r["action"], r["subject"], r["details"]) for r in reversed(rows)]


def actions(db: Database) -> list[str]:
    return [each[1] for each in told(db)]


def test_a_change_by_the_studio_itself_is_not_noted(db):
    fill(db)
    settings.set_learn_from(db, ["person"])
    audit.note(db, "train", "iteration 1")
    assert told(db) == []


def test_accounts_tokens_and_roles_are_noted_without_secrets(db):
    secrets = []
    with acting(REA):
        annotators.add(db, Annotator(id="a", name="Ann"))
        secrets.append(tokens.issue_invite(db, "a", address="").rpartition("=")[2])
        secrets.append(tokens.issue(db, "a", "api", lifetime=None))
        annotators.set_role(db, "a", "viewer")
        annotators.set_disabled(db, "a", disabled=True)
        annotators.set_disabled(db, "a", disabled=False)
    with acting(Actor("a", "browser")):
        invite = tokens.issue(db, "a", "invite", lifetime=None)
        annotators.accept_invite(db, invite, password_hash="$argon2id$secret")
        secrets += [invite, "$argon2id$secret"]
        secrets.append(tokens.issue(db, "a", "session", lifetime=None))
        tokens.revoke(db, secrets[-1])
    assert told(db) == [
        ("Rea", "account.added", "Ann", {"name": "Ann", "role": "annotator", "kind": "person"}),
        ("Rea", "invite.issued", "Ann", {}),
        ("Rea", "token.issued", "Ann", {}),
        ("Rea", "account.role", "Ann", {"name": "Ann", "role": "viewer", "before": "annotator"}),
        ("Rea", "invite.revoked", "Ann", {}),
        ("Rea", "token.revoked", "Ann", {}),
        ("Rea", "account.disabled", "Ann", {"name": "Ann", "role": "viewer"}),
        ("Rea", "account.enabled", "Ann", {"name": "Ann", "role": "viewer"}),
        ("Ann", "invite.issued", "Ann", {}),
        ("Ann", "invite.revoked", "Ann", {}),
        ("Ann", "account.password", "Ann", {"name": "Ann", "role": "viewer"}),
        ("Ann", "sign-in", "Ann", {}),
        ("Ann", "session.ended", "Ann", {}),
    ]
    lines = (db.workspace / "journal.jsonl").read_text().splitlines()
    log = [line for line in lines if line.startswith('{"record":"audit"')]
    assert len(log) == 13
    for secret in [*secrets, *(tokens.hash_secret(each) for each in secrets)]:
        assert not any(secret in line for line in log)


def test_settings_are_noted_with_what_changed_and_secrets_are_not(db):
    with acting(REA):
        settings.secret(db, "pseudonym_secret")
        settings.secret(db, "browser_secret")
        annotators.set_language(db, "r", "de")
        settings.choose_judgment_form(db, settings.JudgmentForm())
        rule: StrengthRule = "required"
        settings.choose_judgment_form(db, settings.JudgmentForm(strength=rule))
        guidelines.save(db, "Be kind.")
        guidelines.save(db, "Sei nett.", language="de")
        settings.put(db, "something_new", "its value")
    assert told(db)[-4:] == [
        ("Rea", "setting.changed", "judgment_form", {"strength": "required"}),
        ("Rea", "guidelines.changed", "", {"characters": 8}),
        ("Rea", "guidelines.changed", "", {"languages": "de"}),
        ("Rea", "setting.changed", "something_new", {}),
    ]
    assert not any("secret" in each[2] for each in told(db))


def test_rulings_exclusions_flags_and_gold_pairs_are_noted(db):
    add_models(db, policies=1)
    (pair, *_) = fill(db)
    queue.lease(db, "ann", 3)
    judgments.judge(db, id="j", comparison=pair, annotator="ann", outcome="a")
    judgments.flag(db, id="f", comparison="c1-1", annotator="ann", comment="private words")
    assert told(db) == []
    with acting(REA):
        policy_judgments.override(db, "policy-1", "block", reason="It is rude.", researcher="r")
        exclusions.exclude(db, "j", reason="A slip.", researcher="r")
        flag_answers.answer_flag(
            db, id="x", flag="f", researcher="r", text="Thank you.", clear=True
        )
    with acting(Actor("ann", "browser")):
        flag_answers.mark_read(db, "ann", ["x"])
    assert told(db) == [
        ("Rea", "gate.override", "policy-1", {"ruling": "block", "reason": "It is rude."}),
        ("Rea", "judgment.excluded", "j", {"reason": "A slip."}),
        ("Rea", "flag.answered", "f", {}),
        ("Rea", "flag.cleared", "f", {}),
    ]


def test_webhooks_are_noted_without_the_path_of_their_url(db):
    hook = Webhook(
        id="wh-1", url="https://hooks.example.org/T0/secret-token", events=EVENTS, secret_hash="0"
    )
    with acting(REA):
        webhooks.add(db, hook)
        webhooks.change(db, "wh-1", lambda w: replace(w, secret=2, secret_hash="1"))
        webhooks.change(db, "wh-1", lambda w: replace(w, active=False))
        ping = webhooks.ping(db, "wh-1")
        webhooks.change(db, "wh-1", lambda w: replace(w, active=True))
    webhooks.store_attempt(db, ping.id, Attempt(code=500, error="No."))
    with acting(REA):
        webhooks.send_again(db, ping.id)
        webhooks.change(db, "wh-1", lambda w: replace(w, active=False, removed=True))
    assert actions(db) == [
        "webhook.added", "webhook.rotated", "webhook.disabled", "webhook.enabled",
        "webhook.resent", "webhook.removed",
    ]  # fmt: skip
    assert told(db)[0][3] == {"host": "https://hooks.example.org", "events": list(EVENTS)}
    assert "secret-token" not in json.dumps(told(db))


def test_a_change_that_is_rolled_back_is_not_noted(db):
    def refused(tx) -> None:
        tx.store(Annotator(id="a", name="Ann"))
        raise ValueError("no")

    with acting(REA), pytest.raises(ValueError, match="no"):
        db.write(refused)
    annotators.add(db, Annotator(id="b", name="Bob"))
    assert told(db) == []


def test_many_changes_of_one_kind_are_one_note(db):
    with acting(REA):
        db.write(lambda tx: tx.store(*(Annotator(id=f"a{n}", name=f"A{n}") for n in range(500))))
        db.write(lambda tx: tx.store(*(Annotator(id=f"b{n}", name=f"B{n}") for n in range(10))))
    assert told(db)[0] == ("Rea", "account.added", "", {"count": 500})
    assert len(told(db)) == 11


def test_each_operation_of_a_group_is_noted_for_its_own_person(db):
    annotators.add(db, Annotator(id="s", name="Sam", role="researcher"))
    pending = []
    for n in range(20):
        with acting(Actor("rs"[n % 2], "browser")):
            pending.append(db.submit(lambda tx, n=n: tx.store(Annotator(id=f"a{n}", name=f"A{n}"))))
        pending.append(db.submit(lambda tx, n=n: tx.store(Annotator(id=f"b{n}", name=f"B{n}"))))
    for each in pending:
        each.result()
    found = {(who, subject) for who, _, subject, _ in told(db)}
    assert found == {(["Rea", "Sam"][n % 2], f"A{n}") for n in range(20)}


def test_an_export_is_noted_with_its_file(db, tmp_path):
    (pair, *_) = fill(db)
    queue.lease(db, "ann", 1)
    judgments.judge(db, id="j", comparison=pair, annotator="ann", outcome="a")
    with acting(REA):
        exports.export(db, format="raw", out=str(tmp_path / "out.jsonl"), names=True)
    assert told(db) == [
        ("Rea", "export", "raw", {"out": "out.jsonl", "rows": 1, "names": True}),
    ]
    assert gold.listing(db) == []


def test_entries_are_found_by_actor_action_time_and_text(db):
    with acting(REA):
        annotators.add(db, Annotator(id="a", name="Ann"))
        guidelines.save(db, "Be kind.")
    with acting(Actor("", "command line")):
        tokens.issue(db, "a", "api", lifetime=None)
    first, *_, last = (each.entry.created_at for each in reversed(audit.listing(db)))
    assert [each[1] for each in told(db, actor="operator")] == ["token.issued"]
    assert [each[1] for each in told(db, actor="Rea")] == ["account.added", "guidelines.changed"]
    assert [each[1] for each in told(db, action="account")] == ["account.added"]
    assert [each[1] for each in told(db, action="token.issued")] == ["token.issued"]
    assert told(db, action="acc") == []
    assert [each[1] for each in told(db, since=last)] == ["token.issued"]
    assert [each[1] for each in told(db, until=first + timedelta(microseconds=1))] == [
        "account.added"
    ]
    assert [each[1] for each in told(db, search=" ANN ")] == ["account.added", "token.issued"]
    assert audit.known_values(db).actors == ("Rea", "operator")
    assert audit.known_values(db).actions == ("account.added", "guidelines.changed", "token.issued")
    assert len(audit.listing(db, limit=1)) == 1


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "1.2.2026"])
def test_a_time_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="write it as 2026-11-25"):
        audit.moment(text)


def test_a_file_has_every_entry_and_no_formulas(db, tmp_path):
    with acting(REA):
        annotators.add(db, Annotator(id="a", name="=cmd|' /C calc'!A0"))
        annotators.add(db, Annotator(id="b", name="Zoë"))
    rows = [each.row() for each in audit.listing(db)]
    assert audit.write_file(rows, tmp_path / "log.jsonl") == 2
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    audit.write_file(rows, tmp_path / "log.csv")
    with (tmp_path / "log.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [each["subject"] for each in found] == ["Zoë", "'=cmd|' /C calc'!A0"]
    assert json.loads(found[0]["details"])["name"] == "Zoë"
    with pytest.raises(ValueError, match="must end in"):
        audit.write_file(rows, tmp_path / "log.txt")


def test_adjudication_and_prompts_are_noted(db):
    from_prompt = fill(db)[0]
    prompt = db.read("SELECT prompt FROM comparisons WHERE id = 'c1-0'")[0]["prompt"]
    with acting(REA):
        db.write(
            lambda tx: tx.store(
                AdjudicationRequest(id="q", comparison=from_prompt, researcher="r"),
                PromptEdit(prompt=prompt, retired=True, researcher="r"),
            )
        )
        db.write(lambda tx: tx.store(PromptEdit(prompt=prompt, retired=False, category="math")))
        db.write(lambda tx: tx.store(PromptEdit(prompt=prompt, retired=False, category="art")))
    assert told(db) == [
        ("Rea", "adjudication.requested", "c1-0", {}),
        ("Rea", "prompt.retired", prompt, {}),
        ("Rea", "prompt.restored", prompt, {}),
        ("Rea", "prompt.category", prompt, {"category": "art"}),
    ]
