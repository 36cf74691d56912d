"""Payloads of encrypted types, sealed before they are stored; see :mod:`tickwright.domain.envelopes`."""

import msgspec

from tickwright.capabilities.jobs.requests import SEALED_BYTES_MAX, J, with_digest
from tickwright.domain.envelopes import Purpose, read_envelope
from tickwright.domain.errors import Rejected
from tickwright.engine.payload_keys import PayloadKeys


def seal_job(job: J, keys: PayloadKeys) -> J:
    """Return a checked job of an encrypted type with its payload in an envelope. Its sender may have sealed it.

    Raises:
        Rejected: ``payload_too_large``; ``payload_unreadable``: an envelope that is not of this type, or was changed.
            Permanent.
        Unavailable: ``payload_keys_missing``. Retry after the operator has set them, or in another process.
    """
    envelope = read_envelope(job.payload)
    if envelope is not None and not keys.can_open(envelope):
        return msgspec.structs.replace(job, digest=None)  # envelopes of one request differ
    payload = seal_payload(job.task_type, job.payload, keys)
    if job.digest is None:
        return msgspec.structs.replace(job, payload=payload)
    digest = job.digest
    if envelope is not None:
        plain = keys.open(job.payload, Purpose.PAYLOAD, job.task_type)
        digest = with_digest(msgspec.structs.replace(job, payload=plain)).digest or b""
    digests = keys.digests(digest)
    return msgspec.structs.replace(job, payload=payload, digest=digests[0], digests=digests)


def seal_payload(task_type: str, payload: str, keys: PayloadKeys) -> str:
    """Return a payload of an encrypted type as an envelope, which it may be already. Errors as ``seal_job``."""
    envelope = read_envelope(payload)
    if envelope is not None:
        if keys.can_open(envelope):
            keys.open(payload, Purpose.PAYLOAD, task_type)
        return payload
    if len(payload) > SEALED_BYTES_MAX or len(payload.encode()) > SEALED_BYTES_MAX:
        text = f"payload: at most {SEALED_BYTES_MAX} bytes of an encrypted type"
        raise Rejected("payload_too_large", text, status=413, field="payload")
    return keys.seal(payload, Purpose.PAYLOAD, task_type)
