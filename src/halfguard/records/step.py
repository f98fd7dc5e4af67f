"""The rows of a run's journal: one for every unusual step, one for consecutive healthy steps."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal, Self

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record


class Cause(StrEnum):
    """The reason why a step was unusual, with a description and what to do if it stops a run.

    Both hold for every step with this cause; ``guard.evidence`` adds what was seen at one step.
    """

    code: str  # in the catalogue
    description: str
    advice: str

    def __new__(cls, value: str, code: str, description: str, advice: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.code, member.description, member.advice = (
            value,
            code,
            description,
            advice,
        )
        return member

    BAD_WEIGHTS = (
        "bad_weights",
        "HG613",
        "weights or other model state were not finite before the step",
        "Return to an earlier checkpoint, because later steps cannot repair NaN or Inf weights.",
    )
    FORWARD_OVERFLOW = (
        "forward_overflow",
        "HG601",
        "the loss was not finite before it was scaled",
        "To find the operation, use halfguard replay INCIDENT or halfguard.find_first_nonfinite.",
    )
    GRADIENT_OVERFLOW = (
        "gradient_overflow",
        "HG611",
        "the loss was finite, but the gradients were not",
        "To find the operation, use halfguard replay INCIDENT or halfguard.find_first_nonfinite.",
    )
    BAD_BATCH = (
        "bad_batch",
        "HG612",
        "the batch itself was invalid: NaN or Inf, no samples, only ignored labels, or a fully masked row",
        "Check these samples in the data, and remove or repair them there.",
    )
    GRADIENT_SPIKE = (
        "gradient_spike",
        "HG614",
        "the gradient norm was above its limit",
        (
            "Lower the learning rate, use a longer warmup, or raise the limit if these norms are normal for "
            "the model."
        ),
    )
    LOSS_SPIKE = (
        "loss_spike",
        "HG615",
        "the loss was above its limit",
        (
            "Check these samples, lower the learning rate, or raise spike.sigma if such losses are normal "
            "for the data."
        ),
    )
    DESYNC = (
        "desync",
        "HG616",
        "the weights of two ranks differ although they must be bit-identical",
        (
            "Return to an earlier checkpoint. If it happened once, on one rank, the memory of that rank may "
            "be faulty. Otherwise, some code writes a tensor or draws random numbers on only some of the "
            "ranks. Set desync.every to 1 to find the step."
        ),
    )


class Action(StrEnum):
    """The guard's decision about a step."""

    ACCUMULATE = "accumulate"  # more micro-batches follow before this step is decided
    APPLY = "apply"
    SKIP = "skip"
    RETRY = "retry_fp32"  # repeated in FP32, and applied with those gradients
    ROLL_BACK = "roll_back"
    HALT = "halt"


