"""``validate``: run a study, judge it, and write its reports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfguard.records.study import Verdict
from halfguard.report.blocks import Page
from halfguard.validation.executors import Executor
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.lost_digits import find_lost_digits
from halfguard.validation.spec import Spec
from halfguard.validation.study import OnProgress, run_study
from halfguard.validation.study_files import write_reports


def validate(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Verdict:
    """Complete the missing runs of a study, and return the verdict on every candidate.

    ``spec`` is a YAML file or a mapping with the same keys. ``folder`` contains the finished runs, the
    study, the verdict and the reports. The default is ``runs/`` followed by the name of the study.
    ``executor`` replaces the executor in ``spec``.
    """
    spec = Spec.load(spec)
    place = default_folder(spec) if folder is None else Path(folder)
    return run_validation(spec, place, executor, on_progress)[0]


def run_validation(
    spec: Spec, folder: Path, executor: Executor | None, on_progress: OnProgress | None
) -> tuple[Verdict, Page]:
    """Run and judge a study, and write its files; return the verdict and the page of the report."""
    study = run_study(spec, folder, executor, on_progress)
    verdict = judge(study)
    find_lost_digits(spec, verdict, folder)
    return verdict, write_reports(folder, study, verdict)


def default_folder(spec: Spec) -> Path:
    """Return ``runs/`` and the study's name, without characters that a folder name should not have."""
    return Path("runs") / (re.sub(r"[^\w.-]+", "-", spec.name).strip("-.") or "study")
