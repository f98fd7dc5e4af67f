"""The specification of a study, section by section: frozen and validated, from YAML or a mapping.

A candidate is a precision, with or without a guard and a plan. Simple ones are strings (``fp16-mixed``,
``fp16-mixed guarded``), others are mappings. Paths in a file are relative to that file, so a study can be
started from any folder. Error messages name the key as the user wrote it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from halfguard.records.config_file import read_yaml, validate_config
from halfguard.records.sizes import parse_bytes

GUARDED: dict[str, Any] = {"skip": {"on_nonfinite": "retry_fp32"}}
MAX_SEEDS = 1000  # a study that needs more is too close to a threshold to decide


def _parse_fraction(value: object) -> object:
    """Convert ``"1%"`` to 0.01."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip().removesuffix("%")) / 100
    return value


def _parse_bytes(value: object) -> object:
    """Convert ``"2 GB"`` to 2,000,000,000."""
    return parse_bytes(value) if isinstance(value, str) else value


def as_seeds(value: object) -> object:
    """Convert a count to the seeds 0, 1, 2, ...; refuse what is neither a count nor a list."""
    if isinstance(value, list | tuple):
        return value
    if type(value) is not int or value < 1:
        raise ValueError("a number of seeds such as 4, or a list such as [0, 1, 2, 3], is needed")
    if value > MAX_SEEDS:
        raise ValueError(f"at most {MAX_SEEDS:,} seeds are allowed, got {value:,}")
    return tuple(range(value))


def _parse_candidate(value: object) -> object:
    """Convert a string such as ``fp16-mixed guarded`` to the keys of a candidate."""
    if not isinstance(value, str):
        return value
    precision, _, suffix = value.strip().partition(" ")
    if suffix == "guarded":
        return {"name": value.strip(), "precision": precision, "guard": GUARDED}
    return {"name": value.strip(), "precision": value.strip()}


def as_executor(value: object) -> object:
    """Convert the name of an executor to the keys of its section."""
    return {"kind": value} if isinstance(value, str) else value


Fraction = Annotated[float, BeforeValidator(_parse_fraction), Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen section that accepts no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True
    )


class Candidate(Section):
    """One side of the comparison; without ``guard`` it trains with torch's own autocast and GradScaler."""

    name: str = Field(min_length=1)
    precision: str
    guard: str | dict[str, Any] | None = Field(
        default=None, description="preset, file, or keys of a guard configuration with its 'preset'"
    )
    plan: str | None = Field(default=None, description="file of FP32 islands from halfguard plan")

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
    """The number that is compared."""

    name: str
    higher_is_better: bool


