"""Make the tables of the five example systems from the verdicts of their studies.

examples/*/verdict.json and verdict_cured.json are what `halfguard validate` wrote for study.yaml and
study_cured.yaml; benchmarks/results/systems.json is what `scripts/bench systems --out FILE` wrote.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from benchmarks.tables.sections import ROOT, markdown_table, update_sections
from halfguard.records.study import Comparison, TrainingStats, Verdict

PRICES = ROOT / "benchmarks" / "results" / "systems.json"
PLACES = {
    "system": (ROOT / "docs" / "explanation" / "results.md", "studies_table"),
    "candidate": (ROOT / "examples" / "README.md", "studies_table"),
}


@dataclass(frozen=True)
class System:
    """An example with a study: what its team was told about FP16, and the candidate to recommend."""

    folder: str
    claim: str
    recommended: str = "fp16-mixed healed"

    def verdict(self, name: str = "verdict") -> Verdict:
        """Read the verdict on the broken job, or ``verdict_cured`` on the job after the change."""
        file = ROOT / "examples" / self.folder / f"{name}.json"
        return Verdict.from_json(file.read_bytes())


SYSTEMS = (
    System("accuracy_conditioning", "GELU and clamps fix the overflow, quality is kept"),
    System("mmgcn", "an epsilon of 1e-8 fixes NaN; 1.5 to 2 times as fast, 40 to 50% less memory"),
    System(
        "sar_distillation",
        "clamps and low learning rates fix NaN; 90% of steps succeed, under 2 GB",
    ),
    System("audio_lora", "FP16 weights without a scaler: same performance, speed and memory"),
    System("dbnet_ocr", "clipping and accumulation: below 1%; 15 to 20% faster, 30% less memory"),
)


def percent(value: float) -> str:
    text = f"{value:.2%}"
    return "0.00%" if text == "-0.00%" else text


def verdict_cell(one: Comparison) -> str:
    return f"**{one.word}**"


def loss_cell(one: Comparison) -> str:
    """Return the loss and its interval, or the number of seeds that broke."""
    if one.broken:
        return f"no number with {len(one.broken)} of {one.pairs + len(one.broken)} seeds"
    return f"{percent(one.loss)} ({percent(one.low)} to {percent(one.high)})"


def share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def stats_cells(stats: TrainingStats) -> list[str]:
    """Return the shares of steps that were lost and repeated, the speed and the memory."""
    speed = "" if stats.speed is None else f"{stats.speed:.2f}"
    memory = "" if stats.memory is None else f"{stats.memory:.0%}"
    return [share(stats.skipped, stats.steps), share(stats.retried, stats.steps), speed, memory]


def metric_cell(verdict: Verdict) -> str:
    means = [one.baseline_mean for one in verdict.comparisons if not math.isnan(one.baseline_mean)]
    return f"{verdict.metric} {means[0]:.4g}" if means else verdict.metric


def rows_of(system: System) -> list[list[str]]:
    """Return one row for each candidate; the first names the system."""
    rows = []
    for name, what in (("verdict", ""), ("verdict_cured", ", fixed job")):
        verdict = system.verdict(name)
        stats = {one.candidate: one for one in verdict.efforts}
        for index, one in enumerate(verdict.comparisons):
            head = ["", metric_cell(verdict) if index == 0 else ""]
            cells = [f"`{one.candidate}`{what}", verdict_cell(one), loss_cell(one)]
            rows.append([*head, *cells, *stats_cells(stats[one.candidate])])
    rows[0][0] = f"[{system.folder}]({system.folder}/README.md)"
    return rows


def row_of(system: System) -> list[str]:
    verdict = system.verdict()
    named = {one.candidate: one for one in verdict.comparisons}
    stats = {one.candidate: one for one in verdict.efforts}
    bare, chosen = named["fp16-mixed"], named[system.recommended]
    link = f"[{system.folder}](../../examples/{system.folder}/README.md)"
    lost = stats[bare.candidate]
    before = f"{verdict_cell(bare)}, {share(lost.skipped, lost.steps)} of steps lost"
    after = f"{verdict_cell(chosen)} {loss_cell(chosen)}"
    repeated = share(stats[chosen.candidate].retried, stats[chosen.candidate].steps)
    return [link, system.claim, before, after, repeated, *price_cells(system.folder)]


def price_cells(folder: str) -> list[str]:
    """Return the time of guarded and healed steps in steps of plain FP16, and memory in steps of FP32."""
    price = json.loads(PRICES.read_text("utf-8"))[folder]
    memory = [f"{price[f'memory {kind}']:.0%}" for kind in ("bare", "healed", "repeated")]
    return [f"{price['time guarded']:.2f}, {price['time healed']:.2f}", ", ".join(memory)]


def table(kind: str) -> str:
    if kind == "system":
        head = ["system", "advice its team received", "plain FP16", "FP16 healed: degradation"]
        head += ["repeated in FP32", "time: guarded, healed", "memory: plain, healed, repeated"]
        rows = [row_of(system) for system in SYSTEMS]
    else:
        head = ["system", "in FP32", "candidate", "verdict", "degradation, 95% interval"]
        head += ["steps lost", "repeated in FP32", "speed", "memory"]
        rows = [row for system in SYSTEMS for row in rows_of(system)]
    return markdown_table(head, rows)


def update(*, check: bool) -> list[str]:
    """Write both tables, or return which pages show other numbers."""
    return update_sections({place: table(kind) for kind, place in PLACES.items()}, check=check)
