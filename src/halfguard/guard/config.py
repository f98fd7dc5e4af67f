"""The configuration of a guard: frozen and checked, from keywords, a YAML file or a preset.

A preset is a YAML file in ``presets/``. It states where its values come from and what was corrected.
The error for an unknown key or a value out of range names the key, the value and the allowed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from halfguard.errors import ConfigError
from halfguard.formats import FP16
from halfguard.precision_names import PrecisionName
from halfguard.records.config_file import parse_yaml, read_yaml, validate_config

Remedy = Literal["fp32", "lower_lr", "longer_growth_interval", "tighter_clip"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScaleConfig(_Section):
    """The loss scale of FP16; the other precisions have none."""

    init: float = Field(default=65536.0, gt=0)
    growth_factor: float = Field(default=2.0, gt=1)
    backoff_factor: float = Field(default=0.5, gt=0, lt=1)
    growth_interval: int = Field(default=2000, ge=1)
    floor: float = Field(default=FP16.smallest_normal, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.floor <= self.init:
            raise ValueError(
                f"scale.floor must not exceed scale.init, got {self.floor:g} and {self.init:g}"
            )
        return self


class ClipConfig(_Section):
    """Gradient clipping by total norm, after unscaling."""

    max_norm: float = Field(gt=0)
    norm_type: float = Field(
        default=2.0,
        gt=0,
        allow_inf_nan=True,
        description=("2.0: Euclidean norm; inf: largest magnitude"),
    )


class SkipConfig(_Section):
    """The handling of a step that must not be applied."""

    on_nonfinite: Literal["skip", "retry_fp32", "raise"] = "skip"
    retry_memory: Literal["full", "half"] = Field(
        default="full", description="half: repeated steps keep saved tensors in host memory"
    )
    max_grad_norm: float | None = Field(
        default=None, gt=0, description=("skip steps whose gradient norm is above this limit")
    )
    max_consecutive: int = Field(
        default=10, ge=1, description="consecutive failed steps before a rollback or halt"
    )
    strict: bool = Field(
        default=False,
        description="raise an error if a step changes state that a repeat cannot restore",
    )


class SpikeConfig(_Section):
    """Limits on finite losses and norms that are far above those of the last applied steps."""

    sigma: float = Field(default=6.0, gt=0)


class RecoveryConfig(_Section):
    """Snapshots to roll back to, and the remedies to try when rolling back is not enough."""

    every: int = Field(default=500, ge=1, description="applied steps between snapshots")
    store: Literal["memory", "disk"] = "memory"
    max_rollbacks: int = Field(default=3, ge=0)
    ladder: tuple[Remedy, ...] = ("fp32", "lower_lr", "longer_growth_interval", "tighter_clip")


class DesyncConfig(_Section):
    """The comparison of ranks whose weights must be bit-identical."""

    every: int = Field(default=100, ge=1, description="steps between comparisons")


class IncidentConfig(_Section):
    """The incidents in ``run_dir``, from which failed steps can be repeated."""

    keep: int = Field(
        default=4, ge=1, description="maximum number of incidents; later ones are not saved"
    )
    weights: bool = Field(
        default=True,
        description=("save the weights with an incident; False if you keep checkpoints"),
    )


class WatchConfig(_Section):
    """Measurements of sampled steps during training: headroom, lost updates, swallowed overflow."""

    every: int = Field(
        default=200,
        ge=1,
        description=("length of an interval in steps; one step per interval is sampled"),
    )


class VerifyConfig(_Section):
    """Healthy steps that are repeated and compared bit by bit, to detect faulty hardware."""

    every: int = Field(default=1000, ge=1, description="number of steps between two verified steps")


class HealConfig(_Section):
    """FP32 islands that the guard adds where steps keep failing in 16-bit precision."""

    islands: int = Field(default=8, ge=1, description="maximum number of islands")


class GuardConfig(_Section):
    """All settings of ``Guard``. The defaults are the same as in the preset ``default``."""

    # Keys of other configurations: what to write here instead.
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("use_amp", "use_mixed_precision", "mixed_precision", "amp", "fp16"),
            "precision: fp16-mixed (fp32 disables it, auto chooses by device)",
        ),
        "bf16": "precision: bf16-mixed",
        **dict.fromkeys(
            ("clip_grad_norm", "gradient_clip_val", "max_grad_norm", "grad_clip"),
            "clip: {max_norm: 1.0, norm_type: 2.0}",
        ),
        **dict.fromkeys(
            ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"),
            "accumulate: 4",
        ),
        **dict.fromkeys(
            ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale"),
            "scale: {init: 65536, growth_factor: 2, backoff_factor: 0.5, growth_interval: 2000, floor: 1}",
        ),
    }

    precision: PrecisionName = Field(
        default="fp16-mixed",
        description="'auto' chooses by device when the configuration is read",
    )
    scale: ScaleConfig = ScaleConfig()
    clip: ClipConfig | None = None
    skip: SkipConfig = SkipConfig()
    spike: SpikeConfig | None = None
    recovery: RecoveryConfig | None = None
    incidents: IncidentConfig | None = IncidentConfig()
    desync: DesyncConfig | None = DesyncConfig()
    watch: WatchConfig | None = None
    heal: HealConfig | None = None
    verify: VerifyConfig | None = None
    accumulate: int = Field(default=1, ge=1, description="micro-batches per step")
    plan: str | None = Field(
        default=None, description="file of FP32 islands, written by halfguard plan"
    )
    strict: bool = Field(
        default=False,
        description="adapters raise an error at the start if the model runs in different dtypes from "
        "the declared ones",
    )
    privacy: bool = Field(
        default=False,
        description="keep the contents and descriptions of batches out of files, logs and errors",
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _choose(cls, value: object) -> object:
        if value != "auto":
            return value
        try:
            torch = import_module("torch")  # only here: a configuration is read without it
        except ModuleNotFoundError as error:
            raise ValueError(
                "'auto' needs torch to detect the device; install torch or specify a precision"
            ) from error
        from halfguard.hardware.choice import choose_precision  # noqa: PLC0415 - as torch

        return choose_precision(torch)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.precision == "fp16-weights" and self.skip.on_nonfinite == "retry_fp32":
            raise ValueError(
                "skip.on_nonfinite='retry_fp32' needs FP32 weights in the model, which "
                "precision='fp16-weights' does not have; use 'skip' or 'fp16-mixed'"
            )
        if self.precision == "fp16-weights" and self.verify is not None:
            raise ValueError("verify needs gradients in the model, but master weights collect them")
        return self

    @classmethod
    def load(cls, source: GuardConfig | Mapping[str, Any] | str | Path) -> GuardConfig:
        """Load a preset by name, a YAML file by path, or a mapping; return a GuardConfig unchanged."""
        if isinstance(source, GuardConfig):
            return source
        if isinstance(source, Mapping):
            return cls._validate(source, "the configuration")
        if isinstance(source, str) and source in preset_names():
            return cls._validate(parse_yaml(preset_text(source), source), f"preset {source!r}")
        path = Path(source)
        if not path.is_file():
            raise ConfigError(
                f"{str(source)!r} is neither a preset nor a file.",
                cure=f"Presets are: {', '.join(preset_names())}.",
            )
        return cls._validate(read_yaml(path), str(path))

    @classmethod
    def _validate(cls, values: Mapping[str, Any], where: str) -> GuardConfig:
        return validate_config(cls, values, where=where, kind="a guard configuration")


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    files = resources.files("halfguard.guard").joinpath("presets").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Return a preset's YAML, with the comments that say where its values come from."""
    return (resources.files("halfguard.guard") / "presets" / f"{name}.yaml").read_text("utf-8")
