"""``tickwright bench fleet``: what a job costs the database beside many idle workers, and how late it starts.

Single INSERTs at a steady rate, due now to 0.9 s ahead. First one process works, a worker and scheduler; then the whole
fleet. Transactions are those of ``pg_stat_database``, which counts the INSERTs, and a transaction of each listening
connection for each notification. What the same processes cost without jobs is subtracted.
"""

import argparse
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.jobs import SQL as JOBS
from tickwright.bench.report import Figures, quantile, run_bench
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "fleet.sql")
BARS = {
    "transactions_per_job": "≤ 4",
    "transactions_per_job_of_one": "≤ 3",
    "idle_transactions_per_worker": "≤ 0.8",
    "idle_transactions_of_one": "≤ 2.5",
    "connections_per_worker": "≤ 2.25",
    "p99_of_one": "≤ 2",
    "late_after_kill_ms": "≤ 250",
    "late_after_stop_ms": "≤ 250",
    "first_job_s": "≤ 0.7",
    "lost": "0",
    "duplicates": "0",
    "early": "0",
}
AHEAD_S = 0.9
REPORTED_S = 11.0
"""A connection that is idle has reported its transactions after this time."""
STARTED_AT_ONCE = 4
AFTER_FAULT_S = 3.0
LATER_S = 3600.0

Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=40, help="processes, the first one also a scheduler")
        parser.add_argument("--rate", type=float, default=50, help="jobs a second")
        parser.add_argument("--seconds", type=float, default=30, help="how long each part takes")
        parser.add_argument("--faults", type=int, default=3, help="how often the first choice is killed, and stopped")
        parser.add_argument("--waiting", type=int, default=0, help="jobs of another type that wait for later hours")
        parser.add_argument("--seed", type=int, default=7, help="of the due instants")

    return run_bench("fleet", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Say) -> Figures:
    fleet = _Fleet(ground, options, say)
    figures: Figures = {"first_job_s": fleet.first_job_s()}
    if options.waiting:
        ground.run(JOBS["fill_spread"], LATER_S, LATER_S, "noop", options.waiting)
        ground.run(JOBS["settle"])
    say("one process: worker and scheduler")
    idle, per_job, late_of_one = fleet.costs()
    figures |= {"idle_transactions_of_one": idle, "transactions_per_job_of_one": per_job}
    figures |= {f"{name}_of_one_ms": value for name, value in _quantiles(late_of_one).items()}
    figures["connections_of_one"] = ground.one(SQL["connections"])
    fleet.grow(options.workers)
    say(f"{options.workers} processes")
    idle, per_job, late = fleet.costs()
    figures |= {
        "idle_transactions_per_worker": idle / options.workers,
        "transactions_per_job": per_job,
        "connections_per_worker": ground.one(SQL["connections"]) / options.workers,
        **{f"{name}_ms": value for name, value in _quantiles(late).items()},
        "p99_of_one": quantile(late, 0.99) / quantile(late_of_one, 0.99),
    }
    if options.workers > 1:
        figures |= fleet.faults(options.faults)
    ground.stop()
    return figures | fleet.correctness()


def _quantiles(late: Sequence[float]) -> Figures:
    return {"p50": quantile(late, 0.50), "p99": quantile(late, 0.99), "max": late[-1]}


