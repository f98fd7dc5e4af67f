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
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn

from halfguard.records.audit import AuditFinding
from halfguard.records.autopsy import Culprit, ReplayTrial
from halfguard.records.base import FloatRecordPart, RecordPart


def write_result(path: str, result: PassResult) -> None:
    """Write an answer or a report, at once."""
    temporary = Path(f"{path}.part")
    temporary.write_text(result.model_dump_json(), "utf-8")
    temporary.rename(path)


def leave(path: str, result: PassResult) -> NoReturn:
    """Write the answer and end the process."""
    write_result(path, result)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def write_progress(answer: str, result: PassResult) -> None:
    """Write an unfinished answer beside the answer, in place of the last one."""
    write_result(f"{answer}.progress", result)


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
    "fp32", "bf16", "composition", "stable", "statement", "slice", "function", "island", "scale",
    "unchanged",
]  # fmt: skip
MisuseKind = Literal[
    "clipped",  # gradients that are still scaled
    "unscaled early",  # gradients, before the last micro-batch of a step
    "schedule",  # it moves on while steps are skipped
    "not scaled",  # a loss, whose gradients the scaler divides
    "other scaler",  # has scaled the loss
    "penalty",  # made of scaled gradients
    "new scaler",  # in every step
    "raw step",  # without the scaler, on scaled gradients
    "second step",  # besides that of the scaler
    "scaler off",  # there is no such device
    "hidden error",  # of torch, that the script has caught
    "not zeroed",  # gradients add up over steps
    "stale casts",  # of weights, in one region of autocast
    "divided twice",  # a loss
    "half moments",  # of an optimizer, that were loaded
    "no scaler",  # FP16 gradients that are too small
    "rounded integers",
    "lost updates",  # of half weights
    "lost increments",  # of other half tensors
    "bad buffer",
    "swallowed",  # overflow that became a finite number
    "zero gradients",  # in every backward pass
    "lost digits",  # more than rounding must cost
    "too fast",  # a learning rate
    "worse than FP32",  # at its end, for a reason without a name
]
Few = Literal["", "none", "one"]
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
    backward: int  # finished backward passes before the one that is concerned
    step: int  # optimizer steps before it
    how: str  # where it was seen, in a few words
    loss: float = math.nan
    scale: float = 1.0
    place: Place | None = None  # the line that ran, such as that of a backward pass


class TrialPlan(RecordPart):
    """A change under which the bad step is run again."""

    name: str
    kind: TrialKind
    places: tuple[Place, ...] = ()
    module: str = ""
    scale: float | None = None
    narrow: bool = False  # an expression that is rewritten in FP32 has a 16-bit result


class PassPlan(FloatRecordPart):
    """What one process is asked to do."""

    kind: PassKind
    target: Target
    folder: str  # working folder of the script
    base: str  # folder where the paths of a patch begin
    answer: str  # file for the answer
    losses: str = ""  # file of the losses; the first pass writes it
    steps: int | None = None
    every_step: bool = False  # look at all parameters before each backward pass, after each step
    event: Event | None = None
    trial: TrialPlan | None = None  # of a pass that runs one trial
    start: Start = "event"
    alone: bool = False  # loaders have no worker processes
    inspect: tuple[int, ...] = ()  # backward passes to look at
    patched: bool = False  # the script is patched, to see if it trains
    in_fp32: bool = False  # all of it, from the first line
    seed: int = 0  # added to those that the script sets
    emulate: bool = False
    isolated: tuple[str, ...] = ()  # folders that may be written to
    originals: tuple[str, ...] = ()  # the folders that were copied
    copies: str = ""  # folder of the copies


class ScalerFacts(FloatRecordPart):
    """The loss scale over a run."""

    used: bool = False
    count: int = 0  # of scalers
    skips: int = 0  # backward passes that overflowed
    each_steps: bool = True  # and each of them is a step
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
    optimizer_callers: tuple[Place, ...] = ()  # lines that led to that one, innermost first
    optimizer_class: str = ""  # of the optimizer that stepped
    rate: float | None = None  # the learning rate of that optimizer
    eps: float | None = None  # the smallest of that optimizer, if it has one
    fused: bool = False  # the optimizer skips steps by itself
    half_weights: Place | None = None  # its weights became half here
    half_callers: tuple[Place, ...] = ()  # lines that led to that one, innermost first
    half_dtype: str = ""  # of those weights, if they have one in common
    half_module: Place | None = None  # weights that no optimizer holds became half here
    scaler: Place | None = None
    scaling: Place | None = None  # a call of scaler.scale
    backward: Place | None = None  # a backward pass
    stepped: Place | None = None  # a step of the scaler, of the optimizer for which it failed last
    autocast: Place | None = None  # an FP16 region
    autocast_device: str = ""  # of that region
    copied: Place | None = None  # a model was copied here, after the optimizer was made
    not_updated: int = 0  # scaled backward passes since scaler.update()
    leaf_loss: bool = False  # the last backward pass began at a tensor without a graph
    hides: Place | None = None  # it made bad numbers finite
    modules: tuple[SubmodulePlace, ...] = ()  # of the culprit's module, and those around it


