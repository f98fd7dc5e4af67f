"""One run of the user's script, as data: what a process is asked to do, and what it answers.

A pass is a process of its own. It reads its plan from the parent, and writes its answer to a file, because
it leaves by ``os._exit``: neither an ``except`` nor a ``finally`` of the script can swallow or delay it.
What the parent knows if the process is interrupted is the last progress, written about twice a second.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from array import array
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import Field

from halfguard.records.audit import AuditFinding
from halfguard.records.autopsy import Culprit, ReplayTrial
from halfguard.records.base import FloatRecordPart, RecordPart

_INTERVAL = 0.5  # seconds between two reports


def leave(path: str, result: PassResult) -> NoReturn:
    """Write the answer and end the process."""
    temporary = Path(f"{path}.part")
    temporary.write_text(result.model_dump_json(), "utf-8")
    temporary.rename(path)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(0)


class ProgressFile:
    """Writes an unfinished answer beside the answer, at most every half second."""

    def __init__(self, answer: str) -> None:
        self._path = Path(f"{answer}.progress")
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        """True if the last report is half a second old."""
        return time.monotonic() >= self._due

    def write(self, result: PassResult) -> None:
        """Replace the last report."""
        self._due = time.monotonic() + _INTERVAL
        temporary = self._path.with_suffix(".part")
        temporary.write_text(result.model_dump_json(), "utf-8")
        temporary.rename(self._path)


def read_result(path: Path) -> PassResult | None:
    """Read an answer or a report; None if there is none."""
    try:
        return PassResult.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


Place = tuple[str, int]  # file and line
HALF_NAMES = ("float16", "bfloat16")  # dtypes of a culprit
PassKind = Literal["sense", "track", "judge", "inspect"]
EventKind = Literal["loss", "gradients", "scale", "parameters", "looked", "exception"]
# Where tracking begins: at the end of the backward pass before the event, at the first call of a module,
# or with the first line of the script.
TrialKind = Literal[
    "fp32", "bf16", "composition", "stable", "statement", "slice", "function", "island", "scale"
]
MisuseKind = Literal[
    "clipped",  # gradients that are still scaled
    "schedule",  # it moves on while steps are skipped
    "not scaled",  # a loss, whose gradients the scaler divides
    "other scaler",  # has scaled the loss
    "penalty",  # made of scaled gradients
    "scaler off",  # there is no such device
    "hidden error",  # of the scaler
    "not zeroed",  # gradients add up over steps
    "no scaler",  # FP16 gradients that are too small
    "rounded integers",
    "lost updates",  # of half weights
    "bad buffer",
    "swallowed",  # overflow that became a finite number
]
Start = Literal["event", "first module", "script"]
# "late": its time was over; "interrupted": by Ctrl-C
Ended = Literal["event", "finished", "exited", "crashed", "steps", "interrupted", "late", "died"]


class Target(RecordPart):
    """The user's program: a file, or a module as for ``python -m``, and its arguments."""

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join((*(("-m",) if self.is_module else ()), self.name, *self.arguments))


class Event(FloatRecordPart):
    """The first bad number that a sensor saw. Backward passes and optimizer steps are counted from 0."""

    kind: EventKind
    backward: int = Field(description="finished backward passes before the one that is concerned")
    step: int = Field(description="optimizer steps before it")
    how: str = Field(description="where it was seen, in a few words")
    loss: float = math.nan
    scale: float = 1.0


class TrialPlan(RecordPart):
    """A change under which the bad step is run again."""

    name: str
    kind: TrialKind
    place: Place | None = None
    module: str = ""
    scale: float | None = None


class PassPlan(FloatRecordPart):
    """What one process is asked to do."""

    kind: PassKind
    target: Target
    folder: str = Field(description="working folder of the script")
    base: str = Field(description="folder where the paths of a patch begin")
    answer: str = Field(description="file for the answer")
    losses: str = Field(description="file of the losses; the first pass writes it")
    steps: int | None = None
    every_step: bool = Field(
        default=False,
        description="look at all parameters before each backward pass and after each step",
    )
    event: Event | None = None
    trial: TrialPlan | None = Field(default=None, description="of a pass that runs one trial")
    start: Start = "event"
    alone: bool = Field(default=False, description="loaders have no worker processes")
    inspect: tuple[int, ...] = Field(default=(), description="backward passes to look at")
    patched: bool = Field(default=False, description="the script is patched, to see if it trains")
    emulate: bool = False
    isolated: tuple[str, ...] = Field(default=(), description="folders that may be written to")
    originals: tuple[str, ...] = Field(default=(), description="the folders that were copied")
    links: str = Field(default="", description="file that lists links to large files")
    incident: str = Field(default="", description="folder for an incident of the bad step")


class ScalerFacts(FloatRecordPart):
    """The loss scale over a run."""

    used: bool = False
    skips: int = 0
    first: float = math.nan
    last: float = math.nan


class Headroom(FloatRecordPart):
    """The half tensor that came closest to the end of its range."""

    largest: float
    limit: float
    op: str
    file: str
    line: int


class SubmodulePlace(RecordPart):
    """A line that made a module, and the path from there to another one inside of it."""

    place: Place
    path: str


