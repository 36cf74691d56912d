"""What ``@app.batch`` says of a batch, checked: the words of every batch, an audience or a plan, and an action.

The words are those of a campaign; what differs is that a function decides instead of an expression, so there may be no
audience and no action.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.batches.definitions.problems import Problems
from tickwright.capabilities.batches.definitions.schema import destination, terms_of, words_for
from tickwright.capabilities.batches.definitions.store import Draft
from tickwright.domain.errors import Rejected
from tickwright.domain.wording import one_of

OWN = ("audience", "action", "release")


def read_program(words: Mapping[str, Any], allow: Callable[[str], None]) -> Draft:
    """Return what ``words`` say of a program's batch; with a time to run at it is ``AUTOMATIC``.

    Args:
        words: As keyword arguments; what was not said is left out.
        allow: Refuses a destination that could never be sent to.

    Raises:
        Rejected: ``invalid_batch``, or what all mistakes have for a code, with every mistake. Permanent.
    """
    problems = Problems("batch")
    shared = {name: value for name, value in words.items() if name not in OWN}
    timed = any(shared.get(name) for name in ("cron", "date_time_execution", "restartable"))
    shared.setdefault("type", "AUTOMATIC" if timed else "MANUAL")
    values = problems.read(shared, words_for(allow))
    own: dict[str, Any] = {}
    if words.get("audience") is not None:
        try:
            read_audience(words["audience"])
        except Rejected as error:
            problems.of(error, "audience")
        own["audience"] = words["audience"]
    if words.get("action") is not None:
        readers = {"action": destination(allow), "release": one_of("finished", "chunk")}
        said = problems.read({name: words[name] for name in readers if words.get(name) is not None}, readers)
        own["action"] = {"target": said.get("action"), "release": said.get("release", "finished")}
    elif words.get("release") is not None:
        problems.add("release", "without an action nothing is released; name one, or leave this out")
    terms = terms_of(values, problems)
    problems.raise_found()
    assert terms is not None  # noqa: S101  without a problem there are terms
    return Draft(terms, own)
