"""Marks in Redis: one key per window of an entity, in three states, each change one script for a chunk of places.

A key is absent, ``p:<token>`` (claimed, with a short life) or ``d:<token>`` (published, for the window and more). Redis
may forget any of it: then a window is published twice at worst, and consumers drop the second.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from tickwright.ports.fanout import Claimed, Mark, Place
from tickwright.transports.redis.connection import RedisLink, Script, key_part
from tickwright.transports.redis.run_claims import instant_s, runs_key

PLACES_MAX = 500
_MARKS = (Mark.MINE, Mark.TAKEN, Mark.SEALED)
_CLAIM, _SEAL, _RELEASE = Script("marks_claim.lua"), Script("marks_seal.lua"), Script("marks_release.lua")


class RedisMarks:
    """See :class:`tickwright.ports.fanout.Marks`.

    Args:
        link: Of the process.
        prefix: Of every key; on Redis Cluster one with a hash tag, such as ``{gocpi}``.
    """

    def __init__(self, link: RedisLink, *, prefix: str = "gocpi") -> None:
        self._link, self._prefix = link, prefix

    async def claim(self, places: Sequence[Place], token: str, lease: timedelta) -> list[Claimed]:
        """Claim what is free; the last success is what run claims have left here, at no extra round trip."""
        claimed: list[Claimed] = []
        for chunk in _chunks(places):
            keys = [key for place in chunk for key in (self._key(place), runs_key(self._prefix, place.entity_code))]
            types = [place.task_type for place in chunk]
            answer = await self._link.call(_CLAIM, keys, token, _ms(lease), *types)
            pairs = zip(answer[::2], answer[1::2], strict=True)
            claimed += [Claimed(_MARKS[mark], instant_s(success)) for mark, success in pairs]
        return claimed

    async def seal(self, places: Sequence[Place], token: str, *, keep: timedelta) -> int:
        """Make the marks permanent for ``keep``; what was forgotten meanwhile is written anew."""
        others = 0
        for chunk in _chunks(places):
            others += await self._link.call(_SEAL, [self._key(place) for place in chunk], token, _ms(keep))
        return others

    async def release(self, places: Sequence[Place], token: str) -> None:
        """Delete what is still claimed under ``token``."""
        for chunk in _chunks(places):
            await self._link.call(_RELEASE, [self._key(place) for place in chunk], token)

    def _key(self, place: Place) -> str:
        return f"{self._prefix}:publish:{key_part(place.entity_code)}:{key_part(place.task_type)}:{place.window_s}"


def _chunks(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    return (places[first : first + PLACES_MAX] for first in range(0, len(places), PLACES_MAX))


def _ms(length: timedelta) -> int:
    return max(1, round(length / timedelta(milliseconds=1)))
