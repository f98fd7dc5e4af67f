"""Checks before logged runs are judged as pairs: every run has a seed, and pairs are equally long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from halfguard.comparison.groups import GroupedRun, RunGroup
from halfguard.errors import UsageError
from halfguard.validation.sections import Metric


def raise_if_partly_seeded(groups: Sequence[RunGroup]) -> None:
    """Raise if some runs have a seed and others have none."""
    runs = [run for group in groups for run in group.runs]
    without = [run.log.place for run in runs if run.seed is None]
    if without and len(without) < len(runs):
        listed = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        raise UsageError(
            f"{len(without)} of {len(runs)} runs have no seed: {listed}. To leave them out could hide a "
            "failure.",
            cure="Write the seed into the run's name (fp16-seed3), say which setting has it (--seed-key), or "
            "give paths that do not include these runs.",
        )


def raise_if_lengths_differ(
    names: Sequence[str],
    by_seed: Sequence[Mapping[int, GroupedRun]],
    seeds: Sequence[int],
    metric: Metric,
) -> None:
    """Raise if a pair ends at different steps: training longer would be part of the result."""
    different, shortest = [], math.inf
    for name, runs in zip(names[1:], by_seed[1:], strict=True):
        for seed in (seed for seed in seeds if seed in runs):
            base, own = _length(by_seed[0][seed]), _length(runs[seed])
            if base is not None and own is not None and base != own:
                different.append(f"seed {seed}: {names[0]} {base:,}, {name} {own:,}")
                shortest = min(shortest, base, own)
    if different:
        listed = "; ".join(different[:5]) + ("; ..." if len(different) > 5 else "")
        raise UsageError(
            f"Runs with one seed log {metric.name} up to different steps ({listed}). A verdict on them would "
            "compare the length of training, not only its precision.",
            cure=f"To compare at a step that all have reached, add --until {shortest:.0f}. If the runs ended "
            "as intended (early stopping), add --any-length.",
        )


def _length(run: GroupedRun) -> int | None:
    """Return the last step, or the number of values if steps were not logged; None for a broken run."""
    broken = run.log.failure or run.log.unfinished
    if broken or run.series is None or not math.isfinite(run.series.values[-1]):
        return None
    return run.series.steps[-1] if any(run.series.steps) else len(run.series.steps) - 1
