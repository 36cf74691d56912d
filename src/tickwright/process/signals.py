"""SIGTERM and SIGINT: the first asks for a graceful stop, the second for an immediate one."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger("tickwright.signals")


@contextmanager
def stop_on_signals(request: Callable[[], None]) -> Iterator[None]:
    """Call ``request`` (``Supervisor.request``) at every SIGTERM and SIGINT inside the block.

    Needs a running event loop in the main thread.
    """
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        _log.info("signal.received", signal=number.name)
        request()

    for number in SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
