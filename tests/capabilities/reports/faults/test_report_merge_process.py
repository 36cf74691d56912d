"""The merge process: its limits, its end with the worker, the meaning of its death, and what it inherits."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.merges import ENDLESS, failed, grown, lives, merge_processes, merged, status_bytes, warm
from kit.waiting import eventually, eventually_async
from tickwright.capabilities.reports.merge import process_pool as merge_process
from tickwright.capabilities.reports.merge.merge import MergedFile, PartFile
from tickwright.capabilities.reports.merge.process_pool import MergeProcess, MergeProcesses
from tickwright.capabilities.reports.merge.program import BEGUN, HEADROOM_BYTES, JOBS_MAX, MergeJob
from tickwright.capabilities.reports.merge.sandbox import MergeBounds
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Column
from tickwright.sources.confined import died_for_memory, shown_errors

MIB = 1024 * 1024
BOUNDS = MergeBounds(memory_bytes=256 * MIB, threads=1)
HUGE = [
    "SELECT repeat('x', 1000000000) AS a FROM numbers",
    "SELECT rpad('a', 1000000000, 'b') AS a FROM numbers",
    "SELECT len(range(1000000000)) AS a FROM numbers",
    "SELECT format('{:1000000000}', id) AS a FROM numbers",
    "SELECT regexp_replace(repeat('ab', 50000000), 'a', repeat('c', 9), 'g') AS a FROM numbers",
    "SELECT array_to_string(list_transform(range(10000000), lambda one: repeat('z', 100)), ',') AS a FROM numbers",
]
PARENT = """
import asyncio, sys
from pathlib import Path
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.program import MergeJob

async def main():
    folder = Path(sys.argv[1])
    merges = MergeProcesses(at_once=2)
    running = asyncio.create_task(merges.run())
    while len(merges.pids) < 2:
        await asyncio.sleep(0.01)
    print(*merges.pids, flush=True)
    await merges.answer(MergeJob(parts=[], sql=sys.argv[2], out=folder / "out.csv", folder=folder))

asyncio.run(main())
"""


@pytest.fixture
def numbers(tmp_path: Path) -> PartFile:
    """A part of three rows."""
    path = tmp_path / "numbers.ndjson"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(3)))
    return PartFile("numbers", path, (Column("id", "BIGINT"),))


def proc_text(pid: int, name: str) -> str:
    """Return a file of ``/proc`` for a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def open_files(pid: int) -> set[str]:
    """Return what kinds of files a process has open."""
    return {str(one.readlink()).partition(":")[0] for one in Path(f"/proc/{pid}/fd").iterdir()}


# ---------------------------------------------------------------------- memory and time


@pytest.mark.matrix
@pytest.mark.parametrize("sql", HUGE)
async def test_one_huge_value_is_refused_and_takes_no_memory(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile, sql: str
) -> None:
    """DuckDB does not count it; the kernel does. The worker holds nothing of it."""
    (pid,) = merges.pids
    before = status_bytes(os.getpid(), "VmHWM")
    error = await failed(merges, [numbers], sql, tmp_path, BOUNDS)
    assert isinstance(error, Rejected)
    assert error.code == "merge_too_large"
    assert status_bytes(os.getpid(), "VmHWM") - before < 32 * MIB
    if lives(pid):  # it refused, and accepts the next job
        assert status_bytes(pid, "VmHWM") < BOUNDS.memory_bytes + HEADROOM_BYTES + 64 * MIB
    assert (await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)).rows == 3


async def test_a_feed_of_one_huge_value_is_refused(merges: MergeProcesses, tmp_path: Path, numbers: PartFile) -> None:
    """A feed is computed in the same process."""
    with pytest.raises(Rejected) as caught:
        await merges.answer(
            MergeJob(parts=[numbers], sql="SELECT repeat('x', 1000000000) AS a", folder=tmp_path, bounds=BOUNDS)
        )
    assert caught.value.code == "merge_too_large"


async def test_a_merge_ends_at_its_bound_on_processor_time(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """The kernel ends it even if its worker hangs."""
    error = await failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS._replace(cpu_s=0))
    assert isinstance(error, Unavailable)
    assert error.code == "merge_lost"
    assert f"signal {signal.SIGXCPU.value}" in error.message


async def test_the_kernel_bounds_a_merge_and_kills_it_before_the_worker(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """No core file, which would have rows in it; a lower priority than the worker's; bounded memory and time."""
    (pid,) = merges.pids
    await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)
    limits = {line[:25].strip(): line[25:].split()[0] for line in proc_text(pid, "limits").splitlines()}
    assert limits["Max core file size"] == "0"
    assert BOUNDS.memory_bytes < int(limits["Max data size"]) < BOUNDS.memory_bytes + HEADROOM_BYTES + 64 * MIB
    assert int(limits["Max cpu time"]) <= BOUNDS.cpu_s + 60
    assert proc_text(pid, "oom_score_adj").strip() == "1000"
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


# ---------------------------------------------------------------------- its death


