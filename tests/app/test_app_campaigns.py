"""Campaigns from a program: started by name, and read through the same service as by REST."""

from typing import Any

import pytest

from kit.campaigns import LOAN
from tickwright import Rejected, Tickwright, Unavailable
from tickwright.capabilities.batches.definitions.campaigns import read_campaign
from tickwright.capabilities.batches.definitions.schema import Draft, Mistakes
from tickwright.ports.caller import Caller, Role

PROGRAM = Caller("python", Role.ADMIN)


def draft(**changes: Any) -> Draft:
    """Return the checked definition of the campaign, with changes."""
    mistakes = Mistakes("campaign")
    read, _ = read_campaign({**LOAN, **changes}, mistakes, lambda _: None)
    mistakes.raise_found()
    assert read is not None
    return read


async def test_a_program_starts_a_campaign(database_url: str) -> None:
    """The id of the execution is the answer; beside an open one its policy decides, as for operators."""
    app = Tickwright(database_url)
    with pytest.raises(Unavailable, match="open"):
        await app.start_campaign("loans")
    async with app:
        with pytest.raises(Rejected, match="there is no campaign"):
            await app.start_campaign("loans")
        await app.campaigns.campaign_batches.register("loans", draft(), caller=PROGRAM)
        execution_id = await app.start_campaign("loans")
        shown = await app.campaigns.executions.get(execution_id)
        assert (shown.name, shown.status, shown.started_by) == ("loans", "NEW", "python")
        with pytest.raises(Rejected) as caught:
            await app.start_campaign("loans")
        assert caught.value.code == "execution_open"
        with pytest.raises(Rejected) as unknown:
            await app.start_batch("loans")
        assert unknown.value.code == "batch_not_found"


async def test_what_an_operator_has_set_up_a_program_leaves_alone(database_url: str) -> None:
    """A registration replaces what a program registered, and nothing else."""
    async with Tickwright(database_url) as app:
        rows = app.campaigns.campaign_batches
        await rows.register("loans", draft(), caller=PROGRAM)
        await rows.register("loans", draft(chunk_rows=200), caller=PROGRAM)
        declared = await rows.get("loans")
        assert (declared.version, declared.set_by, declared.definition["chunk_rows"]) == (2, "app", 200)
        await rows.put("loans", draft(chunk_rows=200), caller=PROGRAM)
        taken = await rows.get("loans")
        assert (taken.version, taken.set_by) == (2, "operator")
        await rows.register("loans", draft(chunk_rows=300), caller=PROGRAM)
        assert (await rows.get("loans")).definition["chunk_rows"] == 200
