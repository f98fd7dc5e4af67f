"""``python -m tests.validation.sweep FOLDER``: a study in a process of its own, to be killed."""

from __future__ import annotations

import sys

from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.spec import Spec
from halfguard.validation.study import run_study
from tests.validation.helper import spec_of


def sweep_spec() -> Spec:
    return spec_of("slow", steps=8)


if __name__ == "__main__":
    run_study(sweep_spec(), sys.argv[1], LocalExecutor(2))
