"""Campaigns as operators see them: a definition is refused whole, with every mistake, before anything is written.

The source of the audience is asked as well: a table or a field that is not there is a mistake of the definition. What a
program or a file brings is checked without asking, because it is read while sources may still be away.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.check import check_audience
from tickwright.capabilities.batches.audience.schema import AudienceTerms
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.campaign_schema import Allow, Campaign, read_campaign, read_selection
from tickwright.capabilities.batches.definitions.campaign_views import (
    CheckedCampaign,
    DryRun,
    SelectedClient,
    StoredCampaign,
)
from tickwright.capabilities.batches.definitions.problems import Problems
from tickwright.capabilities.batches.views import BatchDetail
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Judge
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import raw
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.batches.sql", "campaigns.sql")
EXAMPLES = 10
WHAT = "campaign"


class Campaigns:
    """What is campaigns' own in what can be done with batches.

    Args:
        batches: The rows of campaigns.
        audiences: That this process can read.
        allow: Refuses a destination that could never be sent to.
    """

    def __init__(self, pool: Pool, batches: Batches, audiences: Audiences, allow: Allow) -> None:
        self._pool, self._batches, self._audiences, self._allow = pool, batches, audiences, allow

    async def create(self, document: Mapping[str, Any], *, caller: Caller) -> BatchDetail:
        """Make a campaign; it is ``IDLE`` and its version is 1.

        Raises:
            Rejected: ``invalid_campaign``, or what all mistakes have for a code, with every mistake; what
                :meth:`Batches.create` says. Permanent.
            Unavailable: The source does not answer. Retry.
        """
        name, words = _named(document)
        return await self._batches.create(name, (await self._read(words)).draft, caller=caller)

    async def put(self, name: str, document: Mapping[str, Any], *, caller: Caller) -> StoredCampaign:
        """Make a campaign or set it whole: a new version. The same again changes nothing.

        Args:
            name: Of the campaign; a ``name`` among the words has to be the same.
            document: Its words, and ``version``: the one that is edited, where no other edit may be overwritten.
            caller: Who does it.

        Raises:
            Rejected: As :meth:`create`, and what :meth:`Batches.put` says. Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
            Unavailable: The source does not answer. Retry.
        """
        self._batches.check_name(name)
        said, words = _named({"name": name, **document})
        if said != name:
            raise Rejected("invalid_name", f"name: it is called {name} here; leave the word out", field="name")
        expected = words.pop("version", None)
        if isinstance(expected, bool) or not isinstance(expected, int | None):
            raise Rejected("invalid_version", "version: the number of the version that is edited", field="version")
        draft = (await self._read(words)).draft
        put = await self._batches.put(name, draft, caller=caller, expected=expected)
        return StoredCampaign(put.batch, put.created, put.changed)

    async def declare(self, name: str, words: Mapping[str, Any], *, caller: Caller) -> None:
        """Set up a campaign that a program brings, unless an operator or a file has done so; no source is asked."""
        campaign = await self._read(words, ask=False)
        await self._batches.declare(name, campaign.draft, caller=caller)

    async def check(self, document: Mapping[str, Any]) -> CheckedCampaign:
        """Say what is wrong with a definition, without saving it.

        Raises:
            Unavailable: The source does not answer. Retry.
        """
        problems = Problems(WHAT)
        words = dict(document)
        name = words.pop("name", None)
        words.pop("version", None)
        if name is not None:
            try:
                self._batches.check_name(name if isinstance(name, str) else "")
            except Rejected as error:
                problems.of(error, "name")
        await self._find(words, problems, ask=True)
        return CheckedCampaign(not problems.found, problems.found)

    async def dry_run(self, name: str, words: Mapping[str, Any], *, caller: Caller) -> DryRun:
        """Count whom a campaign would select now, and show ten of them; nothing is written and nothing leaves.

        Args:
            name: Of the campaign.
            words: ``audience`` and ``expression`` to try instead of its own; neither is saved.
            caller: Who asks; another audience may be any query on any source, so only an admin may try one.

        Raises:
            Rejected: ``campaign_not_found`` (404); ``forbidden`` (403); ``invalid_campaign``, the codes of expressions
                and audiences. Permanent.
            Unavailable: The source does not answer in time. Retry.
        """
        if "audience" in words and caller.role < Role.ADMIN:
            raise Rejected("forbidden", "another audience is for the role admin; leave it out", status=403)
        problems = _only_selection(words)
        saved = (await self._batches.get(name)).definition
        return await self._try({**saved, **words}, problems)

    async def dry_run_unsaved(self, words: Mapping[str, Any]) -> DryRun:
        """Count whom a campaign that nobody has saved would select now, as :meth:`dry_run` does.

        Args:
            words: ``audience`` and ``expression``; the audience may be any query, so an admin has to ask.

        Raises:
            Rejected: ``invalid_campaign``, the codes of expressions and audiences. Permanent.
            Unavailable: The source does not answer in time. Retry.
        """
        return await self._try(words, _only_selection(words))

    async def _try(self, document: Mapping[str, Any], problems: Problems) -> DryRun:
        selection = await asyncio.to_thread(read_selection, document, problems)
        problems.raise_found()
        assert selection.audience is not None  # noqa: S101  # nothing was refused
        return await self._count(selection.audience, selection.judge)

    async def _count(self, terms: AudienceTerms, judge: Judge | None) -> DryRun:
        now = await self._pool.fetchval(_SQL["now"])
        async with self._audiences.open(terms) as audience:
            found = await audience.count(judge, now, limit=EXAMPLES)
        examples = [SelectedClient(one.client_id, raw(one.client)) for one in found.examples]
        return DryRun(
            members=found.members,
            selected=found.selected,
            missing=found.missing,
            skipped=found.skipped,
            examples=examples,
            problems=found.problems,
        )

    async def _read(self, words: Mapping[str, Any], *, ask: bool = True) -> Campaign:
        problems = Problems(WHAT)
        campaign = await self._find(words, problems, ask=ask)
        problems.raise_found()
        assert campaign is not None  # noqa: S101  # nothing was refused
        return campaign

    async def _find(self, words: Mapping[str, Any], problems: Problems, *, ask: bool) -> Campaign | None:
        """CEL compiles in a thread: it takes a while."""
        campaign, audience = await asyncio.to_thread(read_campaign, words, problems, self._allow)
        if ask and audience is not None:
            try:
                await check_audience(self._audiences, words["audience"])
            except Rejected as error:
                problems.of(error, "audience")
        return campaign


def _only_selection(words: Mapping[str, Any]) -> Problems:
    """Return as mistakes what a dry run has no use for."""
    problems = Problems(WHAT)
    for word in sorted(words.keys() - {"audience", "expression"}):
        problems.add(word, "unknown key; a dry run tries another audience or expression")
    return problems


def _named(document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name in a document, and its other words."""
    words = dict(document)
    name = words.pop("name", None)
    if not isinstance(name, str):
        raise Rejected("invalid_name", "name: missing; 1 to 100 letters, digits, '_', '.' or '-'", field="name")
    return name, words
