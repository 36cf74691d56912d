"""The process of a query, as its parent holds it in a thread: started, asked, ended, and what its death means."""

import subprocess
from contextlib import suppress

import structlog

from tickwright.sources.confined import (
    command,
    died_for_memory,
    environment,
    killed_for_memory,
    shown_errors,
    shown_status,
)
from tickwright.sources.query_messages import Answer, Begun, read_answer

DEATH_S = 5.0
"""How long a process that said its last word may take to be gone, before it is killed."""
PROGRAM = "tickwright.sources.query_program"

_log = structlog.get_logger("tickwright.sources")


class QueryProcess:
    """One process with the program :mod:`query_program`; every method but ``kill`` is called by one thread at a time.

    Invariants:
        SRC-8: it has no secret of ours: of our environment it gets a few names, and no open file.
        SRC-9: it is gone when :meth:`end` is over, and soon after our own death, whatever we died of.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self) -> None:
        self._killed_before, self._killed = 0, False
        self._process = subprocess.Popen(
            command(PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def begin(self, request: bytes) -> bool:
        """Have the request begun; ``False``: the process had died, and nothing of it was done."""
        assert self._process.stdin is not None  # noqa: S101  a pipe
        self._killed_before = killed_for_memory()
        with suppress(OSError):  # it is dead, which reading finds as well
            self._process.stdin.write(request)
            self._process.stdin.flush()
        return isinstance(self.answer(), Begun)

    def answer(self) -> Answer | None:
        """Return its next answer; ``None``: it died, or is to be ended."""
        assert self._process.stdout is not None  # noqa: S101  a pipe
        return read_answer(self._process.stdout)

    def death(self) -> str | None:
        """Return how it died when there is no answer, and end it; ``None``: of its own bound of memory."""
        assert self._process.stderr is not None  # noqa: S101  a pipe
        wanted = self._killed
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        self.kill()
        status, errors = self._process.wait(), self._process.stderr.read()
        if not wanted:
            _log.warning("sources.process_lost", pid=self.pid, status=status, errors=shown_errors(errors))
        if died_for_memory(status, errors):
            return None
        return shown_status(status, killed=killed_for_memory() > self._killed_before)

    def kill(self) -> None:
        """Kill it, from any thread, any number of times."""
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """Kill it and return when it is gone; any number of times."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None  # noqa: S101
            with suppress(OSError):  # what was not written any more
                pipe.close()
