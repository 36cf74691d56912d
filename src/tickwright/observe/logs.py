"""Structured logs: JSON for machines, lines for people, without secrets.

A value is masked when its *name* marks a secret, when it *is* a registered secret, and where it is a URL with a
password. An event is one line, whatever its values contain, so no value can forge a second event.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from tickwright.domain.secrets import GROWTH_MAX, MASK, mask_secrets, spellings
from tickwright.observe.repeats import DriverRepeats, Repeats

VALUE_CHARS_MAX = 4000
DEPTH_MAX = 6
KNOWN_SECRETS_MAX = 10_000
SECRET_CHARS_MIN = 6
MASKED_CHARS_MAX = 16 * 1024
"""Characters of a text that are searched for secrets and kept: masking blocks the event loop; a text may have 1 MB."""

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:password|passwd|pwd|secret|secrets|api[_-]?key|authorization|cookie|credential|credentials|private[_-]?key"
    r"|signature|access[_-]?token|refresh[_-]?token|bearer)(?:$|[_\-.])",
    re.IGNORECASE,
)
_URL_USER = r"(?P<head>[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]*:)"  # without a bound, quadratic time
_URL_PASSWORD = re.compile(_URL_USER + r"[^\s/]*(?=@)")
_URL_PASSWORD_CUT = re.compile(_URL_USER + r"[^\s/]*\Z")
_SECRET_SHAPE = re.compile(r"whsec_[A-Za-z0-9+/=_-]+|tw_[A-Za-z0-9_-]{16,}|(?i:bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_DSN_NAME = r"(?i)(?P<head>\b(?:password|passwd|pwd)\s*=\s*)"
_DSN_PASSWORD = re.compile(_DSN_NAME + r"(?:'(?:[^'\\]|\\.)*'|[^\s&;,'\"]+)")
_DSN_PASSWORD_CUT = re.compile(_DSN_NAME + r"'(?:[^'\\]|\\.)*\\?\Z")
_SHAPE_CHARS = 64  # more than the beginning of a secret's shape
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_known: set[str] = set()

Event = MutableMapping[str, Any]


def know_secret(value: str) -> None:
    """Mask ``value`` from now on, in all its spellings; ignore it if it is shorter than six characters."""
    if len(value) >= SECRET_CHARS_MIN and value not in _known and len(_known) < KNOWN_SECRETS_MAX:
        _known.update(spellings(value))


def forget_secrets() -> None:
    """Forget all secrets of ``know_secret``; for tests and after a rotation."""
    _known.clear()


def without_secrets(text: str) -> str:
    """Return ``text`` with every known secret, and everything in a secret's shape, masked.

    Errors of users' functions are kept and shown; their texts may contain the function's input. Mask before cutting, so
    that no secret is cut in half. A text beyond ``MASKED_CHARS_MAX`` is cut here, without a possible beginning of a
    secret at its end.
    """
    return _masked(mask_secrets(text, _known)) if len(text) <= MASKED_CHARS_MAX else _cut(text)


def _masked(text: str) -> str:
    text = _URL_PASSWORD.sub(rf"\g<head>{MASK}", text)
    text = _DSN_PASSWORD.sub(rf"\g<head>{MASK}", text)
    return _SECRET_SHAPE.sub(MASK, text)


def _cut(text: str) -> str:
    """Return the beginning of a long text, without secrets or parts of a secret at the cut.

    The searched part contains every known secret that begins before the cut as a whole, escaped or not. A password
    without an end before the cut ends there.
    """
    longest = max((len(one.encode("utf-8", "surrogatepass")) for one in _known), default=0)
    searched = text[: MASKED_CHARS_MAX + GROWTH_MAX * longest]
    beginning = mask_secrets(searched, _known, until=MASKED_CHARS_MAX)
    beginning = _URL_PASSWORD_CUT.sub(rf"\g<head>{MASK}", beginning)
    beginning = _masked(_DSN_PASSWORD_CUT.sub(rf"\g<head>{MASK}", beginning))
    return beginning[:-_SHAPE_CHARS] + "…"


def redact_text(text: str) -> str:
    """Return ``text`` without secrets, cut to 4,000 characters."""
    text = without_secrets(text)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def redact(value: Any, depth: int = 0) -> Any:
    """Return an event's value without secrets, at most six levels deep."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if depth >= DEPTH_MAX:
        return redact_text(repr(value))
    if isinstance(value, Mapping):
        return {redact_text(str(name)): _named(str(name), inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    if isinstance(value, bytes | bytearray):
        return redact_text(repr(bytes(value)))
    return redact_text(value if isinstance(value, str) else str(value))


def _named(name: str, value: Any, depth: int) -> Any:
    if _SECRET_NAME.search(name) and not isinstance(value, bool | int | float):
        return MASK
    return redact(value, depth)


def redact_event(_logger: Any, _method: str, event: Event) -> Event:
    """Processor: mask every value."""
    return {redact_text(name): _named(name, value, 0) for name, value in event.items()}


def one_line(text: str) -> str:
    """Return ``text`` with every control character and line separator escaped."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def flatten_event(_logger: Any, _method: str, event: Event) -> Event:
    """Processor: keep every value on one line, for the console."""
    return {one_line(name): one_line(value) if isinstance(value, str) else one_line(repr(value))
            if isinstance(value, list | dict) else value for name, value in event.items()}  # fmt: skip


def configure_logging(*, json: bool, level: str = "info") -> None:
    """Set up structlog and the standard library's logging on standard error: JSON or a readable line per event.

    Raises:
        ValueError: The level is not ``debug``, ``info``, ``warning`` or ``error``. Permanent.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is not debug, info, warning or error")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact_event,
    ]
    last: list[Any] = (
        [structlog.processors.JSONRenderer(ensure_ascii=True, sort_keys=False)]
        if json
        else [flatten_event, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    repeats = Repeats()
    structlog.configure(
        processors=[repeats, *shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(DriverRepeats(repeats))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def log_like_a_library() -> None:
    """Log warnings and errors to standard error, unless the program has set up structlog itself.

    structlog's own default would print to standard output, which belongs to the importing program.
    """
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        )
