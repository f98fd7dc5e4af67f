"""``validate``: run a study and judge it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfguard.records.files import write_whole
from halfguard.records.verdict import Verdict
from halfguard.validation.approval import VERDICT_FILE
from halfguard.validation.executors import Executor
from halfguard.validation.judgement.verdict import judge, settled
from halfguard.validation.spec import Spec
from halfguard.validation.study import OnProgress, run_study


def validate(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Verdict:
    """Run what is missing of a study and return the verdict on every candidate.

    ``spec`` is a YAML file or a mapping of its keys. ``folder`` keeps every finished run, the study and the
    verdict; by default it is ``runs/`` and the study's name. ``executor`` replaces the specification's.
    """
    spec = Spec.load(spec)
    place = default_folder(spec) if folder is None else Path(folder)
    enough = settled if spec.sequential else None
    study = run_study(spec, place, executor, on_progress, enough)
    verdict = judge(study)
    write_whole(place / VERDICT_FILE, verdict.to_json() + "\n")
    return verdict


def default_folder(spec: Spec) -> Path:
    """``runs/`` and the study's name, as far as a folder can be named so."""
    return Path("runs") / (re.sub(r"[^\w.-]+", "-", spec.name).strip("-.") or "study")
