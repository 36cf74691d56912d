"""Connections: asyncpg pools with the session settings that the promises need."""

from typing import TypeAlias

import asyncpg

from tickwright.domain.errors import Unavailable
from tickwright.store.dsn import shown_url

Pool: TypeAlias = asyncpg.Pool
Connection: TypeAlias = asyncpg.Connection

SETTINGS = {
    "timezone": "UTC",
    "application_name": "tickwright",
    "lock_timeout": "5000",
    "statement_timeout": "60000",
    "idle_in_transaction_session_timeout": "3000",  # below every lease: a paused owner cannot block a takeover
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # the hot queries have one right plan; see tests/plans
    "enable_seqscan": "off",  # a plan made while the live table was empty must not outlive that
}
CONNECT_TIMEOUT_S = 10
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What a statement raises when the database or the way to it is lost. Work with a loop of its own tries again.

InternalClientError: the driver's word for a connection that breaks between a fatal message and its end.
"""


async def open_pool(url: str, *, min_size: int = 1, max_size: int = 8, pooled: bool = False) -> Pool:
    """Open a pool.

    Args:
        url: ``postgresql://…``.
        min_size: Connections opened at once.
        max_size: Upper bound of connections.
        pooled: True behind PgBouncer in transaction mode: no prepared statements, no session settings.

    Raises:
        Unavailable: The server does not answer. Retry.
    """
    try:
        return await asyncpg.create_pool(
            url,
            min_size=min_size,
            max_size=max_size,
            statement_cache_size=0 if pooled else 200,
            server_settings={"timezone": "UTC", "application_name": "tickwright"} if pooled else SETTINGS,
            command_timeout=60,
            timeout=CONNECT_TIMEOUT_S,
            max_inactive_connection_lifetime=0,
            reset=_keep_session,
        )
    except AWAY as error:
        raise Unavailable("database_unavailable", f"cannot connect to {shown_url(url)}: {error}") from error


async def _keep_session(_connection: Connection) -> None:
    """Spare the driver's RESET ALL, a transaction and a round trip with every use: nothing here sets session state."""


async def connect(url: str) -> Connection:
    """Open one connection of its own, for LISTEN and session locks."""
    return await asyncpg.connect(url, server_settings=SETTINGS, timeout=CONNECT_TIMEOUT_S, command_timeout=60)
