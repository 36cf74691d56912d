"""What a type checker knows of a performed handler."""

import subprocess
import sys
from pathlib import Path

MYPY_PROGRAM = """
from tickwright import Job, Tickwright
from tickwright.testing import perform, performing
app = Tickwright()

@app.job("remind")
async def remind(job: Job, invoice_id: int) -> str:
    return ""

async def calls() -> None:
    reveal_type(await perform(remind, invoice_id=42))
    reveal_type(await performing(attempt=2)(remind, 42))
    await perform(remind, invoice_id="x")
    await perform(remind)
"""


def test_a_type_checker_knows_arguments_and_result(tmp_path: Path) -> None:
    """A wrong call is an error of mypy, and the result has the handler's type."""
    program = tmp_path / "calls.py"
    program.write_text(MYPY_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    lines = [line.partition("calls.py:")[2] for line in said.splitlines() if "calls.py:" in line]
    assert [line for line in lines if "Revealed" in line] == [
        '11: note: Revealed type is "str"', '12: note: Revealed type is "str"',
    ]  # fmt: skip
    errors = [int(line.partition(":")[0]) for line in lines if ": error:" in line]
    assert errors == [13, 14]
