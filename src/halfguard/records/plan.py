"""A precision plan: the modules that stay in FP32 inside a 16-bit model, as a YAML file people can edit.

``halfguard plan`` writes it, you commit it next to the training config, and ``halfguard.apply_plan`` or the
guard applies it. Every island has a reason, so that a reader can check later whether it still applies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, model_validator

from halfguard.errors import RecordError
from halfguard.records.atomic_write import write_atomically
from halfguard.records.base import Record, RecordPart

IslandKind = Literal["fp32", "rescaled"]


class Island(RecordPart):
    """A module that runs in FP32, or the same module of every block of a list.

    In ``model.layers.*.mlp``, the star is the index of the block.
    """

    module: str = Field(description="path as in named_modules(); empty for the whole model")
    kind: IslandKind = Field(
        default="fp32",
        description=(
            "rescaled: a linear layer multiplies in 16-bit precision, with its input scaled by powers of "
            "two, and returns FP32"
        ),
    )
    reason: str = ""

    def members(self, paths: Iterable[str]) -> list[str]:
        """Return those of ``paths`` that the island names."""
        if "*" not in self.module:
            return [path for path in paths if path == self.module]
        wanted = self.module.split(".")
        return [path for path in paths if _matches(path.split("."), wanted)]


def _matches(parts: list[str], wanted: list[str]) -> bool:
    return len(parts) == len(wanted) and all(
        part.isdecimal() if star == "*" else part == star
        for part, star in zip(parts, wanted, strict=True)
    )


class LineIsland(RecordPart):
    """A line of source code that runs in FP32: for a fault outside every module, in the loss for example.

    Modules with weights that the line calls are not part of it. In a model that is compiled it stays in half.
    """

    file: str
    line: int = Field(ge=1)
    code: str = Field(description="the text of the line, to find it if it has moved")
    kind: IslandKind = Field(
        default="fp32", description="rescaled: matrix products of the line stay in 16-bit precision"
    )
    within: str = Field(
        default="",
        description="class of the modules in whose forward the line runs; without it, only guard.step "
        "can apply the line",
    )
    reason: str = ""


AnyIsland = Island | LineIsland


class ScaleRange(RecordPart):
    """The loss scales at which every gradient fits into the format."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    best: float = Field(gt=0)


class PlanEvidence(RecordPart):
    """The training runs that led to the plan."""

    steps: int = Field(ge=1)
    trials: int = Field(ge=0, description="number of 16-bit training runs")
    modules: int = Field(ge=1, description="modules that ran; each is a possible island")
    loss_fp32: float = Field(description="mean over the last fifth of the steps")
    loss: float = Field(description="the same with the plan")
    flops: float = Field(default=0.0, description="share of matrix-product FLOPs that move to FP32")

    @property
    def deviation(self) -> float:
        """The relative difference of the loss from that of FP32."""
        return abs(self.loss - self.loss_fp32) / max(abs(self.loss_fp32), 1e-12)


class PrecisionPlan(Record):
    """A precision plan: FP32 islands with reasons, the range of loss scales, and the trial results."""

    kind: ClassVar[str] = "plan"

    precision: str = "fp16-mixed"
    islands: tuple[Island, ...] = ()
    lines: tuple[LineIsland, ...] = ()
    loss_scale: ScaleRange | None = None
    evidence: PlanEvidence | None = None

    @model_validator(mode="after")
    def _raise_if_duplicates(self) -> Self:
        names = self.modules
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"these islands occur more than once: {', '.join(sorted(duplicates))}")
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        """The module paths of the islands."""
        return tuple(island.module for island in self.islands)

    def to_yaml(self) -> str:
        """Return the plan as YAML, with its kind and version first."""
        head = {"kind": self.kind, "schema_version": self.schema_version}
        body = self.model_dump(mode="json", exclude_none=True)
        if not self.lines:
            del body["lines"]
        for island in (*body["islands"], *body.get("lines", ())):
            if island["kind"] == "fp32":
                del island["kind"]
        text: str = yaml.safe_dump(head | body, sort_keys=False, allow_unicode=True, width=100)
        return text

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read a plan from YAML. Nothing in the text is executed."""
        try:
            body = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
            raise RecordError(f"This is not a plan: it is not YAML ({error}).") from error
        if not isinstance(body, dict) or body.pop("kind", None) != cls.kind:
            raise RecordError("This is not a plan: its first line is not 'kind: plan'.")
        return cls._validate(cls._without_version(body))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file. If an error occurs, an existing file stays unchanged."""
        write_atomically(path, self.to_yaml())

    @classmethod
    def load(cls, source: PrecisionPlan | dict[str, Any] | str | os.PathLike[str]) -> PrecisionPlan:
        """Load a plan from a file, a mapping with the same keys, or another plan."""
        if isinstance(source, PrecisionPlan):
            return source
        if isinstance(source, dict):
            values = {k: v for k, v in source.items() if k not in ("kind", "schema_version")}
            return cls._validate(values)
        path = Path(source)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(
                f"The plan {str(path)!r} cannot be read: {error}.",
                cure="Create a plan with: halfguard plan ENTRY -o plan.yaml",
            ) from error
        try:
            return cls.from_yaml(text)
        except RecordError as error:
            raise RecordError(f"{path}: {error.message}", cure=error.cure) from error
