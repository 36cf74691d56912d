"""Work folders of processes on one disk: those of killed processes are removed, those of living ones stay."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from kit.merges import merge_processes, merged
from kit.nodes import started
from tickwright.capabilities.reports.merge.merge import PartFile
from tickwright.capabilities.reports.merge.sandbox import MergeBounds
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.domain.errors import Unavailable
from tickwright.plugin.settings import Settings
from tickwright.ports.reports import Column
from tickwright.store.pool import Pool
from tickwright.transports.objectstore.folder import LazyFolder, work_folder
from tickwright.transports.objectstore.plugin import work_place

HOLDER = """
import sys
from pathlib import Path
from tickwright.transports.objectstore.folder import work_folder
with work_folder(Path(sys.argv[1])) as folder:
    (folder / "rows.ndjson").write_text("{}")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(place: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Run a process that has a folder in ``place``, and give the two."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_killed_process_leaves_nothing_and_a_living_one_keeps_its_folder(tmp_path: Path) -> None:
    """The next process tells them apart by their locks alone."""
    with ExitStack() as stack:
        killed, left = stack.enter_context(holder(tmp_path))
        _, kept = stack.enter_context(holder(tmp_path))
        killed.kill()
        killed.wait()
        assert left.is_dir()
        with work_folder(tmp_path) as ours:
            assert sorted(path for path in tmp_path.iterdir() if path.name != "locks") == sorted([kept, ours])
            assert (kept / "rows.ndjson").exists()
        assert not ours.exists()


def test_an_orderly_end_removes_the_folder_of_a_process(tmp_path: Path) -> None:
    """And the lock, so that nothing is left to sweep."""
    with holder(tmp_path) as (process, folder):
        assert folder.is_dir()
        process.communicate("")
        assert [path.name for path in tmp_path.iterdir()] == ["locks"]
        assert not any((tmp_path / "locks").iterdir())


async def test_no_other_user_reads_what_is_under_way(tmp_path: Path) -> None:
    """Folders are 0700 and files 0600, whatever the umask: those of a process, its parts, a merge's file."""
    before = os.umask(0)
    try:
        with work_folder(tmp_path / "work") as folder:
            part = folder / "part.ndjson"
            await write_part(_rows(), part, declared={})
            async with merge_processes() as merges:
                await merged(
                    merges, [PartFile("a", part, (Column("id", "BIGINT"),))], "SELECT id FROM a", folder, MergeBounds()
                )
            paths = list((tmp_path / "work").rglob("*"))
            assert {"part.ndjson", "out.csv"} <= {path.name for path in paths}
            for path in [tmp_path / "work", *paths]:
                assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(before)


async def _rows() -> AsyncIterator[dict[str, int]]:
    yield {"id": 1}


async def test_the_folder_of_the_settings_is_removed_when_it_is_closed(tmp_path: Path) -> None:
    """It is made at its first use and removed by ``aclose``."""
    made = LazyFolder(work_place(Settings(home=tmp_path)))
    folder = await made.opened()
    assert folder.is_relative_to(tmp_path)
    assert folder.is_dir()
    assert made.path() == folder
    await made.aclose()
    assert not folder.exists()


@pytest.mark.parametrize("role", ["report-listener", "campaign-consumer"])
async def test_a_work_folder_that_cannot_be_made_is_named_and_retriable(pool: Pool, tmp_path: Path, role: str) -> None:
    """The error names the place, and may pass."""
    taken = tmp_path / "taken"
    taken.write_text("a file")
    settings = Settings(database_url=SecretStr("postgresql:///none"), home=tmp_path, report_folder=taken)
    with pytest.raises(Unavailable, match=f"no folder can be made in {taken}") as refused:
        async with started(pool, settings, role):
            pass
    assert refused.value.code == "no_space"
