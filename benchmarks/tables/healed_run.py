"""Train a model with torch.amp and with a guard that heals it twice, and draw both runs.

The picture is docs/how-to/healed-run.svg, which README.md and heal-a-run.md show.
"""

from __future__ import annotations

import math
import re
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

import halfguard as hg
from benchmarks.tables.sections import ROOT
from halfguard.journal.run_folder import read_run
from halfguard.records import write_atomically

PICTURE = ROOT / "docs" / "how-to" / "healed-run.svg"
STEPS, SECOND, LOUD = 320, 140, 500.0  # the second fault begins at its step; loud is so much louder
SCALE, WRONG = 1024.0, 0.01  # of the loss: further from FP32's than this is wrong
# Of the picture, and of the panels in it: narrow, so that a phone shows the text in its own size.
WIDTH, LEFT, RIGHT, MARGIN, TOPS, HEIGHT = 460, 56, 440, 20, (162, 322, 482), 84
KINDS = ("bad", "good")  # the classes of torch.amp's run and of the guard's
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# The paper is drawn too: the colours follow the reader's system, which may differ from the page around them.
STYLE = """
svg{--ink:#1f2328;--soft:#59636e;--paper:#fff;--line:#d1d9e0;--good:#1a7f37;--bad:#c2410c}
@media (prefers-color-scheme:dark){svg{--ink:#f0f6fc;--soft:#9ea7b3;--paper:#0d1117;--line:#3d444d;
--good:#3fb950;--bad:#ff9d66}}
text{font:15px -apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--ink)}
.title{font-size:19px;font-weight:600}.head{font-weight:600}.soft{fill:var(--soft);font-size:14px}.end{text-anchor:end}
.mid{text-anchor:middle}.paper{fill:var(--paper);stroke:var(--line)}.grid{stroke:var(--line)}
.curve{fill:none;stroke-width:2.5;stroke-linejoin:round}
.change{fill:none;stroke:var(--ink);stroke-dasharray:2 4}
.thin{stroke-width:1.5}.good{stroke:var(--good)}.bad{stroke:var(--bad)}
text.good,text.bad{stroke:none;font-weight:600}
text.good{fill:var(--good)}text.bad{fill:var(--bad)}
.badge{fill:var(--ink)}.number{fill:var(--paper);font-weight:600;text-anchor:middle}
"""

Batch = tuple[Tensor, Tensor]


class Energy(nn.Module):
    """Overflows for loud samples, and inf / inf is NaN: such a step is repeated in FP32."""

    def forward(self, x: Tensor) -> Tensor:
        squares = (x * x).sum(-1, keepdim=True)
        return x * squares / (squares + 1)


class RMSNorm(nn.Module):
    """Overflows for loud samples, and x / inf is 0: nobody notices but the watch."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Net(nn.Module):
    """Two branches, each with a fault of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 16)
        self.energy, self.rms = Energy(), RMSNorm()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        branches = [self.norm(self.energy(self.first(one))), self.rms(self.second(other))]
        output: Tensor = self.head(torch.cat(branches, -1))
        return output


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy."""
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


@dataclass(frozen=True)
class Run:
    """Each step of a run: was the batch lost or computed twice, the loss scale, and the error of the loss."""

    bad: list[bool]
    scale: list[float]
    error: list[float]

    @property
    def wrong(self) -> int:
        return sum(error > WRONG for error in self.error)

    @property
    def bad_so_far(self) -> list[int]:
        return list(accumulate(self.bad, lambda total, bad: total + bad, initial=0))[1:]


@dataclass(frozen=True)
class Healing:
    """A module that runs in FP32 from a step on, and what the journal says about it."""

    step: int
    module: str
    text: str

    def number(self, pattern: str) -> str:
        found = re.search(pattern, self.text)
        if found is None:
            raise ValueError(f"the journal no longer tells {pattern!r}: {self.text}")
        return found[1]


def make_batches() -> Iterator[Batch]:
    """Yield the batches of both runs: loud ones for the first branch, and later for the second one."""
    generator = torch.Generator().manual_seed(0)
    for index in range(STEPS):
        x = torch.randn(32, 16, generator=generator)
        y = (x[:, :4] + x[:, 8:12]).argmax(1)
        if index % 8 == 7:
            x[:8, :8] *= LOUD
        if index % 4 == 1 and index > SECOND:
            x[:8, 8:] *= LOUD
        yield x, y


def fp32_loss(model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return loss_fn(model, batch).item()


def train_bare() -> Run:
    """Train with torch's autocast and GradScaler."""
    torch.manual_seed(0)
    model, run = Net(), Run([], [], [])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=100)
    for batch in make_batches():
        exact = fp32_loss(model, batch)
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        run.bad.append(scaler.get_scale() < before)
        run.scale.append(scaler.get_scale())
        run.error.append(abs(loss.item() / exact - 1))  # NaN if the batch is lost
    return run