class Misused(FloatRecordPart):
    """A use of torch that trains wrongly, although no number is bad."""

    kind: MisuseKind
    sentence: str
    code: str = ""  # of the catalogue
    place: Place | None = None  # the line at fault
    by: Place | None = None  # a line that shows it, such as the step
    error: str = ""  # an exception that the script has hidden
    scale: float = 1.0  # a loss scale that would do
    backward: int = 0  # finished backward passes before it was seen
    norms: tuple[float, ...] = ()  # of the gradients there
    sizes: tuple[int, ...] = ()  # elements of the gradients there
    dtype: str = ""  # of the half weights or buffers
    unsure: bool = False  # only FP32 can tell if it is wrong


class Reason(RecordPart):
    """Why an operation has no finite result at its inputs."""

    text: str  # a clause about the operation
    code: str = ""  # of the catalogue, if it is a failure of its own
    place: str = ""  # file and line where its inputs were spoiled
    few: Few = ""  # numbers that a mean or a deviation is taken of


class TrialResult(FloatRecordPart):
    """The bad step under one change."""

    plan: TrialPlan
    trial: ReplayTrial
    stable: tuple[str, ...] = ()  # operations of halfguard.ops that ran
    limits: bool = False  # a stable operation limits its result
    rewrite: str = ""  # what to write for a composition, and where
    patch: str = ""  # the change as a unified diff, if it is certain
    gradients: str = ""  # file with the gradients, unscaled
    following: Place | None = None  # the line that makes the next bad number with this change


class PassResult(FloatRecordPart):
    """What one process found."""

    ended: Ended = "died"
    error: str = ""
    event: Event | None = None
    backward: int = 0
    steps: int = 0
    seconds: float = 0.0
    busy: float = math.inf  # seconds of processors; infinite if they were not measured
    loss: float = math.nan
    scaler: ScalerFacts = ScalerFacts()
    misuse: tuple[Misused, ...] = ()
    workers: bool = False  # a loader has worker processes
    spawns: bool = False  # it started ranks by itself
    autocast_off: str = ""  # a device whose autocast torch switched off
    regions: tuple[str, ...] = ()  # device and dtype of the autocast that ran
    outside: tuple[str, ...] = ()  # effects outside the copied folder
    casts: tuple[Place, ...] = ()  # casts to half that a run in FP32 has left out
    numpy: tuple[tuple[Place, str], ...] = ()  # lines where NumPy met NaN or Inf, and how
    rate: Reason | None = None  # a learning rate that is not finite
    # of the second pass
    culprit: Culprit | None = None
    of_data: bool = False  # the operation had no parameter among its inputs
    mask: Culprit | None = None  # a constant infinity among the inputs
    reason: Reason | None = None
    made: Made = Made()
    exact: float = math.nan  # largest result in FP64 on the same inputs; inf: not finite there
    differs_at: int | None = None  # first loss that was not repeated
    bad_before: bool = False  # parameters were bad before the step
    trials: tuple[TrialResult, ...] = ()
    autocast: str = ""  # the 16-bit dtype of autocast in the bad step
    rank: int = 0
    # of the inspection of a good run
    headroom: Headroom | None = None
    swallowed: tuple[AuditFinding, ...] = ()
    inspected: int = 0

    @property
    def effort(self) -> float:
        """Seconds without those in which the process waited for others: a third of the time at least."""
        return min(self.seconds, max(self.busy, self.seconds / 3))


def write_losses(path: str, losses: list[float]) -> None:
    """Write the losses bit by bit."""
    Path(path).write_bytes(array("d", losses).tobytes())


def read_losses(path: str) -> list[float]:
    """Read what ``write_losses`` wrote; empty if there is nothing."""
    try:
        return list(array("d", Path(path).read_bytes()))
    except (OSError, ValueError):
        return []


def first_difference(losses: list[float], before: list[float]) -> int | None:
    """Return the first loss that is not the same bit by bit, or None; NaN equals NaN."""
    for index, (now, then) in enumerate(zip(losses, before, strict=False)):
        if now != then and not (math.isnan(now) and math.isnan(then)):
            return index
    return None
