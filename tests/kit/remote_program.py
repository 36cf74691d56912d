"""A remote worker as a separate process, to be stopped and killed; with the standard library only, as any language has.

It claims one job, poll, task or chunk and says so, sends heartbeats, and waits for a line on its standard input. Then
it makes every call of the protocol about it and prints the status and the code of each answer. Its registration is the
third argument, by default for jobs of the type ``work``; the fourth one is the result that it reports.
"""

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

URL, KEY = sys.argv[1:3]
WORKS = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {"types": ["work"]}
RESULT = json.loads(sys.argv[4]) if len(sys.argv) > 4 else "late"


def call(name: str, body: Any, session: str = "") -> tuple[int, Any]:
    """Make one call; return the status and the answer."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "Tickwright-Session": session}
    request = urllib.request.Request(f"{URL}/v1/worker/{name}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def say(value: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def beat(session: str, held: list[Any], every_s: float) -> None:
    """Send heartbeats until one is refused."""
    while call("heartbeat", {"held": held}, session)[0] == 200:
        time.sleep(every_s)


def main() -> None:
    """Claim, wait, and make every call."""
    _, registered = call("register", {"name": "stopped", "pool": "shop", "lease": "2s", **WORKS})
    session = registered["session"]
    held: list[Any] = []
    threading.Thread(target=beat, args=(session, held, registered["heartbeat_ms"] / 1000), daemon=True).start()
    found = call("claim", {"claim": 1, "wait": "60s"}, session)[1]
    [job] = found["jobs"] + found["calls"]
    one = {name: job[name] for name in ("id", "fence", "kind") if name in job}
    held.append(one)
    say(job)
    sys.stdin.readline()
    answers = {
        "results": call("results", {"results": [{"outcome": "complete", "result": RESULT, **one}]}, session),
        "heartbeat": call("heartbeat", {"held": [one]}, session),
        "progress": call("progress", {"jobs": [{"progress": "late", **one}]}, session),
        "begin": call("begin", {"jobs": [one]}, session),
        "claim": call("claim", {"claim": 2, "held": [one]}, session),
        "close": call("close", {}, session),
    }
    say({name: [status, answer.get("code")] for name, (status, answer) in answers.items()})


if __name__ == "__main__":
    main()