class Made(FloatRecordPart):
    """Lines of the user's own files that made what a cure may have to change; None if unknown."""

    optimizer: Place | None = None
    optimizer_callers: tuple[Place, ...] = Field(
        default=(), description="lines that led to the one that made it, innermost first"
    )
    optimizer_class: str = Field(default="", description="of the optimizer that stepped")
    eps: float | None = Field(
        default=None, description="the smallest of that optimizer, if it has one"
    )
    fused: bool = Field(default=False, description="the optimizer skips steps by itself")
    stepped_by_scaler: bool = Field(default=False, description="of the same optimizer, before")
    half_weights: Place | None = Field(default=None, description="its weights became half here")
    half_callers: tuple[Place, ...] = Field(
        default=(), description="lines that led to that one, innermost first"
    )
    half_dtype: str = Field(default="", description="of those weights, if they have one in common")
    half_module: Place | None = Field(
        default=None, description="weights that no optimizer holds became half here"
    )
    scaler: Place | None = None
    scaling: Place | None = Field(default=None, description="a call of scaler.scale")
    autocast: Place | None = Field(default=None, description="an FP16 region")
    autocast_device: str = Field(default="", description="of that region")
    copied: Place | None = Field(
        default=None, description="a model was copied here, after the optimizer was made"
    )
    raw_step: Place | None = Field(default=None, description="a step on scaled gradients")
    not_updated: int = Field(default=0, description="scaled backward passes since scaler.update()")
    hides: Place | None = Field(default=None, description="it made bad numbers finite")
    modules: tuple[SubmodulePlace, ...] = Field(
        default=(), description="of the culprit's module, and those around it"
    )


class Misused(FloatRecordPart):
    """A use of torch that trains wrongly, although no number is bad."""

    kind: MisuseKind
    sentence: str
    place: Place | None = Field(default=None, description="the line at fault")
    by: Place | None = Field(default=None, description="a line that shows it, such as the step")
    error: str = Field(default="", description="an exception that the script has hidden")
    scale: float = Field(default=1.0, description="a loss scale that would do")
    backward: int = Field(default=0, description="finished backward passes before it was seen")
    norms: tuple[float, ...] = Field(default=(), description="of the gradients there")
    sizes: tuple[int, ...] = Field(default=(), description="elements of the gradients there")
    dtype: str = Field(default="", description="of the half weights or buffers")


class TrialResult(FloatRecordPart):
    """The bad step under one change; ``stable`` has the operations of ``halfguard.ops`` that ran."""

    plan: TrialPlan
    trial: ReplayTrial
    stable: tuple[str, ...] = ()
    scaled: bool = Field(default=False, description="a scaler scaled the loss")
    limits: bool = Field(default=False, description="a stable operation limits its result")
    rewrite: str = Field(default="", description="what to write for a composition, and where")
    patch: str = Field(default="", description="the change as a unified diff, if it is certain")
    gradients: str = Field(default="", description="file with the gradients, unscaled")


class PassResult(FloatRecordPart):
    """What one process found."""

    ended: Ended = "died"
    error: str = ""
    event: Event | None = None
    backward: int = 0
    steps: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    scaler: ScalerFacts = ScalerFacts()
    raw_step: Place | None = Field(
        default=None, description="a line that stepped on scaled gradients"
    )
    misuse: tuple[Misused, ...] = ()
    workers: bool = Field(default=False, description="a loader has worker processes")
    spawns: bool = Field(default=False, description="it started ranks by itself")
    autocast_off: str = Field(default="", description="a device whose autocast torch switched off")
    outside: tuple[str, ...] = Field(default=(), description="effects outside the copied folder")
    files: tuple[str, ...] = Field(default=(), description="source files of the user that ran")
    # of the second pass
    culprit: Culprit | None = None
    mask: Culprit | None = Field(default=None, description="a constant infinity among the inputs")
    made: Made = Made()
    way: tuple[str, ...] = ()
    exact: float = Field(
        default=math.nan,
        description="largest result of the operation in FP64 on the same inputs; inf: not finite there",
    )
    differs_at: int | None = Field(default=None, description="first loss that was not repeated")
    bad_before: bool = Field(default=False, description="parameters were bad before the step")
    trials: tuple[TrialResult, ...] = ()
    autocast: str = Field(default="", description="the 16-bit dtype of autocast in the bad step")
    incident: str = ""
    rank: int = 0
    # of the inspection of a good run
    headroom: Headroom | None = None
    swallowed: tuple[AuditFinding, ...] = ()
    inspected: int = 0


def write_losses(path: str, losses: list[float]) -> None:
    """Write the losses bit by bit."""
    Path(path).write_bytes(array("d", losses).tobytes())


def read_losses(path: str) -> list[float]:
    """Read what ``write_losses`` wrote; empty if there is nothing."""
    try:
        values = array("d")
        values.frombytes(Path(path).read_bytes())
        return list(values)
    except (OSError, ValueError):
        return []


def first_difference(losses: list[float], before: list[float]) -> int | None:
    """Return the first loss that is not the same bit by bit, or None; NaN equals NaN."""
    for index, (now, then) in enumerate(zip(losses, before, strict=False)):
        if now != then and not (math.isnan(now) and math.isnan(then)):
            return index
    return None