class HealthWarning(StrEnum):
    """A sign that a run goes on, but not well, with its code in the catalogue."""

    code: str

    def __new__(cls, value: str, code: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.code = value, code
        return member

    ZERO_GRADIENTS = "zero_gradients", "HG610"
    LOW_SCALE = "low_scale", "HG617"
    FEW_APPLIED = "few_applied", "HG618"
    MANY_REPEATED = "many_repeated", "HG618"
    SCHEDULE_AHEAD = "schedule_ahead", "HG304"


class StepRow(Record):
    """One unusual step, with all details."""

    kind: ClassVar[str] = "step"

    step: int = Field(ge=0, description="update attempts so far, counted from 0")
    epoch: int = Field(default=0, ge=0)
    batch: int = Field(default=0, ge=0, description="batches of this epoch so far, counted from 0")
    action: Action
    cause: Cause | None
    loss: float
    grad_norm: float
    scale: float
    culprits: tuple[str, ...] = Field(default=(), description="parameters, worst first")
    batches: tuple[str, ...] = Field(default=(), description="descriptions of the batches")
    ranks: tuple[int, ...] = Field(default=(), description="ranks where the fault began, if known")
    evidence: str = Field(default="", description="what was seen, in one or two sentences")
    routine: bool = Field(default=False, description="the loss scale was calibrating")
    note: str = ""

    @property
    def first_step(self) -> int:
        """The step, under the name that it has in a group of healthy steps."""
        return self.step

    last_step = first_step

    @property
    def code(self) -> str:
        """Return the code of the cause in the catalogue; the file has the cause only."""
        return self.cause.code if self.cause else ""

    @property
    def worst(self) -> tuple[str, ...]:
        """Return what to look at first: the batch if it is corrupt, otherwise the worst parameters."""
        return (self.batches if self.cause is Cause.BAD_BATCH else ()) or self.culprits


class LossCurve(FloatRecordPart):
    """The losses of consecutive healthy steps: one by one, or the mean and the extremes of several."""

    steps_per_point: int = Field(ge=1)
    mean: tuple[float, ...]
    low: tuple[float, ...] = Field(default=(), description="lowest; empty for single steps")
    high: tuple[float, ...] = Field(default=(), description="highest; empty for single steps")


class HealthyStepsRow(Record):
    """Consecutive healthy steps, summarized in one row."""

    kind: ClassVar[str] = "window"

    first_step: int = Field(ge=0)
    last_step: int = Field(ge=0)
    loss_mean: float
    loss_max: float
    grad_norm_min: float
    grad_norm_max: float
    scale: float = Field(description="loss scale at the last step")
    losses: LossCurve | None = None


class HealthRow(Record):
    """A warning about the run, given at most once per process."""

    kind: ClassVar[str] = "health"

    step: int = Field(ge=0, description="the step after which it was given")
    epoch: int = Field(default=0, ge=0)
    warning: HealthWarning
    text: str

    @property
    def code(self) -> str:
        """Return the code of the warning in the catalogue; the file has the warning only."""
        return self.warning.code


class NoteRow(Record):
    """A sentence of the training script, put into the journal by ``guard.note``."""

    kind: ClassVar[str] = "note"

    step: int = Field(ge=0, description="update attempts before it")
    epoch: int = Field(default=0, ge=0)
    text: str


class HealingRow(Record):
    """A change that the guard made to the model's precision by itself, or why it made none."""

    kind: ClassVar[str] = "healing"

    step: int = Field(ge=0, description="the step after which it was decided")
    action: Literal["applied", "taken back", "not found", "stopped"]
    island: str = Field(default="", description="the module or line that runs in FP32")
    module: str | None = Field(default=None, description="of the operation that failed")
    file: str = ""
    line: int = 0
    text: str


class Summary(Record):
    """Counts over an epoch or a whole run."""

    kind: ClassVar[str] = "summary"

    epoch: int | None = Field(default=None, description="None for the whole run")
    steps: int = 0
    applied: int = 0
    retried: int = Field(default=0, description="applied, but only after a repetition in FP32")
    skipped: dict[Cause, int] = Field(default_factory=dict)
    rollbacks: int = 0
    scale: float = 1.0
    scale_reductions: int = 0
    grad_norm_min: float = float("inf")
    grad_norm_max: float = 0.0
    warnings: tuple[HealthWarning, ...] = ()

    @property
    def success_rate(self) -> float:
        """Applied steps over all steps; 1.0 before the first."""
        return self.applied / self.steps if self.steps else 1.0

    def __str__(self) -> str:
        title = "run" if self.epoch is None else f"epoch {self.epoch}"
        skipped = ", ".join(f"{cause} {count}" for cause, count in sorted(self.skipped.items()))
        warnings = f"; warnings: {', '.join(self.warnings)}" if self.warnings else ""
        norms = f"{self.grad_norm_min:.3g} to {self.grad_norm_max:.3g}" if self.applied else "none"
        return (
            f"{title}: {self.applied}/{self.steps} steps applied ({self.success_rate:.1%}), "
            f"{self.retried} of them retried in FP32; "
            f"skipped {sum(self.skipped.values())}{f' ({skipped})' if skipped else ''}; "
            f"rolled back {self.rollbacks}; "
            f"scale {self.scale:g}, reduced {self.scale_reductions} times; gradient norm {norms}{warnings}"
        )


class RunInfo(Record):
    """The content of ``run.json``: the run's configuration and environment."""

    kind: ClassVar[str] = "run"

    started: str = Field(description="ISO 8601, UTC")
    config: dict[str, object]
    environment: dict[str, str] = Field(description="versions of packages, device, platform")
    entry: str = Field(default="", description="file.py:function that describes the job")
