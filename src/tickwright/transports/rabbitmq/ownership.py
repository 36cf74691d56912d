"""Whose prefix it is: an exchange that nobody uses, whose argument names the installation and cannot be changed."""

import asyncio
import re

from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

from tickwright.domain.errors import Rejected
from tickwright.transports.rabbitmq.connection import FAILURES, lost_is_a_failure
from tickwright.transports.rabbitmq.raw_connection import away, dial, hang_up, open_channel
from tickwright.transports.rabbitmq.topology import DECLARE_TIMEOUT_S

_CURRENT = re.compile(r"but current is (?:the value )?'[^']*\.installation\.([^']*)'")


def owner_exchange(prefix: str) -> str:
    """Return the name of the exchange that says whose ``prefix`` is."""
    return f"{prefix}.installation"


async def owner(url: str, prefix: str, installation: str) -> str:
    """Return which installation has ``prefix``; from now on this one where none had it. RabbitMQ decides who is first.

    Raises:
        Rejected: ``queue_forbidden``, this user may not declare it. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    try:
        connection = await dial(url, "tickwright-owner")
    except FAILURES:
        raise away("connecting") from None
    name = owner_exchange(prefix)
    try:
        with lost_is_a_failure():
            async with asyncio.timeout(DECLARE_TIMEOUT_S):
                channel = await open_channel(connection)
                await channel.exchange_declare(
                    name,
                    exchange_type="fanout",
                    durable=True,
                    arguments={"alternate-exchange": f"{name}.{installation}"},  # it need not exist
                )
    except ChannelPreconditionFailed as error:
        found = _CURRENT.search(str(error))
        return found[1] if found else "another"
    except ChannelAccessRefused:
        text = f"This user of RabbitMQ may not declare the exchange {name!r}; give it the right to configure it."
        raise Rejected("queue_forbidden", text, name=name) from None
    except FAILURES:
        raise away("asking whose prefix it is") from None
    finally:
        await hang_up(connection)
    return installation
