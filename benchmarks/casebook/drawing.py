"""Drawings of the scoreboard, with the style sheet of all reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.casebook.cases import Case
from benchmarks.casebook.instruments import INSTRUMENTS
from benchmarks.casebook.scoring import Judged, Results, Row, judge
from halfguard.report.svg import WIDTH, Key, draw_legend, shape_at, svg_start

LEFT, ROW = 236, 24
PANELS = ("0", "1234", "9")  # families that are drawn side by side
FAMILIES = {
    "0": "plain loops",
    "1": "Lightning",
    "2": "Trainer",
    "3": "Accelerate",
    "4": "TRL, peft",
    "9": "healthy",
}
DOT = "M-1.8 0a1.8 1.8 0 1 0 3.6 0a1.8 1.8 0 1 0-3.6 0z"


def _swatch(style: str) -> str:
    """Return the sample of an area; ``style`` is an attribute such as ``class="in"``."""
    return f'<rect {style} x="2" y="-7" width="16" height="13"/>'


def draw_detection(rows: list[Row]) -> str:
    """Draw the share of detected cases of every row, with its interval."""
    keys = [
        Key(_swatch('class="in" rx="2"'), "halfguard"),
        Key(_swatch('class="rest" rx="2"'), "others"),
        Key('<line class="interval" x1="0" x2="20" y1="0" y2="0"/>', "95% interval"),
    ]
    legend, above = draw_legend(keys, 0)
    about = "; ".join(f"{row.title}: {row.detected}" for row in rows)
    return "\n".join(
        [
            svg_start(above + len(rows) * ROW + 50, "Share of failing programs detected", about),
            *legend,
            f'<g transform="translate(0 {above:.0f})">',
            *_detection_axis(len(rows) * ROW + 6),
            *(piece for number, row in enumerate(rows) for piece in _bar(row, number * ROW + 6)),
            "</g></svg>",
        ]
    )


SCALE = WIDTH - LEFT - 100  # width of 100%


def _detection_axis(bottom: int) -> Iterator[str]:
    for tick in range(0, 101, 20):
        x = LEFT + SCALE * tick / 100
        yield f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="4" y2="{bottom}"/>'
        yield f'<text class="soft mid" x="{x:.0f}" y="{bottom + 18}">{tick}%</text>'
    middle = LEFT + SCALE / 2
    yield f'<text class="soft mid" x="{middle:.0f}" y="{bottom + 38}">programs detected</text>'


def _bar(row: Row, y: int) -> Iterator[str]:
    rate = row.detected
    low, high = (LEFT + SCALE * end for end in rate.interval)
    width = SCALE * rate.hits / rate.total if rate.total else 0
    kind, middle = "in" if row.ours else "rest", y + 9.5
    yield f'<text class="end" x="{LEFT - 10}" y="{y + 14}">{escape(row.title)}</text>'
    yield f'<rect class="{kind}" x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="13" rx="2"/>'
    yield f'<path class="halo" d="M{low:.1f} {middle}H{high:.1f}"/>'
    yield f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    yield f'<text class="soft" x="{LEFT + SCALE + 12}" y="{y + 14}">{rate.hits} of {rate.total}</text>'


def draw_cases(cases: list[Case], results: Results) -> str:
    """Draw every case under every instrument as a cell, by families, in several panels."""
    keys = [
        Key(_sample("culprit"), "culprit's line named"),
        Key(_sample("detected"), "detected"),
        Key(_sample("silent"), "silent"),
        Key(_sample("false alarm"), "false alarm"),
    ]
    legend, above = draw_legend(keys, 0)
    panels = [[case for case in cases if case.name[0] in families] for families in PANELS]
    panels = [panel for panel in panels if panel]
    width = (WIDTH - LEFT - 8 * len(FAMILIES)) / max(map(len, panels), default=1)
    height = len(INSTRUMENTS) * ROW + 34
    about = f"{len(cases)} cases under {len(INSTRUMENTS)} instruments; the tables below have the counts."
    parts = [svg_start(above + len(panels) * height, "Every case under every instrument", about)]
    parts += legend
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {above + number * height:.0f})">')
        parts += _panel(panel, results, min(width, 12.0))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"])


def _panel(cases: Sequence[Case], results: Results, step: float) -> Iterator[str]:
    gap = 8.0
    places, x, last = {}, LEFT - gap, ""
    for case in cases:
        if case.name[0] != last:
            x, last = x + gap, case.name[0]
            yield f'<text class="soft" x="{x:.0f}" y="20">{FAMILIES[last]}</text>'
        places[case.name] = x
        x += step
    for number, one in enumerate(INSTRUMENTS):
        y = number * ROW + 28
        yield f'<text class="end" x="{LEFT - 10}" y="{y + 15}">{escape(one.title)}</text>'
        for case in cases:
            kind = _kind(judge(case, one, results.get((case.name, one.name))))
            if kind:
                yield _cell(kind, places[case.name], y, step, case.name)


_STYLES = {"culprit": "in", "detected": "part", "silent": "zero", "false alarm": "out"}


def _cell(kind: str, x: float, y: float, width: float, name: str) -> str:
    """Return a cell; a shape tells it apart without its colour."""
    body = (
        f'<rect class="{_STYLES[kind]}" x="{x:.1f}" y="{y}" width="{width - 1:.1f}" height="{ROW - 4}">'
        f"<title>{escape(name)}: {kind}</title></rect>"
    )
    return body + _shape(kind, x + (width - 1) / 2, y + (ROW - 4) / 2)


def _shape(kind: str, x: float, y: float) -> str:
    if kind == "culprit":
        return shape_at(DOT, x, y, "hole")
    return shape_at("M-2-3L2 3M2-3L-2 3", x, y, "crossed") if kind == "false alarm" else ""


def _sample(kind: str) -> str:
    return _swatch(f'class="{_STYLES[kind]}"') + _shape(kind, 10, 0)


def _kind(judged: Judged | None) -> str:
    if judged is None:
        return ""
    if judged.false_alarm:
        return "false alarm"
    if judged.detected:
        return "culprit" if judged.culprit else "detected"
    return "silent"
