"""Draws the README's chart from the figures in RESULTS.md: `python -m bench.headline` writes docs/numbers.svg.

It compares engines with the same weights, SmolLM2-135M, at 8 streams: tokens per second, time to the first token, and
CPU time per 1,000 tokens.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS, PICTURE = ROOT / "bench" / "RESULTS.md", ROOT / "docs" / "numbers.svg"
SECTION, CASE = "## Real models", "8 streams, 512 tokens"
NAMES = {
    "lean_ovms SmolLM2 Q4_1": "lean_ovms, Q4_1",
    "llama-server SmolLM2 Q4_1": "llama-server, Q4_1",
    "lean_ovms SmolLM2 int8": "lean_ovms, int8",
    "bare: GenAI SmolLM2 int8": "GenAI's loop, int8",
}
PANELS = {3: "tokens per second", 4: "ms to the first token (median)", 6: "CPU seconds per 1,000 tokens"}
"""The title of each panel, by the column of the table that it shows."""
WIDTH, HEADER, LEFT, BAR, STEP = 280, 44, 160, 16, 24


def figures(text: str) -> dict[str, list[str]]:
    """Returns the cells of the chart's case, by the name of the server."""
    section = text.partition(SECTION)[2].partition("\n## ")[0]
    rows = re.findall(rf"^\| {CASE} \|.*$", section, re.M)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return {row[2]: row for row in cells if row[2] in NAMES}


def svg(text: str) -> str:
    """Draws the chart. `text` is the content of RESULTS.md."""
    found = figures(text)
    height = HEADER + STEP * len(NAMES) + 8
    total = LEFT + WIDTH * len(PANELS)
    size = f'viewBox="0 0 {total} {height}" font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f'<rect width="{total}" height="{height}" fill="#fff"/>']
    for number, name in enumerate(NAMES):
        weight = ' font-weight="bold"' if name.startswith("lean_ovms") else ""
        y = HEADER + number * STEP + BAR - 4
        out.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end"{weight}>{escape(NAMES[name])}</text>')
    for place, (column, title) in enumerate(PANELS.items()):
        values = {name: float(re.split(r"[ /]", found[name][column])[0]) for name in NAMES}
        out += panel(LEFT + place * WIDTH, title, values)
    return "\n".join([*out, "</svg>"]) + "\n"


def panel(left: int, title: str, values: dict[str, float]) -> list[str]:
    """Draws the bars of one figure for all servers."""
    out = [f'<text x="{left}" y="24" font-weight="bold">{escape(title)}</text>']
    for number, (name, value) in enumerate(values.items()):
        width = (WIDTH - 80) * value / max(values.values())
        y, colour = HEADER + number * STEP, "#0068b5" if name.startswith("lean_ovms") else "#b8bcc4"
        out.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        out.append(f'<text x="{left + width + 5:.1f}" y="{y + BAR - 4}">{shown(value)}</text>')
    return out


def shown(value: float) -> str:
    """Formats a figure with three significant digits, or without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    PICTURE.write_text(svg(RESULTS.read_text("utf-8")), "utf-8")
