"""What a worker does for encrypted types: open payloads, seal results, withhold the texts of errors.

An attempt whose payload has a key that this process lacks is released without a count, and waits for a worker with the
key. A type is not claimed at all by a worker without any key. Both are in the session's facts, for an alert.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.jobs.model import ClaimedRow, Deferred, Errored, Job, TaskType
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.plugin.lifespan import Around
from tickwright.ports.ids import monotonic

MISSING_WAIT = timedelta(seconds=60)
"""When a job whose key this worker lacks is due again."""
MISSING_KNOWN_S = 300.0
"""How long a worker reports a missing key after the last job that needed it."""
NO_KEY = "any"
"""Reported where a worker has no key at all."""
_OWN_CODES = frozenset({"timeout", "payload_unreadable"})
_CLASS = re.compile(r"[A-Za-z_][\w.]{0,199}(?=:|$)")
_log = structlog.get_logger("tickwright.jobs")


class WorkerEncryption:
    """The payload keys of one worker, and which ones it lacked.

    Invariants:
        ENC-4: an attempt that this process cannot read ends without a count, and its job stays pending.
        ENC-5: no text of a handler, a receiver or a payload of an encrypted type is stored or logged in plain.
    """

    def __init__(self, keys: PayloadKeys = NO_KEYS) -> None:
        self.keys = keys
        self._missing: dict[str, tuple[str, float]] = {}

    def missing(self) -> dict[str, str]:
        """Return the keys that were missing lately, by task type."""
        since_s = monotonic() - MISSING_KNOWN_S
        return {name: key for name, (key, at_s) in self._missing.items() if at_s >= since_s}

    def can_run(self, kind: TaskType) -> bool:
        """Return whether this worker can run attempts of a type; note that it lacks the keys."""
        if not kind.needs_keys or self.keys:
            return True
        self._note_missing(kind.name, NO_KEY)
        return False

    def around(self, kind: TaskType, around: Around | None) -> Around | None:
        """Return ``around`` with the opening of payloads before it, where the type's target gets plain text."""
        if not kind.opens:
            return around

        async def opening(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
            opened = self.open(job.row)
            if not isinstance(opened, ClaimedRow):
                return opened
            job.row = opened
            return await (run() if around is None else around(job, run))

        return opening

    def open(self, row: ClaimedRow) -> ClaimedRow | Deferred | Errored:
        """Return a job with its plain payload, or the outcome of an attempt that cannot read it.

        A job from before its type was encrypted has a plain payload already.
        """
        try:
            plain = self.keys.open(row.payload, Purpose.PAYLOAD, row.task_type)
        except Unavailable as error:
            self._note_missing(row.task_type, str(error.details["key"]))
            return Deferred(error.code, error.message, MISSING_WAIT)
        except Rejected as error:
            _log.error("jobs.payload_unreadable", job=row.id, task_type=row.task_type)
            return Errored(error.code, f"{error.code}: {error.message}", final=True)
        return msgspec.structs.replace(row, payload=plain)

    def _note_missing(self, name: str, key: str) -> None:
        if name not in self.missing():
            _log.warning("jobs.payload_key_missing", task_type=name, key=key, has=list(self.keys.names))
        self._missing[name] = key, monotonic()


def withheld(error: Errored) -> Errored:
    """Return an error of an encrypted type without its text, which may quote the payload; its code and class stay."""
    if error.code in _OWN_CODES:
        return error
    kind = _CLASS.match(error.message) if error.code == "handler_error" else None
    what = f"{error.code}: {kind[0]}" if kind else error.code
    return replace(error, message=f"{what} (the text is not stored: the task type is encrypted)")
