"""Where the digits of a candidate go that failed: one step of its job, taped, beside the verdict."""

from __future__ import annotations

import contextlib
from pathlib import Path

from halfguard.errors import HalfguardError
from halfguard.precision_names import Precision
from halfguard.records import write_atomically
from halfguard.records.rounding import RoundingReport
from halfguard.records.study import Comparison, Verdict, VerdictLabel
from halfguard.validation.runs.task import slug_of
from halfguard.validation.spec import Spec

_STEPS = 20  # in FP32, before the step that is taped
_TAPED = (Precision.FP16_MIXED, Precision.BF16_MIXED)


def find_lost_digits(spec: Spec, verdict: Verdict, folder: Path) -> None:
    """Write a report for each candidate that finished worse than the baseline, if the job has an entry."""
    if spec.entry is None:
        return
    planned = {
        arm.name for arm in spec.arms if arm.plan is not None
    }  # its islands would be missing
    for row in _failed(verdict):
        path = _path(folder, row)
        if row.precision in _TAPED and row.candidate not in planned and not path.exists():
            report = _report(spec, row)
            if report is not None:
                write_atomically(path, report.to_json() + "\n")


def read_lost_digits(folder: Path, verdict: Verdict) -> dict[str, RoundingReport]:
    """Return the reports in the folder of a study by candidate."""
    paths = {row.candidate: _path(folder, row) for row in _failed(verdict)}
    return {
        name: RoundingReport.from_json(path.read_bytes())
        for name, path in paths.items()
        if path.is_file()
    }


def _failed(verdict: Verdict) -> list[Comparison]:
    return [one for one in verdict.comparisons if one.word is VerdictLabel.FAIL and not one.broken]


def _path(folder: Path, row: Comparison) -> Path:
    return folder / f"lost-digits-{slug_of(row.candidate)}.json"


def _report(spec: Spec, row: Comparison) -> RoundingReport | None:
    # They need torch, which reading a study does not.
    from halfguard.step.random_state import preserved_random_state  # noqa: PLC0415
    from halfguard.workload import load  # noqa: PLC0415
    from halfguard.workload.rounding import rounding_of_job  # noqa: PLC0415

    steps = min(_STEPS, spec.steps or _STEPS)
    try:
        with contextlib.chdir(spec.folder), preserved_random_state():
            job = load(spec.entry or "", row.seeds[0])
            return rounding_of_job(job, steps=steps, precision=row.precision)
    except HalfguardError:  # as a loss that is not finite: then digits are not the problem
        return None
