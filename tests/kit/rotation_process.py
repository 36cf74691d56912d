"""The rotation of payload keys as a process that kills itself: ``ROTATION_KILL_AT`` names the probe and the visit."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.remove(str(Path(__file__).resolve().parent))  # its redis.py would hide the library
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.probes import KillAt
from tickwright.capabilities.jobs.admin import payload_keys
from tickwright.capabilities.jobs.admin.payload_keys import PayloadKeyAdmin, ReencryptRequest
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.ports.caller import Caller, Role
from tickwright.store.pool import open_pool


async def main() -> None:
    """Encrypt everything again, in windows of ten."""
    payload_keys.WINDOW = 10
    name, _, times = os.environ["ROTATION_KILL_AT"].partition(":")
    keys = PayloadKeys.parse(os.environ["ROTATION_KEYS"])
    admin = PayloadKeyAdmin(await open_pool(os.environ["ROTATION_DATABASE"]), keys, probe=KillAt(name, int(times)))
    asked: ReencryptRequest | None = ReencryptRequest()
    while asked is not None:
        asked = (await admin.reencrypt(asked, caller=Caller("test", Role.ADMIN))).next


asyncio.run(main())
