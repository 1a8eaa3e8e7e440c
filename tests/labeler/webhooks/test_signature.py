"""Signatures, against the specification's own library and values worked out by hand."""

from __future__ import annotations

import base64
import re
from datetime import timedelta
from pathlib import Path

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from labeler.webhooks.signature import KEY_FILE, SecretLost, Secrets, fingerprint, sign
from storage.notification_records import EVENTS, Webhook
from storage.records import now


def made(secrets: Secrets, **more) -> Webhook:
    values = {
        "id": "wh-1", "url": "https://example.org/", "events": EVENTS,
        "secret_hash": fingerprint(secrets.derived("wh-1", int(more.get("secret", 1)))),
    }  # fmt: skip
    return Webhook(**(values | more))


def test_a_signature_equals_the_one_that_openssl_computes():
    # printf 'evt_1.1700000000.{"type":"ping"}' | openssl dgst -sha256 -binary
    #   -mac HMAC -macopt hexkey:$(printf '0123456789abcdef0123456789abcdef' | od -v -An -tx1 | tr -d ' \n') | base64
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    found = sign(secret, id="evt_1", timestamp=1_700_000_000, body=b'{"type":"ping"}')
    assert found == "v1,4fbo1BMIVR0JIvIiBA2+uByeEN2GhwG3NwnYaoeirW0="


def test_the_library_of_the_specification_accepts_a_request_and_refuses_a_changed_one(tmp_path):
    secrets = Secrets(tmp_path)
    secret = secrets.of(made(secrets))
    body, stamp = '{"type":"ping","data":{"name":"Zoë"}}', int(now().timestamp())
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign(secret, id="evt_1", timestamp=stamp, body=body.encode()),
    }
    assert Verifier(secret).verify(body, headers)["data"] == {"name": "Zoë"}
    for changed in (
        headers | {"webhook-id": "evt_2"},
        headers | {"webhook-timestamp": str(stamp - 1)},
    ):
        with pytest.raises(WebhookVerificationError):
            Verifier(secret).verify(body, changed)
    with pytest.raises(WebhookVerificationError):
        Verifier(secret).verify(body.replace("ping", "pong"), headers)


def test_a_secret_has_32_bytes_and_depends_on_the_key_the_webhook_and_the_rotation(tmp_path):
    (tmp_path / "other").mkdir()
    mine, other = Secrets(tmp_path), Secrets(tmp_path / "other")
    found = {
        mine.derived("wh-1", 1), mine.derived("wh-1", 2), mine.derived("wh-2", 1),
        other.derived("wh-1", 1),
    }  # fmt: skip
    assert len(found) == 4
    assert Secrets(tmp_path).derived("wh-1", 1) in found  # the same after a restart
    for secret in found:
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32


def test_the_key_can_be_read_by_its_owner_only(tmp_path):
    Secrets(tmp_path).derived("wh-1", 1)
    key = tmp_path / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch("[0-9a-f]{64}\n", key.read_text())


def test_for_a_day_after_a_rotation_both_secrets_sign(tmp_path):
    secrets, moment = Secrets(tmp_path), now()
    before = secrets.derived("wh-1", 1)
    rotated = made(secrets, secret=2, rotated_at=moment)
    current = secrets.derived("wh-1", 2)
    almost = moment + timedelta(hours=23, minutes=59)
    assert secrets.signing(rotated, almost) == [current, before]
    assert secrets.signing(rotated, moment + timedelta(hours=24)) == [current]
    assert secrets.signing(made(secrets), moment) == [before]


def test_a_lost_or_damaged_key_is_noticed_and_not_used(tmp_path: Path):
    secrets = Secrets(tmp_path)
    webhook = made(secrets)
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(SecretLost, match="Rotate the secret"):
        secrets.signing(webhook, now())
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(SecretLost, match="damaged"):
        secrets.signing(webhook, now())
