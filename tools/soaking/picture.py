"""Samples over time as an SVG of stacked panels, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 800, 96, 56, 12, 20, 30
COLUMNS = 360
"""Points of a line at most: of each group of samples the largest is drawn."""
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd")


@dataclass(frozen=True)
class Panel:
    """title: with the unit. lines: values by name, one for each time. marks: horizontal lines."""

    title: str
    lines: dict[str, Sequence[float]]
    marks: Sequence[float] = field(default=())


def svg(minutes: Sequence[float], panels: Sequence[Panel], events: Sequence[tuple[float, str]], caption: str) -> str:
    """The picture. events: (minute, colour), drawn in every panel."""
    height = TOP + len(panels) * (PANEL + GAP) + 24
    end = max(minutes, default=0.0) or 1.0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        out += _panel(panel, TOP + number * (PANEL + GAP), minutes, end, events)
    bottom = TOP + len(panels) * (PANEL + GAP) - GAP + 14
    for tick in _ticks(end):
        out.append(f'<text x="{_x(tick, end):.0f}" y="{bottom}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text x="{LEFT}" y="{bottom + 18}">{escape(caption)}</text></svg>')
    return "\n".join(out) + "\n"


def _panel(
    panel: Panel, top: float, minutes: Sequence[float], end: float, events: Sequence[tuple[float, str]]
) -> list[str]:
    most = _round_up(max((value for values in panel.lines.values() for value in values), default=0.0))
    y = lambda value: top + PANEL * (1 - min(value, most) / most)  # noqa: E731
    out = []
    for colour in dict.fromkeys(colour for _, colour in events):
        path = "".join(f"M{_x(when, end):.1f} {top}v{PANEL}" for when, c in events if c == colour)
        out.append(f'<path d="{path}" stroke="{colour}" stroke-width=".5" opacity=".35"/>')
    out.append(f'<path d="M{LEFT} {top}v{PANEL}H{WIDTH - RIGHT}" fill="none" stroke="#444"/>')
    out += [
        f'<path d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}" stroke="#c00" stroke-dasharray="3"/>' for mark in panel.marks
    ]
    legend = LEFT
    out.append(f'<text x="{legend}" y="{top - 5}" font-weight="bold">{escape(panel.title)}</text>')
    legend += 8 * len(panel.title)
    for (name, values), colour in zip(panel.lines.items(), COLORS, strict=False):
        points = "".join(
            f"{'M' if i == 0 else 'L'}{_x(when, end):.1f} {y(value):.1f}"
            for i, (when, value) in enumerate(_thinned(minutes, values))
        )
        out.append(f'<path d="{points}" fill="none" stroke="{colour}"/>')
        out.append(f'<text x="{legend}" y="{top - 5}" fill="{colour}">{escape(name)}</text>')
        legend += 7 * len(name) + 16
    for value in (0.0, most / 2, most):
        out.append(f'<text x="{LEFT - 4}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    return out


def _x(minute: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * minute / end


def _thinned(minutes: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """At most COLUMNS points: the largest value of each group of neighbours."""
    size = -(-len(values) // COLUMNS) or 1
    return [(minutes[i], max(values[i : i + size])) for i in range(0, len(values), size)]


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ...; 1 for 0."""
    if value <= 0:
        return 1.0
    step = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 0.001
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


def _ticks(end: float) -> list[float]:
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 60, 120, 1e9) if end / step <= 9)
    return [step * i for i in range(int(end / step) + 1)]
