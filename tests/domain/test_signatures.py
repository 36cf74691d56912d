"""Signatures: the reference library accepts ours and nothing else."""

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import sign

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
SIGNED_AT = 1_795_268_220


def headers(body: bytes, *secrets: str) -> dict[str, str]:
    """Return what a receiver would see, signed now: the reference library refuses what is older than five minutes."""
    now = int(datetime.now(tz=UTC).timestamp())
    signature = sign("job_42", now, body, secrets)
    return {"webhook-id": "job_42", "webhook-timestamp": str(now), "webhook-signature": signature}


@given(st.text())
def test_the_reference_library_accepts_our_signature(text: str) -> None:
    """Whatever the body, the specification's own library verifies it."""
    body = text.encode("utf-8", "replace")
    reference = Webhook(NEW).sign("job_42", datetime.fromtimestamp(SIGNED_AT, tz=UTC), body.decode())
    assert sign("job_42", SIGNED_AT, body, (NEW,)) == reference


def test_both_secrets_verify_during_a_rotation() -> None:
    """One signature per secret, the newest first, so a receiver may know either."""
    body = b'{"invoice_id": 42}'
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(body, headers(body, NEW, OLD)) == {"invoice_id": 42}
    assert sign("job_42", SIGNED_AT, body, (NEW, OLD)).split(" ")[0] == sign("job_42", SIGNED_AT, body, (NEW,))


def test_a_changed_body_is_refused() -> None:
    """The signature covers every byte of the body."""
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(b'{"invoice_id": 43}', headers(b'{"invoice_id": 42}', NEW))


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_abc", "whsec_***", "whsec_" + base64.b64encode(b"short").decode()]
)
def test_a_malformed_secret_is_refused_and_never_repeated(secret: str) -> None:
    """The message of the refusal does not contain the secret."""
    with pytest.raises(Rejected) as caught:
        sign("job_42", SIGNED_AT, b"{}", (secret,))
    assert caught.value.code == "invalid_secret"
    assert len(secret) < 7 or secret not in caught.value.message
