"""Names whose DNS server is silent hold up no other name."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from kit.mutants import mutate
from kit.receivers import TARGETS, HttpReceiver
from kit.waiting import eventually_async
from tickwright.outbound import SystemResolver
from tickwright.outbound import resolver as dns
from tickwright.outbound.resolver import Lookups
from tickwright.ports.broker import Accepted, Message
from tickwright.transports.http.broker import HttpBroker

SLOW = 100
MUTANTS = {
    "names that answer have no slots of their own": (Lookups._class_of, 'else "known"', 'else "new"', SLOW),
    "a slow look-up keeps its slot": (
        Lookups._run,
        "if not ended and",
        "if False and",
        3 * dns.CLASS_SLOTS,
    ),
}
"""With how many slow names each is noticed: to names that are new, more of them leave no slot in any case."""


class SilentServer:
    """Holds every look-up of ``*.slow.example`` in its thread until it is let go; the others are the system's."""

    def __init__(self, system: Callable[..., object]) -> None:
        self._system = system
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.held = 0
        self.held_max = 0

    def look_up(self, host: str, *words: object, **named: object) -> object:
        """Replace the system's ``getaddrinfo``: it blocks its thread, as the real one does."""
        with self._lock:
            self.asked[host] += 1
        if not host.endswith(".slow.example"):
            return self._system("127.0.0.1", *words, **named)
        with self._lock:
            self.held += 1
            self.held_max = max(self.held_max, self.held)
        self._go_on.wait()
        with self._lock:
            self.held -= 1
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    def let_go(self) -> None:
        """Answer every look-up, those that are held and those to come."""
        self._go_on.set()

    def hold(self) -> None:
        """Be silent again."""
        self._go_on.clear()
        self.held_max = 0


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    """A DNS server that is silent for one domain."""
    server = SilentServer(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", server.look_up)
    monkeypatch.setattr(dns, "SLOW_AFTER_S", 0.05)
    yield server
    server.let_go()


def ask_slow_names(resolver: SystemResolver, count: int = SLOW) -> list[asyncio.Task[object]]:
    """Ask for many names of the silent server at once."""
    return [asyncio.create_task(_quietly(resolver, f"n{number}.slow.example")) for number in range(count)]


async def _quietly(resolver: SystemResolver, host: str) -> object:
    try:
        return await resolver.resolve(host)
    except socket.gaierror as error:
        return error


async def test_a_healthy_name_is_found_while_a_hundred_slow_ones_are_not(silent: SilentServer) -> None:
    """A name that has answered before keeps slots that names without an answer never get."""
    resolver = SystemResolver()
    await resolver.resolve("healthy.example")
    asked = ask_slow_names(resolver)
    await eventually_async(lambda: silent.held >= dns.OVERDUE_MAX, 30)
    [found] = {one["host"] for one in await resolver.resolve("healthy.example", 443)}
    assert found == "127.0.0.1"
    assert not any(task.done() for task in asked)
    silent.let_go()
    await asyncio.gather(*asked)


async def test_a_new_name_waits_for_its_turn_not_for_the_answers(silent: SilentServer) -> None:
    """A look-up that takes long gives its slot to the next one, so new names are found behind slow ones."""
    resolver = SystemResolver()
    asked = ask_slow_names(resolver, 3 * dns.CLASS_SLOTS)
    await resolver.resolve("new.example")
    assert not any(task.done() for task in asked)
    silent.let_go()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
async def test_a_missing_guard_holds_up_a_healthy_name(
    silent: SilentServer, monkeypatch: pytest.MonkeyPatch, mutant: tuple[object, str, str, int]
) -> None:
    """With the guard taken out, a name that answers is not looked up before the slow ones are done."""
    function, guard, instead, slow = mutant
    mutate(monkeypatch, function, guard, instead)
    resolver = SystemResolver()
    await resolver.resolve("healthy.example")
    asked = ask_slow_names(resolver, slow)
    held = dns.CLASS_SLOTS + (dns.OVERDUE_MAX if slow == SLOW else 0)
    await eventually_async(lambda: silent.held >= held, 30)
    found = asyncio.create_task(resolver.resolve("healthy.example" if slow == SLOW else "new.example"))
    await asyncio.wait([found], timeout=10 * dns.SLOW_AFTER_S)
    assert not found.done(), "the mutant was not noticed"
    silent.let_go()
    await asyncio.gather(found, *asked)


async def test_names_that_were_slow_share_a_few_threads(silent: SilentServer) -> None:
    """Asked again, names that did not answer in time have eight slots of their own, and new names theirs."""
    resolver = SystemResolver()
    names = dns.OVERDUE_MAX + dns.CLASS_SLOTS
    asked = ask_slow_names(resolver, names)
    seen = resolver._lookups._seen
    await eventually_async(lambda: len(seen) == names, 30)
    silent.let_go()
    await asyncio.gather(*asked)
    silent.hold()
    again = ask_slow_names(resolver, names)
    for number in range(2 * dns.CLASS_SLOTS):
        await resolver.resolve(f"new{number}.example")
    assert silent.held_max <= dns.CLASS_SLOTS
    assert not any(task.done() for task in again)
    silent.let_go()
    await asyncio.gather(*again)


async def test_look_ups_of_one_name_are_one_look_up(silent: SilentServer) -> None:
    """Many callers that wait for one name take one thread, and all get its answer."""
    resolver = SystemResolver()
    asked = [asyncio.create_task(_quietly(resolver, "one.slow.example")) for _ in range(SLOW)]
    await eventually_async(lambda: silent.held == 1, 30)
    silent.let_go()
    answers = await asyncio.gather(*asked)
    assert {type(answer) for answer in answers} == {socket.gaierror}
    assert silent.asked["one.slow.example"] == 1


async def test_a_name_that_no_caller_waits_for_is_never_looked_up(silent: SilentServer) -> None:
    """Callers that gave up leave no queue behind that names which come later would wait for."""
    resolver = SystemResolver()
    asked = ask_slow_names(resolver, 4 * SLOW)
    most = dns.OVERDUE_MAX + dns.CLASS_SLOTS
    await eventually_async(lambda: silent.held == most, 30)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    silent.let_go()
    await resolver.resolve("new.example")
    assert sum(silent.asked.values()) == most + 1


async def test_callbacks_arrive_while_others_wait_for_their_names(silent: SilentServer) -> None:
    """Through the whole transport: slow destinations of many types, and a healthy one behind them."""
    async with HttpReceiver() as receiver:
        broker = HttpBroker(allow=TARGETS)
        slow = [asyncio.create_task(broker.publish(_message(f"https://n{n}.slow.example/"))) for n in range(40)]
        await eventually_async(lambda: silent.held > 16, 30)
        assert await broker.publish(_message(f"http://healthy.example:{receiver.port}/callback")) == Accepted()
        silent.let_go()
        await asyncio.gather(*slow)
        await broker.aclose()


def _message(destination: str) -> Message:
    return Message("job_1", destination, b"{}", timeout=timedelta(seconds=60))
