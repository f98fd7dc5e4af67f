"""The record of one bad step; its tensors are in a safetensors file in the same folder."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from halfguard.records.base import Record
from halfguard.records.step import StepRow


class MicroBatchRecord(Record):
    """A micro-batch and the random state before its forward pass, as encoded structures."""

    kind: ClassVar[str] = "micro_batch"

    batch: Any = None
    rng: Any = None
    about: str = ""
    private: bool = Field(default=False, description="True if the batch was not stored")
    summary: tuple[str, ...] = Field(
        default=(), description="of a private batch: dtypes, shapes and statistics"
    )


class IncidentRecord(Record):
    """All data needed to repeat a step elsewhere, except the tensors and the user's code."""

    kind: ClassVar[str] = "incident"

    step: StepRow
    rank: int = Field(default=0, ge=0)
    world_size: int = Field(default=1, ge=1)
    device: str = Field(description="device type that the step ran on")
    precision: str
    config: dict[str, Any]
    scale: float = Field(gt=0, description="loss scale of the step")
    micro_batches: tuple[MicroBatchRecord, ...]
    evaluating: tuple[str, ...] = Field(default=(), description="modules that were in eval mode")
    weights: bool = Field(default=True, description="True if the tensors hold the model's state")
    aliases: dict[str, str] = Field(
        default_factory=dict,
        description="tensors that share memory: name to the name in the file",
    )
    grad_norms: dict[str, float] = Field(default_factory=dict)
    exact: bool = Field(
        default=True,
        description="False if the weights are from a later step, because the host lags behind",
    )
    problems: tuple[str, ...] = Field(default=(), description="what could not be saved, and why")
    environment: dict[str, str] = Field(default_factory=dict)
    git: dict[str, str] = Field(default_factory=dict)
    recent: tuple[str, ...] = Field(default=(), description="the last rows of the journal, as JSON")
    entry: str = Field(default="", description="ENTRY that describes the job, if given")
