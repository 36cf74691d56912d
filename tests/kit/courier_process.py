"""A courier as a process of its own, so that nothing that is done to others makes its clock or its log late.

Run as ``python courier_process.py LOG URL_FILE DELAY_SECONDS``; answers until killed.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.partners import Courier


async def main(log: str, url_file: str, delay_s: str) -> None:
    """Answer until killed."""
    async with Courier(Path(log)) as courier:
        courier.delay_s = float(delay_s)
        _tell(courier.url, url_file)
        await asyncio.Event().wait()


def _tell(url: str, url_file: str) -> None:
    made = Path(url_file + ".new")
    made.write_text(url, encoding="utf-8")
    made.replace(url_file)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