def train_guarded(folder: Path) -> tuple[Run, list[Healing]]:
    """Train with the guard; its journal goes to ``folder``."""
    torch.manual_seed(0)
    model, run = Net(), Run([], [], [])
    config = {
        "skip": {"on_nonfinite": "retry_fp32"},
        "heal": {},
        "watch": {"every": 10},
        "incidents": None,
        "scale": {"init": SCALE, "growth_interval": 100},
    }
    guard = hg.Guard(model, torch.optim.AdamW(model.parameters(), lr=2e-3), config, run_dir=folder)
    for batch in make_batches():
        exact, outcome = fp32_loss(model, batch), guard.step(loss_fn, batch)
        run.bad.append(outcome.action != "apply")
        run.scale.append(guard.scaler.get_scale())
        run.error.append(abs(float(outcome.loss) / exact - 1))
    guard.close()
    timeline = read_run(folder).timeline
    healings = [Healing(row.step, row.module or "", row.text) for row in timeline.healings]
    warnings = [w for row in timeline.watched.values() for w in row.warnings]
    told = {w.module: w.text for w in warnings if w.warning == "swallowed"}
    return run, [Healing(h.step, h.module, h.text + told.get(h.module, "")) for h in healings]


def across(step: float) -> float:
    return LEFT + (RIGHT - LEFT) * step / STEPS


