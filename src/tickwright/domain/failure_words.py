"""What a user's function raised, in words that the ledger can keep.

A function may raise anything: an end of the program, a cancellation of its own, an error that cannot be printed or that
quotes what no text in PostgreSQL holds. None of that may hold up its part, or the parts of others.
"""


def words_of(error: BaseException) -> str:
    """Return an error's class and what it says of itself, if it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the user's class
        return type(error).__name__


def storable(text: str) -> str:
    """Return a text without what PostgreSQL refuses: NUL and halves of surrogate pairs."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
