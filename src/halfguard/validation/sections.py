"""The parts of a specification, and the short forms in which people write them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

GUARDED: dict[str, Any] = {"skip": {"on_nonfinite": "retry_fp32"}}
MOST_SEEDS = 1000  # what needs more of them is too close to its threshold to be told
_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _fraction(value: object) -> object:
    """``"1%"`` as 0.01."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip().removesuffix("%")) / 100
    return value


def _bytes(value: object) -> object:
    """``"2 GB"`` as 2,000,000,000."""
    found = (
        re.fullmatch(r"\s*([\d.]+)\s*([kmg]i?b)\s*", value, re.I)
        if isinstance(value, str)
        else None
    )
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else value


def as_seeds(value: object) -> object:
    """A count as the seeds 0, 1, 2, ..."""
    if type(value) is not int:
        return value
    if value > MOST_SEEDS:
        raise ValueError(f"at most {MOST_SEEDS:,} seeds can be asked for, not {value:,}")
    return tuple(range(value))


def _candidate(value: object) -> object:
    """A word as the candidate that it stands for."""
    if not isinstance(value, str):
        return value
    precision, _, how = value.strip().partition(" ")
    if how == "guarded":
        return {"name": value.strip(), "precision": precision, "guard": GUARDED}
    return {"name": value.strip(), "precision": value.strip()}


def as_executor(value: object) -> object:
    """A word as the executor of that kind."""
    return {"kind": value} if isinstance(value, str) else value


Share = Annotated[float, BeforeValidator(_fraction), Field(ge=0, lt=1)]


class Section(BaseModel):
    """Frozen, and without a key too many."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True
    )


class Candidate(Section):
    """How one side of the comparison trains; without ``guard``, torch's own autocast and GradScaler."""

    name: str = Field(min_length=1)
    precision: str
    guard: str | dict[str, Any] | None = Field(
        default=None, description="preset, file, or keys of a guard configuration and its 'preset'"
    )
    plan: str | None = Field(default=None, description="file of FP32 islands, by halfguard plan")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and "precision" in values:
            parts = [str(values["precision"])]
            parts += ["guarded"] if values.get("guard") is not None else []
            parts += ["with plan"] if values.get("plan") is not None else []
            return {"name": " ".join(parts), **values}
        return values


class Metric(Section):
    """The one number that decides."""

    name: str
    higher_is_better: bool


class Thresholds(Section):
    """Losses of the metric against the baseline, as fractions of it, and what 16 bits must bring."""

    passing: Share = Field(default=0.01, alias="pass", description="below it: PASS")
    marginal: Share = Field(default=0.02, description="below it: MARGINAL; above: FAIL")
    speedup: Share = Field(default=0.10, description="a smaller one is not worth it")
    memory: Annotated[int, BeforeValidator(_bytes), Field(gt=0)] | None = Field(
        default=None, description="peak that no candidate may pass, as '2 GB'"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.passing <= self.marginal:
            raise ValueError(f"0 < pass <= marginal is needed, got {self.passing}, {self.marginal}")
        return self


class Budget(Section):
    """Where a study stops, with the runs that it then has; whole seeds first."""

    runs: int | None = Field(default=None, ge=2)
    minutes: float | None = Field(default=None, gt=0)


class ExecutorSpec(Section):
    """Where runs take place."""

    kind: Literal["local", "ray"] = "local"
    workers: int | None = Field(default=None, ge=1, description="runs at a time; local: 1")
    address: str | None = Field(default=None, description="of the Ray cluster; else one is started")
    cpus: float = Field(default=1, ge=0, description="Ray: processors for a run")
    gpus: float = Field(default=0, ge=0, description="Ray: accelerators for a run")
    resources: dict[str, float] = Field(default_factory=dict, description="Ray: custom resources")


Arm = Annotated[Candidate, BeforeValidator(_candidate)]
