"""Draw ``docs/fanout-before-after.svg`` from what ``tickwright bench fanout`` measured.

    python bench/run.py fanout
    python bench/fanout_picture.py [REPORT]

Every bar and every number in it is measured; nothing is written by hand. The report itself is in the picture's
``metadata``, so that a test can draw it again.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPORT = HERE / "results" / "fanout.json"
PICTURE = HERE.parent / "docs" / "fanout-before-after.svg"
WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 860, 150, 150, 46, 26, 62
FAST, SLOW, WAIT, INK, DIM = "#2a9d8f", "#e76f51", "#d9d9d9", "#222222", "#666666"
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:%s}.head{font-size:15px;font-weight:600}.dim{fill:%s}"
)


def main() -> int:
    """Draw it."""
    report = json.loads(Path(sys.argv[1] if sys.argv[1:] else REPORT).read_text())
    PICTURE.write_text(picture(report), encoding="utf-8")
    return 0


def picture(report: dict[str, Any]) -> str:
    """Return the picture of one report as SVG."""
    figures, details = report["figures"], report["details"]
    before, after = details["before"], details["after"]
    longest_ms = max(one["done_ms"] for one in [*before, *after])
    scale = (WIDTH - LEFT - RIGHT) / longest_ms
    alone = f"One message for all: everybody waits for the slow one, done after {_seconds(figures['before_done_ms'])}"
    each = (
        f"A message each, three consumers of one slot: the fast ones are done after "
        f"{_seconds(figures['fast_done_ms'])}, all after {_seconds(figures['all_done_ms'])}"
    )
    parts, y = [], TOP
    for head, answers in ((alone, before), (each, after)):
        parts.append(f'<text class="head" x="16" y="{y - 18}">{head}</text>')
        for one in answers:
            parts += _row(one, y, scale)
            y += ROW
        y += GAP
    parts.append(_axis(y - GAP, scale, longest_ms))
    facts = report["machine"]
    parts.append(
        f'<text class="dim" x="16" y="{y - 14}">Seconds since the publish. Measured by tickwright bench fanout on '
        f"{facts['cpus']} × {escape(facts['cpu'])}; grey: waiting to be asked.</text>"
    )
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    style = f"<style>{STYLE % (INK, DIM)}</style>"
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    told = f"<metadata>{escape(json.dumps(report, separators=(',', ':')), quote=False)}</metadata>"
    return "\n".join([f'<svg {box} role="img">', _title(figures), told, style, ground, *parts, "</svg>", ""])


def _title(figures: dict[str, float]) -> str:
    text = (
        f"Four providers of 5, 0.1, 0.1 and 0.1 seconds: by one message all are done after "
        f"{_seconds(figures['before_done_ms'])}; by one message each on three consumers the fast ones after "
        f"{_seconds(figures['fast_done_ms'])} and all after {_seconds(figures['all_done_ms'])}."
    )
    return f"<title>{text}</title>"


def _row(one: dict[str, float], y: int, scale: float) -> list[str]:
    asked, done = LEFT + one["asked_ms"] * scale, LEFT + one["done_ms"] * scale
    colour = SLOW if one["takes_ms"] > 1000 else FAST
    label = f'{_seconds(one["done_ms"])} <tspan class="dim">consumer {one["consumer"]:g}</tspan>'
    return [
        f'<text x="16" y="{y + 15}">provider of {one["takes_ms"] / 1000:g} s</text>',
        f'<rect x="{LEFT}" y="{y + 3}" width="{asked - LEFT:.1f}" height="16" fill="{WAIT}"/>',
        f'<rect x="{asked:.1f}" y="{y + 3}" width="{max(done - asked, 2):.1f}" height="16" fill="{colour}"/>',
        f'<text x="{done + 6:.1f}" y="{y + 15}">{label}</text>',
    ]


def _axis(y: int, scale: float, longest_ms: float) -> str:
    ticks = [
        f'<text class="dim" x="{LEFT + second * 1000 * scale - 4:.1f}" y="{y + 16}">{second}</text>'
        for second in range(int(longest_ms // 1000) + 1)
    ]
    return "\n".join(ticks)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
