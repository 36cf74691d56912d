"""A courier as a separate process, so that its clock and its log are not delayed by the load of a test.

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
        _write(courier.url, url_file)
        await asyncio.Event().wait()


def _write(url: str, url_file: str) -> None:
    made = Path(url_file + ".new")
    made.write_text(url, encoding="utf-8")
    made.replace(url_file)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
