"""The style sheet of all pages: one palette, light and dark.

Lines have the colours of Okabe and Ito, which people with any kind of colour vision can tell apart. They are
darker here on white and lighter on black, so that each has a contrast of at least 3 to the page; text has at
least 4.5. No colour stands alone: lines have dashes and markers, verdicts are words.
"""

from __future__ import annotations

LINE_COLOURS = 6  # the first one is for the baseline
_LIGHT = {
    "ink": "#1b2127", "soft": "#535d67", "paper": "#ffffff", "line": "#d5dbe1", "shade": "#f2f5f7",
    "good": "#00664c", "bad": "#a83200", "mild": "#8a6100", "link": "#005a8f",
    "zero": "#e9ecef", "sub": "#fdf0cf", "normal": "#d9eef2", "over": "#fbdfd2",
    "in": "#0072b2", "out": "#c44a00", "part": "#b87a00",
    "c0": "#8b959e", "c1": "#0072b2", "c2": "#c44a00", "c3": "#00805d", "c4": "#b0568a", "c5": "#9a6a00",
}  # fmt: skip
_DARK = {
    "ink": "#e6eaee", "soft": "#a8b2bc", "paper": "#14181c", "line": "#3a434c", "shade": "#1f262c",
    "good": "#4fd1a5", "bad": "#ff9a6b", "mild": "#e6b84a", "link": "#7cc4f2",
    "zero": "#2c343b", "sub": "#40371c", "normal": "#17373f", "over": "#4a2717",
    "in": "#56b4e9", "out": "#ff8a4c", "part": "#e6b84a",
    "c0": "#77828c", "c1": "#56b4e9", "c2": "#ff8a4c", "c3": "#2fc79a", "c4": "#e29bc4", "c5": "#e6b84a",
}  # fmt: skip
_DASHES = ("", "", "7 3", "2 3", "9 3 2 3", "4 2")


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def _lines() -> str:
    rules = [
        f"svg .curve.c{i}{{stroke:var(--c{i});stroke-dasharray:{dash or 'none'}}}"
        f"svg .band.c{i},svg .dot.c{i}{{fill:var(--c{i})}}"
        for i, dash in enumerate(_DASHES)
    ]
    # The baseline is wide and lies below: a line that equals it runs inside of it.
    return "".join(rules) + "svg .curve.c0{stroke-width:5}"


DRAWING_STYLE = """
svg text{font:14px system-ui,sans-serif;fill:var(--ink)}svg .mono{font:14px ui-monospace,monospace}
svg .soft{fill:var(--soft)}svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .strong{font-weight:600}
svg .zero{fill:var(--zero)}svg .sub{fill:var(--sub)}svg .normal{fill:var(--normal)}svg .over{fill:var(--over)}
svg .in{fill:var(--in)}svg .out{fill:var(--out)}svg .part{fill:var(--part)}svg .rest{fill:var(--soft)}
svg line{stroke:var(--soft);stroke-width:1}svg line.grid{stroke:var(--line)}
svg line.limit{stroke:var(--bad);stroke-dasharray:4 3}svg line.change{stroke:var(--good);stroke-width:2}
svg line.undone{stroke:var(--bad);stroke-dasharray:4 3}svg .interval{stroke:var(--ink);stroke-width:1.5}
svg .curve{fill:none;stroke-width:2;stroke-linejoin:round}svg .dot{stroke:var(--paper);stroke-width:1}
svg .band{opacity:.16}svg .bar{stroke:var(--ink);fill:none}svg .point{fill:var(--ink)}
svg .seed{fill:var(--soft)}
svg .mark{fill:none;stroke-width:2}svg .mark.bad{stroke:var(--bad)}svg .mark.mild{stroke:var(--mild)}
svg .halo{stroke:var(--paper);stroke-width:5;fill:none;opacity:.75}svg .hole{fill:var(--paper)}
svg .crossed{stroke:var(--paper);stroke-width:1.5;fill:none}
"""
STYLE = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    """
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;margin:0 auto;max-width:58em;padding:1.6em 1.2em;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5em;line-height:1.25;margin:0 0 .3em;overflow-wrap:anywhere}
h2{font-size:1.15em;margin:2em 0 .5em}p{margin:.5em 0;overflow-wrap:break-word}
.made{color:var(--soft);font-size:.9em;margin:0 0 1.4em}
footer{border-top:1px solid var(--line);color:var(--soft);font-size:.9em;margin:3em 0 0;padding:.8em 0 0}
p.good{color:var(--good)}p.bad{color:var(--bad)}p.good,p.bad{font-weight:600}
code,pre{font:14px/1.5 ui-monospace,monospace;background:var(--shade);color:var(--ink);border-radius:4px}
code{padding:1px 4px;overflow-wrap:anywhere}
pre{padding:.8em 1em;white-space:pre-wrap;overflow-wrap:anywhere;margin:.8em 0}
li{margin:.2em 0;overflow-wrap:break-word}
figure{margin:1.2em 0}.scroll{overflow-x:auto;margin:1em 0}figure .scroll{margin:0}
.scroll{background:linear-gradient(90deg,var(--paper) 40%,transparent) 0 0/3em 100% no-repeat local,
linear-gradient(270deg,var(--paper) 40%,transparent) 100% 0/3em 100% no-repeat local,
linear-gradient(90deg,var(--soft),transparent) 0 0/.35em 100% no-repeat,
linear-gradient(270deg,var(--soft),transparent) 100% 0/.35em 100% no-repeat}
.scroll:focus-visible,a:focus-visible{outline:3px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);
font-weight:400}
thead th{font-weight:600;color:var(--soft);vertical-align:bottom}
td code,th code{white-space:nowrap}
code.long{display:inline-block;min-width:15em;white-space:normal}
tr.good td:nth-child(2){color:var(--good);font-weight:600}
tr.bad td:nth-child(2){color:var(--bad);font-weight:600}
figcaption{color:var(--soft);font-size:.9em;margin:.3em 0 0}a{color:var(--link)}
figure svg{display:block;width:100%;min-width:720px;height:auto}
@media (max-width:48em){body{padding:1em .9em}table.wide{min-width:46em}}
"""
    f"{DRAWING_STYLE}{_lines()}"
)