class Thresholds(Section):
    """Limits on the loss of the metric, as fractions of the baseline, and on speed and memory."""

    passing: Fraction = Field(
        default=0.01, alias="pass", description="a smaller degradation is PASS"
    )
    marginal: Fraction = Field(
        default=0.02, description="a smaller degradation is MARGINAL, otherwise FAIL"
    )
    speedup: Fraction = Field(default=0.10, description="smallest useful speedup")
    memory: Annotated[int, BeforeValidator(_parse_bytes), Field(gt=0)] | None = Field(
        default=None, description="largest allowed peak, for example '2 GB'"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.passing <= self.marginal:
            raise ValueError(f"needs 0 < pass <= marginal, got {self.passing}, {self.marginal}")
        return self


class Budget(Section):
    """Limits at which a study stops with the runs it has; it completes seed after seed."""

    runs: int | None = Field(default=None, ge=2)
    minutes: float | None = Field(default=None, gt=0)


class ExecutorSpec(Section):
    """Where runs are executed."""

    kind: Literal["local", "ray"] = "local"
    workers: int | None = Field(default=None, ge=1, description="runs at a time; local default: 1")
    address: str | None = Field(default=None, description="Ray cluster; default: start one")
    cpus: float = Field(default=1, ge=0, description="Ray: processors per run")
    gpus: float = Field(default=0, ge=0, description="Ray: accelerators per run")
    resources: dict[str, float] = Field(default_factory=dict, description="Ray: custom resources")


Arm = Annotated[Candidate, BeforeValidator(_parse_candidate)]


PLACEHOLDERS = ("{precision}", "{seed}", "{out}")


class Spec(Section):
    """A study as described in ``SPEC.yaml`` for ``halfguard validate``."""

    # Keys of other configurations: what to write here instead.
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("use_amp", "use_mixed_precision", "mixed_precision", "amp", "fp16", "precision"),
            "candidates: [fp16-mixed] (the baseline is fp32)",
        ),
        "bf16": "candidates: [bf16-mixed] (the baseline is fp32)",
        **dict.fromkeys(
            ("clip_grad_norm", "gradient_clip_val", "max_grad_norm", "grad_clip", "guard"),
            "candidates: [{precision: fp16-mixed, guard: {clip: {max_norm: 1.0}}}]",
        ),
        **dict.fromkeys(("seed", "num_seeds", "n_seeds"), "seeds: 4"),
        **dict.fromkeys(("max_steps", "num_steps", "num_train_steps", "epochs"), "steps: 100"),
        **dict.fromkeys(("script", "program", "train"), "command or entry"),
        **dict.fromkeys(("threshold", "tolerance", "margin"), "thresholds: {pass: 1%}"),
    }

    name: str = Field(min_length=1)
    entry: str | None = None
    command: str | None = Field(
        default=None, description="with {precision}, {seed} and {out}; run without a shell"
    )
    baseline: Arm = Candidate(name="fp32", precision="fp32")
    candidates: tuple[Arm, ...] = Field(min_length=1)
    seeds: Annotated[
        tuple[int, ...],
        BeforeValidator(as_seeds),
        Field(min_length=1, max_length=MAX_SEEDS),
    ] = (0, 1, 2, 3, 4)
    steps: int | None = Field(default=None, ge=1, description="batches per run; entry only")
    metric: Metric
    thresholds: Thresholds = Thresholds()
    budget: Budget = Budget()
    executor: Annotated[ExecutorSpec, BeforeValidator(as_executor)] = ExecutorSpec()
    evaluation: Literal["as-trained", "fp32"] = Field(
        default="as-trained", description="precision in which the trained model is evaluated"
    )
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @property
    def folder(self) -> Path:
        """The folder that paths in the specification are relative to."""
        return self._folder

    @property
    def arms(self) -> tuple[Candidate, ...]:
        """The baseline, then the candidates in order."""
        return (self.baseline, *self.candidates)

    @model_validator(mode="after")
    def _one_job(self) -> Self:
        if (self.entry is None) == (self.command is None):
            raise ValueError("exactly one of entry and command is required")
        if self.entry is not None and self.steps is None:
            raise ValueError("entry requires steps: the number of batches per run")
        return self

    @model_validator(mode="after")
    def _command_is_complete(self) -> Self:
        if self.command is None:
            return self
        missing = [part for part in PLACEHOLDERS if part not in self.command]
        if missing:
            raise ValueError(f"command must contain {', '.join(missing)}")
        if not shlex.split(self.command):
            raise ValueError("command is empty")
        if self.steps is not None or self.evaluation != "as-trained":
            raise ValueError("steps and evaluation cannot be used with command")
        guarded = [arm.name for arm in self.arms if arm.guard is not None or arm.plan is not None]
        if guarded:
            raise ValueError(f"guard and plan cannot be used with command: {', '.join(guarded)}")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [arm.name for arm in self.arms]
        for what, values in (("name", names), ("seed", [str(seed) for seed in self.seeds])):
            repeated = {value for value in values if values.count(value) > 1}
            if repeated:
                listed = ", ".join(sorted(repeated))
                raise ValueError(f"every {what} must be unique; repeated: {listed}")
        return self

    def dump(self) -> dict[str, Any]:
        """Return the specification with all defaults, by the keys of the YAML file."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def load(cls, source: Spec | Mapping[str, Any] | str | os.PathLike[str]) -> Spec:
        """Load from a YAML file or a mapping of the same keys; return a ``Spec`` unchanged."""
        if isinstance(source, Spec):
            return source
        if isinstance(source, Mapping):
            return validate_config(cls, source, where="The specification", kind="a study")
        path = Path(source)
        spec = validate_config(cls, read_yaml(path), where=str(path), kind="a study")
        spec._folder = path.resolve().parent
        return spec
