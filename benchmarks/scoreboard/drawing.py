"""Drawings of the scoreboard, with the style sheet of all reports."""

from __future__ import annotations

from html import escape

from benchmarks.scoreboard.cases import Case
from benchmarks.scoreboard.instruments import INSTRUMENTS
from benchmarks.scoreboard.scoring import Judged, Results, Row, judge

WIDTH, LEFT, HEIGHT = 1000, 236, 22
FAMILIES = {
    "0": "plain loops",
    "1": "Lightning",
    "2": "Trainer",
    "3": "Accelerate",
    "4": "TRL, peft",
    "9": "healthy",
}


def draw_detection(rows: list[Row]) -> str:
    """Draw the share of detected cases of every row, with its interval."""
    scale = WIDTH - LEFT - 150
    parts = [_svg(len(rows) * HEIGHT + 26)]
    for tick in range(0, 101, 20):
        x = LEFT + scale * tick / 100
        parts.append(
            f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="4" y2="{len(rows) * HEIGHT + 6}"/>'
        )
        parts.append(
            f'<text class="soft mid" x="{x:.0f}" y="{len(rows) * HEIGHT + 22}">{tick}%</text>'
        )
    for number, row in enumerate(rows):
        y, rate = number * HEIGHT + 6, row.detected
        low, high = (LEFT + scale * end for end in rate.interval)
        width = scale * rate.hits / rate.total if rate.total else 0
        kind = "in" if row.ours else "soft"
        parts += [
            f'<text class="end" x="{LEFT - 10}" y="{y + 13}">{escape(row.title)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="{HEIGHT - 9}" rx="2"/>',
            f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 9.5}" y2="{y + 9.5}"/>',
            f'<text class="soft" x="{LEFT + scale + 16}" y="{y + 13}">{rate.hits} of {rate.total}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def draw_cases(cases: list[Case], results: Results) -> str:
    """Draw every case under every instrument as a cell, by families."""
    gap, step = 10, (WIDTH - LEFT - 60) / max(1, len(cases))
    places, x, last = {}, float(LEFT), ""
    parts = [_svg(len(INSTRUMENTS) * HEIGHT + 30)]
    for case in cases:
        if case.name[0] != last:
            x += gap if last else 0
            last = case.name[0]
            parts.append(f'<text class="soft" x="{x:.0f}" y="14">{FAMILIES[last]}</text>')
        places[case.name] = x
        x += step
    for number, one in enumerate(INSTRUMENTS):
        y = number * HEIGHT + 24
        parts.append(f'<text class="end" x="{LEFT - 10}" y="{y + 13}">{escape(one.title)}</text>')
        for case in cases:
            kind = _kind(judge(case, one, results.get((case.name, one.name))))
            if kind:
                parts.append(
                    f'<rect class="{kind}" x="{places[case.name]:.1f}" y="{y}" width="{step - 1:.1f}" '
                    f'height="{HEIGHT - 4}"><title>{escape(case.name)}</title></rect>'
                )
    return "\n".join([*parts, "</svg>"])


def _kind(judged: Judged | None) -> str:
    if judged is None:
        return ""
    if judged.false_alarm:
        return "out"
    if judged.detected:
        return "in" if judged.culprit else "dot c5"
    return "zero"


def _svg(height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