async def test_a_spare_process_exists_while_it_is_needed(tmp_path: Path, numbers: PartFile) -> None:
    """It merges beside a merge that does not end, and ends after that: at rest it takes no memory."""
    endless, other = tmp_path / "endless", tmp_path / "other"
    async with merge_processes(at_once=1, spare=1) as merges:
        endless.mkdir()
        task = asyncio.create_task(merged(merges, [numbers], ENDLESS, endless, BOUNDS))
        await eventually_async(lambda: grown(endless / "out.csv"))
        for number in range(2):
            folder = other / str(number)
            folder.mkdir(parents=True)
            assert (await merged(merges, [numbers], "SELECT * FROM numbers", folder, BOUNDS)).rows == 3
            await warm(merges, 1)
        task.cancel()
        await asyncio.wait([task])
        assert (await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)).rows == 3


async def test_a_process_that_is_killed_is_an_error_to_try_again(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """Nothing of the merge stays, and the next one has another process."""
    (pid,) = merges.pids
    task = asyncio.create_task(failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS))
    await eventually_async(lambda: grown(tmp_path / "out.csv"))
    os.kill(pid, signal.SIGKILL)
    error = await task
    assert isinstance(error, Unavailable)
    assert (error.code, error.message) == ("merge_lost", "the merge process died (signal 9)")
    assert (await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)).rows == 3
    assert pid not in merges.pids


async def test_a_warm_process_that_died_costs_no_merge(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """Whether its death is known or not when the job comes; SIGSTOP makes it accept the job before it dies."""
    (pid,) = merges.pids
    os.kill(pid, signal.SIGSTOP)
    task = asyncio.create_task(merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS))
    await eventually_async(lambda: not merges._warm)
    os.kill(pid, signal.SIGKILL)
    assert (await task).rows == 3
    (other,) = await warm(merges)
    os.kill(other, signal.SIGKILL)
    await eventually_async(lambda: not lives(other))
    assert (await merged_again(merges, numbers, tmp_path)).rows == 3
    assert not {pid, other} & {*merges.pids}


async def merged_again(merges: MergeProcesses, numbers: PartFile, folder: Path) -> MergedFile:
    """Merge once more into the same file."""
    (folder / "out.csv").unlink()
    return await merged(merges, [numbers], "SELECT * FROM numbers", folder, BOUNDS)


async def test_signals_for_the_worker_do_not_end_a_merge(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """A service manager sends SIGTERM to all processes of a service; the worker lets its merges end."""
    (pid,) = merges.pids
    for one in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, one)
    assert (await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)).rows == 3
    assert merges.pids == [pid]


def test_merge_processes_end_with_a_killed_worker(tmp_path: Path) -> None:
    """Kill -9 in the middle of a merge: the merging and the idle process are gone."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), ENDLESS], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        try:
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
            eventually(lambda: grown(tmp_path / "out.csv"))
            assert all(map(lives, pids))
        finally:
            parent.kill()
    eventually(lambda: not any(map(lives, pids)))


async def test_stopping_ends_all_merge_processes_and_waits_for_them(tmp_path: Path, numbers: PartFile) -> None:
    """A running merge is lost, and leaves nothing; a later one gets no process."""
    async with merge_processes(2) as merges:
        pids = merges.pids
        task = asyncio.create_task(failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS))
        await eventually_async(lambda: grown(tmp_path / "out.csv"))
        await merges.stop()
        assert not any(map(lives, pids))
        assert (await task).code == "merge_lost"
        assert (await failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS)).code == "merge_lost"


async def test_a_process_is_used_again_and_not_for_ever(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """Starting one for each of many small merges would cost more than the merges."""
    (pid,) = merges.pids
    for _ in range(JOBS_MAX):
        assert merges.pids == [pid]
        await merged(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)
        (tmp_path / "out.csv").unlink()
    await eventually_async(lambda: merges.pids not in ([], [pid]))
    assert not lives(pid)


async def test_a_merge_process_that_cannot_start_is_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is retriable: the machine may be the cause."""
    for path in ("/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", path)
        with pytest.raises(Unavailable) as caught:
            await MergeProcess.start()
        assert caught.value.code == "merge_lost"


