"""HD100: the forward pass raises an error in this precision."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.checks.hd110_mixed_dtypes import is_mixture
from halfguard.diagnosis.model.forward import Raised
from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Report what was raised, unless HD110 has a better word for it."""
    raised = None if subject.forward is None else subject.forward.raised
    if raised is None or is_mixture(raised):
        return
    module = raised.call.around.module
    why, cure = _explained(subject, raised)
    yield Finding(
        code="HD100",
        severity="error",
        message=f"the forward pass raised{f' in {module}' if module else ''}: "
        f"{raised.message}{raised.place}",
        subject=module or None,
        why=why,
        cure=cure,
    )


def _explained(subject: Subject, raised: Raised) -> tuple[str, str]:
    call, before = raised.call, subject.advice.raised
    if raised.out_of_memory:
        return "", "What to change first: halfguard doctor ENTRY --cost"
    if call.around.autocast is not None and call.around.module:
        why = f"{call.operation} was called under autocast, and may have no kernel for these dtypes here."
        return why, f'halfguard.fp32_island(model.get_submodule("{call.around.module}").float())'
    if before and raised.missing_attribute:
        return "Only the training step was run, and none of the hooks that come before it.", before
    return "", "Run the same call without halfguard, in FP32."
