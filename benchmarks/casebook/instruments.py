"""The instruments on the scoreboard: whose they are, when they speak, and what they apply to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.casebook import commands
from benchmarks.casebook.cases import Case
from benchmarks.casebook.results import Ran

OnSource = Callable[[list[Path]], list[Ran]]


@dataclass(frozen=True)
class Instrument:
    """One row of the scoreboard.

    ``on_source`` reads programs. An instrument without it lives in the program's process; ``why`` runs the
    program in processes of its own.
    """

    name: str
    title: str
    moment: str
    ours: bool
    on_source: OnSource | None = None

    @property
    def inside(self) -> bool:
        return self.on_source is None

    def unavailable(self) -> str:
        missing = self.name == "torchfix" and shutil.which("torchfix") is None
        return (
            "torchfix is not installed: pip install torchfix, in any environment on PATH"
            if missing
            else ""
        )

    def reason_against(self, case: Case) -> str:
        """Return why the instrument says nothing about a case by its nature; empty if it applies."""
        if self.inside and self.name != "bare" and case.ranks:
            return "the program starts its ranks itself, and the instrument sees the first process only"
        if self.name == "anomaly" and "lightning" in case.packages:
            return "Lightning's Trainer switches it off; its own option is the row below"
        text = case.programs[0].read_text("utf-8")
        if self.name == "lightning_anomaly" and "lightning" not in case.packages:
            return "no Lightning Trainer"
        if self.name == "guard" and "GradScaler" not in text:
            return "no GradScaler that the guard could take the place of"
        return ""


INSTRUMENTS = [
    Instrument("lint", "halfguard lint", "source", ours=True, on_source=commands.lint),
    Instrument("doctor", "hg.doctor at the first step", "start-up", ours=True),
    Instrument("guard", "hg.GuardScaler for GradScaler", "run", ours=True),
    Instrument("why", "halfguard why", "run", ours=True),
    Instrument("bare", "the program itself", "run", ours=False),
    Instrument("torchfix", "TorchFix", "source", ours=False, on_source=commands.torchfix),
    Instrument("anomaly", "torch.autograd.detect_anomaly", "run", ours=False),
    Instrument("debug_underflow_overflow", "DebugUnderflowOverflow", "run", ours=False),
    Instrument("lightning_anomaly", "Lightning, detect_anomaly=True", "run", ours=False),
]  # fmt: skip
BY_NAME = {one.name: one for one in INSTRUMENTS}
