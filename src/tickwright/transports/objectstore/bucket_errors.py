"""What a bucket answers through obstore, in our words: whose fault it is, whether to try again, and no secret.

The library's texts hold URLs, whole answers and its own insides. So only what the store itself says of the matter is
taken out of them, and the foreign error is not kept as the cause.
"""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.transports.objectstore.errors import object_missing, refused, unavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([\w.-]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_AGAIN = frozenset({408, 412, 425, 429})  # 412: the object was replaced while it was read
_AGAIN_WORDS = ("<Code>RequestTimeout<", "<Code>OperationAborted<")
_REDIRECTED = "incorrectly configured region"
_METADATA = "169.254.169.254"  # where the library asks for a role's credentials when it was given none
_NO_CREDENTIALS = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_SIGNS = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "its name is not known"),
    ("TimedOut", "no answer in time"),
)
"""What the library's own insides say where nothing was answered."""


@contextmanager
def of_bucket(where: str, what: str) -> Iterator[None]:
    """Translate what obstore raises; ``what`` is the address of the one object that a "not found" is about, or empty.

    ``object_missing`` only where the answer does not say that the bucket itself is missing.
    """
    try:
        yield
    except FileNotFoundError as error:
        if what and "<Code>NoSuchBucket<" not in str(error):
            raise object_missing(what) from None
        raise refused(where, _said(str(error))) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise refused(where, _said(str(error))) from None
    except (BaseError, TimeoutError, OSError) as error:
        raise _of_text(where, str(error)) from None


def _of_text(where: str, text: str) -> Rejected | Unavailable:
    """Tell a no from a failure by the status that the library repeats; what has no status did not answer."""
    status = _STATUS.search(text)
    code = int(status[1]) if status else 0
    again = not 400 <= code < 500 or code in _AGAIN or any(word in text for word in _AGAIN_WORDS)
    if _REDIRECTED in text:
        return refused(where, "the bucket is in another region: set AWS_REGION")
    return (unavailable if again else refused)(where, _said(text))


def _said(text: str) -> str:
    """Return what the store said, or why it said nothing; never more of the text than that."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if _METADATA in text:
        return _NO_CREDENTIALS
    if code:
        words = f"{code[1]}: {message[1]}" if message else code[1]
        return " ".join(html.unescape(words).split())[:300]
    if status:
        return f"it answered {status[1]}"
    return next((reason for sign, reason in _SIGNS if sign in text), "it does not answer, or it broke off")
