"""The databases of the example's users, on the embedded server beside ours.

Their addresses, for a role that only reads, go into a TOML file, as a user's would; whoever has a TOML file of his own
keeps it, and has no example of what needs sources.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tickwright.demo.loans import SOURCE as CRM
from tickwright.demo.loans import Loans, make_clients
from tickwright.demo.withdrawals import make_withdrawals, report_words
from tickwright.embedded import ensure_database, ensure_reader
from tickwright.process.settings import Settings

FILE = "example.toml"
USERS, FUND = "example_users", "example_fund"
READER = "example_reader"
"""The plain role as which reports and campaigns read them; no source is asked as a superuser."""


@asynccontextmanager
async def open_databases(
    settings: Settings, database_url: str, loans: Loans, say: Callable[[str], None]
) -> AsyncIterator[Settings]:
    """Make all three, open the clients' one for ``loans``, and give the settings with the TOML file that names them.

    Whoever has a TOML file of his own gets his settings back, and ``loans`` stay closed.
    """
    if settings.config is not None:
        say("  example   no reports and no campaign: TICKWRIGHT_CONFIG is set, and sources stand in one file")
        yield settings
        return
    urls = {name: await asyncio.to_thread(ensure_database, database_url, name) for name in (USERS, FUND, CRM)}
    await asyncio.gather(make_withdrawals(urls[USERS], urls[FUND]), make_clients(urls[CRM]))
    read = {name: await asyncio.to_thread(ensure_reader, url, READER) for name, url in urls.items()}
    lines = [f"[sources.{name}]\nurl = {json.dumps(url)}\n" for name, url in read.items()]
    text = "# Written by tickwright up for its example, again with each start.\n\n" + "\n".join(lines)
    path = settings.home_folder / FILE
    await asyncio.to_thread(path.write_text, f"{text}\n{report_words(USERS, FUND)}", encoding="utf-8")
    await loans.open(urls[CRM])
    try:
        yield settings.model_copy(update={"config": path})
    finally:
        await loans.aclose()
