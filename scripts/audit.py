"""Ask the public indexes whether a version that we lock has a known vulnerability; ``make audit`` calls it.

    python scripts/audit.py

Exit code 0: none has; 1: some have, each named with the version that mends it; 3: an index did not answer, as where
only mirrors are reached. ``.ci/run`` goes on after 3, with that line in its output; the workflow's job does not.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PAGE = ROOT / "src/tickwright/dashboard/web"
ANSWER_S = 300
CLEAN, VULNERABLE, UNANSWERED = 0, 1, 3


def main() -> int:
    """Ask both."""
    pip_audit = [str(Path(sys.executable).with_name("pip-audit")), "--disable-pip", "--require-hashes"]
    answers = [
        of_python(_asked([*pip_audit, "--progress-spinner", "off", "--format", "json", "--requirement", str(LOCK)])),
        of_npm(_asked(["npm", "audit", "--json", "--package-lock-only", "--prefix", str(PAGE)])),
    ]
    for _, lines in answers:
        print(*(f"audit: {line}" for line in lines), sep="\n")
    codes = {code for code, _ in answers}
    return next(code for code in (VULNERABLE, UNANSWERED, CLEAN) if code in codes)


def of_python(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Read pip-audit's report: a package that PyPI's own list of vulnerabilities does not know was not looked up."""
    packages = report.get("dependencies", [])
    found = [
        f"{package['name']} {package['version']}: {one['id']}, mended in {' '.join(one['fix_versions']) or 'none'}"
        for package in packages
        for one in package.get("vulns", [])
    ]
    unknown = sum("skip_reason" in package for package in packages)
    if found:
        return VULNERABLE, found
    if unknown:
        return UNANSWERED, [f"PyPI does not say what is known of {unknown} of {len(packages)} Python packages"]
    if not packages:
        return UNANSWERED, [f"PyPI does not answer: {report.get('message', 'no report')}"]
    return CLEAN, [f"nothing is known of {len(packages)} Python packages"]


def of_npm(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Read npm's report, or its error."""
    if "vulnerabilities" not in report:
        return UNANSWERED, [f"npm's registry does not answer: {report.get('message', 'no report')}"]
    found = [f"{name}: {one['severity']} ({one['range']})" for name, one in report["vulnerabilities"].items()]
    return (VULNERABLE, found) if found else (CLEAN, ["nothing is known of the page's packages"])


def _asked(command: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"message": str(error)}
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"message": done.stderr.strip()[-500:]}
    return report


if __name__ == "__main__":
    sys.exit(main())