def write(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'


@dataclass(frozen=True)
class Panel:
    """Curves over the steps; above them a heading, and how each run ended."""

    title: str
    top: int
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def down(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.top + HEIGHT * (1 - min(1.0, max(0.0, share)))

    def frame(self) -> list[str]:
        parts = [write(MARGIN, self.top - 34, self.title, "head")]
        for value, text in self.ticks:
            y = f"{self.down(value):.0f}"
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(write(LEFT - 8, self.down(value) + 5, text, "soft end"))
        return parts

    def ends(self, texts: Sequence[str]) -> list[str]:
        places = (MARGIN, WIDTH // 2)
        named = zip(places, texts, KINDS, strict=True)
        return [write(x, self.top - 12, text, kind) for x, text, kind in named]

    def curve(self, values: Sequence[float], kind: str) -> str:
        """Draw a curve in stairs: a value holds until the next one."""
        path, last = f"M{LEFT} {self.down(values[0]):.0f}", len(values) - 1
        for index, value in enumerate(values):
            if index == last or value != values[index - 1]:
                path += f"H{across(index + 1):.0f}V{self.down(value):.0f}"
        return f'<path class="curve {kind}" d="{path}"/>'

    def bars(self, values: Sequence[float], kind: str, *, above: float) -> str:
        """Draw a bar for each value above a bound, beside the one of the other run."""
        bottom, beside = self.top + HEIGHT, 1.5 * (KINDS.index(kind) - 0.5)
        path = "".join(
            f"M{across(index + 1) + beside:.1f} {bottom}V{self.down(value):.0f}"
            for index, value in enumerate(values)
            if value > above
        )
        return f'<path class="curve thin {kind}" d="{path}"/>'


def draw(bare: Run, guarded: Run, healings: Sequence[Healing]) -> str:
    """Return the picture."""
    runs = (bare, guarded)
    title = "One model in FP16, with and without halfguard"
    about = (
        f"The same {STEPS} batches. Every eighth one overflows;",
        f"from step {SECOND} on, a second fault is silent.",
    )
    parts = [write(MARGIN, 38, title, "title")]
    parts += [write(MARGIN, 64 + 20 * row, text, "soft") for row, text in enumerate(about)]
    parts += [*draw_bad(runs), *draw_scales(runs), *draw_errors(runs)]
    under = TOPS[-1] + HEIGHT + 22
    parts += [write(across(step), under, str(step), "soft mid") for step in range(0, STEPS, 80)]
    parts += [write(RIGHT, under, "step", "soft end")]
    parts += [mark(number, healing.step) for number, healing in enumerate(healings, 1)]
    notes = list(explain(healings))
    return framed([*parts, *notes], under + 32 + 20 * len(notes), f"{title}. {' '.join(about)}")


def draw_bad(runs: Sequence[Run]) -> list[str]:
    totals = [run.bad_so_far for run in runs]
    high = 10 * math.ceil(max(map(max, totals)) / 10)
    ticks = [(0, "0"), (high, str(high))]
    panel = Panel("Batches lost, or computed twice, so far", TOPS[0], 0, high, ticks)
    curves = [panel.curve(total, kind) for total, kind in zip(totals, KINDS, strict=True)]
    texts = (f"torch.amp: {totals[0][-1]} lost", f"halfguard: {totals[1][-1]} repeated")
    return [*panel.frame(), *panel.ends(texts), *curves]


def draw_scales(runs: Sequence[Run]) -> list[str]:
    powers = [[math.log2(scale) for scale in run.scale] for run in runs]
    low = 10 * math.floor(min(map(min, powers)) / 10)
    ticks = [(low, f"2{str(low).translate(RAISED)}"), (0, "1"), (10, "1024")]
    panel = Panel("Loss scale", TOPS[1], low, 14, ticks)
    curves = [panel.curve(power, kind) for power, kind in zip(powers, KINDS, strict=True)]
    texts = (
        f"torch.amp: 1e{math.log10(runs[0].scale[-1]):.0f}",
        f"halfguard: {runs[1].scale[-1]:g}",
    )
    return [*panel.frame(), *panel.ends(texts), *curves]


def draw_errors(runs: Sequence[Run]) -> list[str]:
    high = 0.2 * math.ceil(max(e for run in runs for e in run.error if math.isfinite(e)) / 0.2)
    ticks = [(0, "0%"), (high, f"{high:.0%}")]
    panel = Panel("Loss of a step against FP32: finite, but wrong", TOPS[2], 0, high, ticks)
    bars = [panel.bars(run.error, kind, above=WRONG) for run, kind in zip(runs, KINDS, strict=True)]
    texts = (f"torch.amp: {runs[0].wrong} wrong", f"halfguard: {runs[1].wrong} wrong")
    return [*panel.frame(), *panel.ends(texts), *bars]


def mark(number: int, step: int) -> str:
    x, y = f"{across(step + 1):.0f}", TOPS[-1] + HEIGHT + 16
    lines = "".join(f"M{x} {top}V{top + HEIGHT}" for top in TOPS)
    line, badge = (
        f'<path class="change" d="{lines}"/>',
        f'<circle class="badge" cx="{x}" cy="{y}" r="11"/>',
    )
    return f'{line}{badge}<text class="number" x="{x}" y="{y + 5}">{number}</text>'


def explain(healings: Sequence[Healing]) -> Iterator[str]:
    """Yield what happened at each healing, with the numbers of the journal."""
    first, second = healings
    within = r"within ([\d.]+%) of those in FP32"
    loss = second.number(r"the loss by ([0-9.]+%)")
    notes = [
        (
            f"1  Step {first.step}: {first.module} overflowed for the third time. It runs in FP32 from "
            f"here on; gradients are within {first.number(within)} of FP32."
        ),
        (
            f"2  Step {second.step}: Inf in {second.module} became 0, and the loss was off by {loss}. It "
            f"runs in FP32 from here on; gradients are within {second.number(within)} of FP32."
        ),
    ]
    lines = [line for note in notes for line in textwrap.wrap(note, 60, subsequent_indent="    ")]
    top = TOPS[-1] + HEIGHT + 60
    for index, line in enumerate(lines):
        indent = 16 if line.startswith(" ") else 0
        yield write(MARGIN + indent, top + 20 * index, line.strip(), "soft")


def framed(parts: Sequence[str], height: int, label: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    )
    paper = f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([f"{head}<style>{STYLE}</style>", paper, *parts, "</svg>"]) + "\n"


def same(one: str, other: str, *, pixels: float = 2.0) -> bool:
    """Return whether two pictures differ by nothing but rounding, as between processors."""
    number = re.compile(r"(?<![\w#])\d+(?:\.\d+)?")
    if number.sub("", one) != number.sub("", other):
        return False
    pairs = zip(number.findall(one), number.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= pixels for a, b in pairs)


def remade() -> str:
    """Train both runs and return their picture."""
    with tempfile.TemporaryDirectory() as folder:
        return draw(train_bare(), *train_guarded(Path(folder)))


def update(*, check: bool) -> list[str]:
    """Draw the picture, or compare it with what the runs give today."""
    made = remade()
    if not check:
        write_atomically(PICTURE, made)
    elif not same(made, PICTURE.read_text("utf-8")):
        return [f"{PICTURE.name} shows other runs, or is drawn otherwise"]
    return []
