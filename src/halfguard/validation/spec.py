"""The specification of a study: frozen and validated, from YAML or a mapping.

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

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from halfguard.records.config_file import read_yaml, validate_config
from halfguard.validation.sections import (
    MAX_SEEDS,
    Arm,
    Budget,
    Candidate,
    ExecutorSpec,
    Metric,
    Section,
    Thresholds,
    as_executor,
    as_seeds,
)

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