class _Fleet:
    """The processes, and jobs for them."""

    def __init__(self, ground: Ground, options: argparse.Namespace, say: Say) -> None:
        self._ground, self._options, self._say = ground, options, say
        self._rng = random.Random(options.seed)
        self._inserted = self._seen = 0

    def first_job_s(self) -> float:
        """Start the first process, with a job that waits; return when that began."""
        self._start("worker")
        self._ground.stop()  # the first start compiles modules and declares the task types
        self._insert(0.0)
        began_s = time.time()
        self._start("worker")
        wait_until(self._ground.events, 60, "the first job")
        started_s = float(self._ground.events()[-1][5])
        self._ground.stop()
        self._seen = len(self._ground.events())
        self._start("worker", "scheduler")
        return started_s - began_s

    def _start(self, *roles: str) -> None:
        process = self._ground.launch("run", *roles, "--app", "tickwright.bench.program:app", environment=self._own())
        self._wait_registered([process])

    def _own(self) -> dict[str, str]:
        return {"BENCH_LOG": str(self._ground.log()), "BENCH_KEEP": "1"}

    def _wait_registered(self, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
        pids = {process.pid for process in processes}
        names = "SELECT array_agg(split_part(name, ':', -1)::integer) FROM tickwright.workers WHERE lost_at IS NULL"

        def there() -> bool:
            if any(process.poll() is not None for process in processes):
                raise RuntimeError((self._ground.folder / f"worker{self._ground.started}.out").read_text()[-2000:])
            return pids <= set(self._ground.one(names) or [])

        wait_until(there, 120, "workers to register", check_s=0.2)

    def grow(self, workers: int) -> None:
        """Start more workers, a few at a time."""
        while (left := workers - len(self._ground.workers)) > 0:
            batch = [
                self._ground.launch("worker", "--app", "tickwright.bench.program:app", environment=self._own())
                for _ in range(min(left, STARTED_AT_ONCE))
            ]
            self._wait_registered(batch)

    def costs(self) -> tuple[float, float, list[float]]:
        """Return idle transactions a second, transactions per job, and the sorted lateness of the jobs."""
        seconds = self._options.seconds
        time.sleep(REPORTED_S)
        idle = self._transactions(lambda: time.sleep(seconds)) / seconds
        began_s, before = time.monotonic(), self._inserted

        def load_and_report() -> None:
            self._trickle(seconds)
            self._all_done()
            time.sleep(REPORTED_S)

        took = self._transactions(load_and_report)
        jobs = self._inserted - before
        per_job = (took - idle * (time.monotonic() - began_s)) / jobs
        self._say(f"idle {idle:.2f} a second, {per_job:.2f} a job, {self._ground.one(SQL['connections'])} connections")
        return idle, per_job, sorted(float(event[2]) for event in self._new_events())

    def _transactions(self, work: Callable[[], None]) -> float:
        before = self._ground.one(JOBS["transactions"])
        work()
        return float(self._ground.one(JOBS["transactions"]) - before)

    def _new_events(self) -> list[list[str]]:
        events = self._ground.events()
        new, self._seen = events[self._seen :], len(events)
        return new

    def _insert(self, ahead_s: float) -> None:
        self._ground.run(SQL["insert_one"], ahead_s)
        self._inserted += 1

    def _trickle(self, seconds: float) -> None:
        begin = time.monotonic()
        for number in range(int(seconds * self._options.rate)):
            self._insert(self._rng.random() * AHEAD_S)
            time.sleep(max(0.0, begin + (number + 1) / self._options.rate - time.monotonic()))

    def _all_done(self, within_s: float = 30) -> None:
        wait_until(lambda: self._ground.left("late") == 0, within_s, "every job to finish", check_s=0.5)

    def faults(self, count: int) -> Figures:
        """Kill and stop the worker that took most of the last jobs; return how late others begin the next ones.

        What it had claimed before, jobs due within 200 ms, waits for its lease: ``tickwright bench recovery`` measures
        that.
        """
        late: dict[str, float] = {"kill": 0.0, "stop": 0.0}
        for fault in ("kill", "stop") * count:
            first = self._first_choice()
            stopped = next(process for process in self._ground.workers if process.pid == first)
            if fault == "kill":
                self._ground.kill_one(stopped)
            else:
                os.kill(first, signal.SIGSTOP)
            self._trickle(AFTER_FAULT_S)
            self._ground.run("SELECT 1")
            worst = self._worst_late_s(first)
            self._say(f"{fault} of the first choice: {worst:.0f} ms late at most")
            late[fault] = max(late[fault], worst)
            if fault == "stop":
                os.kill(first, signal.SIGCONT)
            self._all_done()
            self._new_events()
        return {f"late_after_{fault}_ms": value for fault, value in late.items()}

    def _first_choice(self) -> int:
        self._trickle(1.0)
        pids = Counter(int(event[3]) for event in self._new_events())
        scheduler = self._ground.workers[0].pid
        return next(pid for pid, _ in pids.most_common() if pid != scheduler)

    def _worst_late_s(self, first: int) -> float:
        """Return the lateness of first attempts elsewhere, once those that are due later have begun, too."""
        time.sleep(AHEAD_S + 0.1)
        return max(float(event[2]) for event in self._new_events() if int(event[3]) != first and event[4] == "1")

    def correctness(self) -> Figures:
        """Return the figures that have to be zero."""
        events = self._ground.events()
        attempts = Counter((event[1], event[4]) for event in events)  # a killed worker's jobs have a second attempt
        return {
            "early": sum(float(event[2]) < 0 for event in events),
            "lost": self._inserted - len({event[1] for event in events}),
            "duplicates": sum(count - 1 for count in attempts.values()),
        }
