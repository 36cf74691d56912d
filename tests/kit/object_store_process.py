"""A process that uses an object store and can be killed, or limited in rights or disk; its last line is the result.

``python -m kit.object_store_process put|fetch URL KEY PATH [FILE_BYTES_MAX]``
"""

import asyncio
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from tickwright.domain.errors import TickwrightError
from tickwright.transports.objectstore.plugin import open_store


def peak_bytes() -> int:
    """Return this program's peak memory; ``ru_maxrss`` would include that of the parent process."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts["VmHWM"].split()[0]) * 1024


async def main(verb: str, url: str, key: str, path: str, file_bytes_max: str = "") -> dict[str, Any]:
    """Run the verb, and return its result."""
    if file_bytes_max:
        limit = int(file_bytes_max)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    before = peak_bytes()
    try:
        store = open_store(url, os.environ)
        done = await (store.put_file if verb == "put" else store.fetch_file)(key, Path(path))
    except TickwrightError as error:
        return {"code": error.code, "message": error.message, "retriable": error.retriable}
    return {"done_bytes": done, "peak_bytes": peak_bytes() - before}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asyncio.run(main(*sys.argv[1:])))}\n")
    sys.stdout.flush()
    os._exit(0)
