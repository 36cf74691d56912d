"""A proxy that reads the requests of a Kafka client, so that a test can lose or hold the answer of one kind.

Kafka's requests are framed: four bytes of length, then the two bytes of the kind. ``END_TXN`` is the commit of a
transaction: the broker executes it, and the client gets no answer.
"""

import asyncio
from collections import Counter

from kit.tcp_proxy import Flow, Link, TcpProxy

PRODUCE, INIT_PRODUCER_ID, END_TXN = 0, 22, 26
ON_THE_WAY_S = 0.5  # delivered requests are executed by then: the latency of a slow network, not a wait for a condition


class KafkaProxy(TcpProxy):
    """Listens at ``KafkaServer.proxy_port``; clients use ``KafkaServer.proxied_url``."""

    def __init__(self, direct_port: int, proxy_port: int) -> None:
        super().__init__("127.0.0.1", direct_port)
        self.port = proxy_port
        self.requests: Counter[int] = Counter()
        self._lose_after: int | None = None
        self._hold_before: int | None = None
        self._delay: tuple[int, int] | None = None
        self._delayed: Link | None = None
        self._arrives = asyncio.Event()
        self._frames: dict[int, _Frames] = {}

    def lose_answer_of(self, kind: int) -> None:
        """Pass the next request of this kind on, and drop all later answers, until ``heal``."""
        self._lose_after = kind

    def hold_request(self, kind: int) -> None:
        """Keep the next request of this kind, and all later ones, from the broker until ``release``."""
        self._hold_before = kind

    def deliver_late(self, kind: int, *, before: int) -> None:
        """Hold the next request of ``kind``, and deliver it just before the next ``before`` of any client."""
        self._delay = (kind, before)

    async def _meddle(self, kind: int, link: Link) -> None:
        if self._delay is None:
            return
        late, before = self._delay
        if kind == late and self._delayed is None:
            self._delayed = link
            await self._arrives.wait()
        elif kind == before and self._delayed not in (None, link):
            self._arrives.set()
            await asyncio.sleep(ON_THE_WAY_S)

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, flow: Flow, link: Link) -> None:
        if flow is self.flows["to_server"]:
            for kind in self._frames.setdefault(id(writer), _Frames()).kinds(data):
                self.requests[kind] += 1
                if kind == self._lose_after:
                    self._lose_after = None
                    self.drop_replies()
                if kind == self._hold_before:
                    self._hold_before = None
                    self.hold("to_server")
                await self._meddle(kind, link)
        await super()._forward(data, writer, flow, link)


class _Frames:
    """Finds where requests begin in a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._skip, self._head = 0, b""

    def kinds(self, data: bytes) -> list[int]:
        found: list[int] = []
        while data:
            if self._skip:
                skipped = min(self._skip, len(data))
                self._skip -= skipped
                data = data[skipped:]
                continue
            wanted = 6 - len(self._head)
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == 6:
                found.append(int.from_bytes(self._head[4:], "big", signed=True))
                self._skip, self._head = int.from_bytes(self._head[:4], "big") - 2, b""
        return found
