"""Folders of processes on one disk: what a killed one left goes, what a living one has stays."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tickwright.wiring.work_folder import work_folder

HOLDER = """
import sys
from pathlib import Path
from tickwright.wiring.work_folder import work_folder
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
    """The next process that comes knows which is which by locks alone."""
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


def test_a_process_that_ends_in_peace_takes_its_folder_along(tmp_path: Path) -> None:
    """And the lock, so that nothing is left to sweep."""
    with holder(tmp_path) as (process, folder):
        assert folder.is_dir()
        process.communicate("")
        assert [path.name for path in tmp_path.iterdir()] == ["locks"]
        assert not any((tmp_path / "locks").iterdir())
