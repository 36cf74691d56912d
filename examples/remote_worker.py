"""A remote worker in thirty lines, with Python's standard library only: python remote_worker.py URL KEY."""

import json
import sys
import threading
import time
import urllib.request

URL, KEY = sys.argv[1:3]


def call(name: str, body: dict, session: str = "") -> dict:
    """Make one call of the protocol; an error raises."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "Tickwright-Session": session}
    request = urllib.request.Request(f"{URL}/v1/worker/{name}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def beat(session: str, every_s: float, held: list) -> None:
    """Keep the session alive."""
    while True:
        time.sleep(every_s)
        call("heartbeat", {"held": list(held)}, session)


worker = call("register", {"name": "example:1", "pool": "examples", "types": ["greet"]})
session, held = worker["session"], []
threading.Thread(target=beat, args=(session, worker["heartbeat_ms"] / 1000, held), daemon=True).start()
for number in range(1, 1_000_000):
    for job in call("claim", {"claim": number, "max": 1, "wait": "20s"}, session)["jobs"]:
        attempt = {"id": job["id"], "fence": job["fence"]}
        held.append(attempt)
        if job["begin"] and job["id"] not in call("begin", {"jobs": [attempt]}, session)["begins"]:
            continue  # another worker has it
        result = f"Hello, {job['payload']['name']}!"
        call("results", {"results": [{"outcome": "complete", "result": result, **attempt}]}, session)
        held.remove(attempt)
