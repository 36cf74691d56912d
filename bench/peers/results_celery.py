"""Celery beside ``tickwright bench results``: from the end of a task to its value in one of a thousand waiting threads.

In an environment of its own (``pip install celery redis gevent packaging``), with ``redis-server --port 16399``::

    celery -A results_celery worker -P gevent -c 1000 -l ERROR --without-gossip --without-mingle
    python results_celery.py 5
"""

import random
import sys
import threading
import time

import redis
from celery import Celery

PORT, WAITERS, SECONDS = 16399, 1000, 4.0
app = Celery("results", broker=f"redis://127.0.0.1:{PORT}/0", backend=f"redis://127.0.0.1:{PORT}/1")
app.conf.update(worker_prefetch_multiplier=1, result_expires=600, broker_pool_limit=50)


@app.task(name="answer")
def answer(seconds: float) -> float:
    """Take so long, and return the instant of the end."""
    time.sleep(seconds)
    return time.time()


def main(rounds: int) -> None:
    """Print the figures."""
    rng, took = random.Random(7), list[float]()

    def caller() -> None:
        for _ in range(rounds):
            ended_s = answer.delay(rng.random() * SECONDS).get(timeout=120)
            took.append(1000 * (time.time() - ended_s))

    server = redis.Redis(port=PORT)
    before = len(server.client_list())
    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=caller, daemon=True) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    time.sleep(6)
    connections = len(server.client_list()) - before  # those of the worker have grown, too
    for thread in threads:
        thread.join()
    took.sort()
    print(f"p50_ms {took[len(took) // 2]:.1f} p99_ms {took[len(took) * 99 // 100]:.1f} connections {connections}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
