"""One task: everything that determines a run, as plain data that can be sent to another machine.

Guard configurations and plans are read here, once, so a worker needs only the job's own files. The name of a
task's result file contains a digest of everything that determines its numbers, but not of where they are
computed. So a changed job, seed, plan or torch version gets a new file.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from halfguard.errors import ConfigError
from halfguard.guard.config import GuardConfig
from halfguard.precision_names import Precision
from halfguard.records.base import RecordPart
from halfguard.records.plan import PrecisionPlan
from halfguard.validation.runs.sources import digests_of
from halfguard.validation.spec import Candidate, Spec


class Setting(RecordPart):
    """The training method: a candidate with its files read."""

    precision: str
    guard: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None


class Job(RecordPart):
    """The training job."""

    entry: str | None
    command: tuple[str, ...] | None
    steps: int | None
    evaluation: Literal["as-trained", "fp32"]
    metric: str
    files: dict[str, str]  # path relative to the specification's folder -> digest
    versions: str


class Task(RecordPart):
    """A run of one candidate with one seed; with ``against``, a measurement of its speed."""

    candidate: str
    setting: Setting
    seed: int
    job: Job
    folder: str
    against: Setting | None = None

    @property
    def exclusive(self) -> bool:
        """Return whether it must run alone: speed is measured."""
        return self.against is not None

    @property
    def key(self) -> str:
        """The unique, readable name of its result file."""
        body = self.model_dump_json(exclude={"folder"})
        digest = hashlib.sha256(body.encode()).hexdigest()[:16]
        kind = "run" if self.against is None else "speed"
        return f"{kind}-{slug_of(self.candidate)}-s{self.seed}-{digest}"


def slug_of(candidate: str) -> str:
    """Return a candidate's name as a part of file names."""
    return re.sub(r"[^a-z0-9]+", "-", candidate.lower()).strip("-")[:40]


def run_tasks(spec: Spec) -> list[Task]:
    """Return all runs, seed by seed, so that a study that ends early still has complete pairs."""
    job, settings = _job(spec), _settings(spec)
    tasks = [
        Task(candidate=name, setting=setting, seed=seed, job=job, folder=str(spec.folder))
        for seed in spec.seeds
        for name, setting in settings.items()
    ]
    return tasks[: spec.budget.runs]


def speed_tasks(spec: Spec) -> list[Task]:
    """Return one speed measurement per candidate; none for a command, whose steps cannot be timed."""
    if spec.entry is None:
        return []
    job, settings = _job(spec), _settings(spec)
    against = settings.pop(spec.baseline.name)
    return [
        Task(
            candidate=name,
            setting=setting,
            seed=spec.seeds[0],
            job=job,
            folder=str(spec.folder),
            against=against,
        )
        for name, setting in settings.items()
    ]


def _job(spec: Spec) -> Job:
    command = tuple(shlex.split(spec.command)) if spec.command is not None else None
    return Job(
        entry=spec.entry,
        command=command,
        steps=spec.steps,
        evaluation=spec.evaluation,
        metric=spec.metric.name,
        files=digests_of(spec.folder, spec.entry, command),
        versions=_versions(),
    )


def _settings(spec: Spec) -> dict[str, Setting]:
    if spec.command is not None:
        return {arm.name: Setting(precision=arm.precision) for arm in spec.arms}
    places = ["baseline", *(f"candidates.{index}" for index in range(len(spec.candidates)))]
    settings = {}
    for place, arm in zip(places, spec.arms, strict=True):
        try:
            settings[arm.name] = _setting(arm, spec.folder)
        except ValueError as error:  # includes halfguard's own errors about values
            raise ConfigError(f"{place} ({arm.name}): {error}") from error
    counts = {
        name: (setting.guard or {}).get("accumulate", 1) for name, setting in settings.items()
    }
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ConfigError(
            f"Candidates must use the same number of batches per step, but they differ ({listed}).",
            cure="Set accumulate in their guard: {preset: fp16_safe, accumulate: 1}.",
        )
    return settings


def _setting(arm: Candidate, folder: Path) -> Setting:
    precision = Precision(arm.precision)
    plan = None
    if arm.plan is not None:
        plan = PrecisionPlan.load(folder / arm.plan).model_dump(mode="json")
    guard = None
    if arm.guard is not None:
        config = _guard(arm.guard, folder).model_dump(mode="json")
        if config["plan"] is not None:
            raise ConfigError(
                "a plan is not allowed inside 'guard': move it to the candidate's own key 'plan'."
            )
        guard = config | {"precision": str(precision), "incidents": None}
        GuardConfig.load(guard)
    return Setting(precision=str(precision), guard=guard, plan=plan)


def _guard(value: str | dict[str, Any], folder: Path) -> GuardConfig:
    if isinstance(value, str):
        return GuardConfig.load(folder / value if (folder / value).is_file() else value)
    keys = dict(value)
    preset = keys.pop("preset", None)
    base = GuardConfig.load(preset).model_dump(mode="json") if preset is not None else {}
    return GuardConfig.load(_merged(base, keys))


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        sections = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = _merged(below or {}, value) if sections else value
    return merged


@cache
def _versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("halfguard", "torch"))