async def test_an_unreadable_answer_counts_as_a_death_of_the_process(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """Such as one that was cut off in the middle of a character: the error is retriable."""
    process = await MergeProcess.start()
    try:
        job = MergeJob(parts=[numbers], sql="SELECT 1 AS a", folder=tmp_path, bounds=BOUNDS)
        process._lines = asyncio.StreamReader()
        process._lines.feed_data(BEGUN + b'{"values": {"a": "\xff"}}\n')
        with pytest.raises(Unavailable) as lost:
            await process.ask(job)
        assert lost.value.code == "merge_lost"
    finally:
        await process.end()


def test_no_progress_is_drawn(tmp_path: Path) -> None:
    """DuckDB takes a program without a file, such as a merge process, for an interactive session."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from tickwright.capabilities.reports.merge.sandbox import MergeBounds, open_duck\n"
        "with open_duck(Path(sys.argv[1]), MergeBounds(), []) as duck:\n"
        "    print(duck.execute(\"SELECT current_setting('enable_progress_bar')\").fetchall())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[(False,)]\n"


def test_a_death_for_lack_of_memory_is_distinguished_from_others() -> None:
    """The process's own message decides; any other death is retriable, also a kill by the kernel."""
    assert died_for_memory(-6, b"terminate called after throwing an instance of 'std::bad_alloc'")
    assert died_for_memory(1, b"MemoryError at merging.py:1\n")
    assert not died_for_memory(1, b"ValueError at merging.py:1\n")
    assert not died_for_memory(-11, b"")
    assert not died_for_memory(-9, b"")
    assert not died_for_memory(-9, b"MemoryError, of the job before, which was refused")


async def test_a_merge_that_the_kernel_kills_for_memory_is_tried_again(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the machine has no memory left, merge processes are killed first, whatever process used it."""
    monkeypatch.setattr(merge_process, "killed_for_memory", itertools.count().__next__)
    (pid,) = merges.pids
    task = asyncio.create_task(failed(merges, [numbers], ENDLESS, tmp_path, BOUNDS))
    await eventually_async(lambda: grown(tmp_path / "out.csv"))
    os.kill(pid, signal.SIGKILL)
    error = await task
    assert (type(error), error.code) == (Unavailable, "merge_lost")
    assert "signal 9; the machine, or the container, had no memory left" in error.message


def test_the_logged_output_of_a_dead_process_has_no_paths_and_no_rows() -> None:
    """The end of its output, 1,000 characters at most."""
    shown = shown_errors(b"terminate called\n  what():  Ann, 1990-01-01\nat /srv/reports/7-1-x/out.csv: \xff\n")
    assert shown == "terminate called\nat …: \ufffd"
    assert len(shown_errors(b"x" * 4096)) == 1000


# ---------------------------------------------------------------------- what it inherits


async def test_a_merge_process_has_no_secrets_and_no_files_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the environment it has what an interpreter needs; of open files, pipes only."""
    monkeypatch.setenv("TICKWRIGHT_DATABASE_URL", "postgresql://me:hunter2@db/x")
    monkeypatch.setenv("FUND_PASSWORD", "hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    with (tmp_path / "open").open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        async with merge_processes() as merges:
            (pid,) = merges.pids
            environment = dict(one.split("=", 1) for one in proc_text(pid, "environ").split("\0") if one)
            assert {*environment} <= {
                "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DUCKDB_JE_MALLOC_CONF", "MALLOC_ARENA_MAX",
            }  # fmt: skip
            assert "hunter2" not in proc_text(pid, "cmdline")
            assert open_files(pid) <= {"pipe", "socket"}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('PATH') AS a",
        "SELECT 1; SELECT 2",
        "COPY numbers TO 'x'",
    ],
)
async def test_a_merge_process_refuses_sql_that_reads_more_than_its_parts(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile, sql: str
) -> None:
    """The process checks the SQL itself; its error reaches the worker unchanged."""
    error = await failed(merges, [numbers], sql, tmp_path, BOUNDS)
    assert isinstance(error, Rejected)
    assert error.code == "invalid_sql"


async def test_errors_of_a_merge_process_reach_the_worker_complete(
    merges: MergeProcesses, tmp_path: Path, numbers: PartFile
) -> None:
    """Class, code, message and details, as if raised in the worker; the process goes on."""
    pids = merges.pids
    refused = await failed(merges, [numbers], "SELECT nope FROM numbers", tmp_path, BOUNDS)
    assert (type(refused), refused.code) == (Rejected, "merge_refused")
    numbers.path.write_text('{"id": "x"}\n')
    unreadable = await failed(merges, [numbers], "SELECT * FROM numbers", tmp_path, BOUNDS)
    assert (unreadable.code, unreadable.details) == ("part_unreadable", {"listener": "numbers"})
    assert "row 1, column id" in unreadable.message
    with pytest.raises(Rejected) as caught:
        await merges.answer(MergeJob(parts=[], sql="SELECT 1 AS a WHERE false", folder=tmp_path))
    assert caught.value.code == "feed_not_one_row"
    assert merges.pids == pids


async def test_a_feed_reaches_the_worker_unchanged(merges: MergeProcesses, tmp_path: Path) -> None:
    """Also one that fills its bound, and texts of every kind."""
    texts = "repeat('ü', 200000) AS b, '\"' || chr(10) || chr(1) AS c"
    sql = f"SELECT range(99996) AS a, {texts}, NULL AS d, 1.5::DOUBLE AS e"
    values = (await merges.answer(MergeJob(parts=[], sql=sql, folder=tmp_path))).values
    assert values == {"a": [*range(99_996)], "b": "ü" * 200_000, "c": '"\n\x01', "d": None, "e": 1.5}


def test_the_worker_itself_does_not_load_duckdb() -> None:
    """That would cost 30 MiB."""
    names = "parts.listeners, merge.supervisor, merge.process_pool, plugin"
    modules = ", ".join(f"tickwright.capabilities.reports.{name}" for name in names.split(", "))
    code = f"import sys, {modules}; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
